"""Operators of PyTorch with results whose size is read from the device."""

from collections.abc import Sequence
from typing import Any

_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
_UNIQUE = ("_unique2", "unique_dim", "unique_consecutive")


def deciding_inputs(name: str, args: Sequence[Any]) -> list[Any]:
    """The inputs of an operator that decide on the size of its result: masks, repeats, counted values."""
    if name in ("nonzero", "bincount", "repeat_interleave", *_UNIQUE):
        return [args[0]]
    if name == "masked_select":
        return [args[1]]
    if name in _INDEXING:
        return [index for index in args[1] if index is not None and not _is_position(index)]
    return []


def _is_position(index: Any) -> bool:
    return str(index.dtype) in ("torch.int64", "torch.int32")


def intermediate_reads(name: str, args: Sequence[Any], deciding: Sequence[Any]) -> list[int]:
    """What an operator reads from the device on its way, in order, for these deciding inputs."""
    if not deciding:
        return []
    values = deciding[0]
    if name == "bincount":
        return [int(values.min()), int(values.max())] if values.numel() else []
    if name == "repeat_interleave":
        return [int(values.sum()), 1]  # that all are at least 0 comes second
    if name == "masked_select":
        return [int(values.expand(_broadcast(args[0].size(), values.size())).count_nonzero())]
    if name == "unique_dim":
        return [values.unique(dim=args[1]).size(args[1])]
    if name == "unique_consecutive":
        return [len(values.unique_consecutive())]
    if name == "_unique2":
        return [len(values.unique())]
    return [int(mask.count_nonzero()) for mask in deciding]  # nonzero, once for each mask of an index


def _broadcast(left: Sequence[int], right: Sequence[int]) -> Sequence[int]:
    import torch

    return torch.broadcast_shapes(left, right)
