"""Vectorised 64-bit hashing of rows, so that operations can be compared within and across ranks."""

import numpy as np
import pandas as pd

from maya.trace import FIELDS, KINDS, MISSING, Trace
from maya.trace.reader import TEXT_FIELD

IDENTIFIER_FIELDS = frozenset(
    ["stream", "event", "version", "address", "comm", "peer", "sequence", "group", "graph"]
    + [f"scalar{number}" for number in range(6)]
)
"""Fields that may differ between iterations, or between ranks, of what is the same operation: handles,
counters
and the scalar arguments of kernels (step counts, seeds of random numbers)."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(values: np.ndarray) -> np.ndarray:
    """A bijection of uint64 that spreads every bit over all bits (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def combine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """An order-dependent hash of two uint64 arrays."""
    return mix(first * _GOLDEN + second + _GOLDEN)


def sequence_hash(keys: np.ndarray) -> int:
    """One number for a sequence of uint64 keys."""
    positions = np.arange(len(keys), dtype=np.uint64)
    return int(combine(positions, keys).sum(dtype=np.uint64)) ^ len(keys)


def record_keys(trace: Trace, positions: np.ndarray) -> np.ndarray:
    """uint64 key of the records at the given positions: equal for the same call with the same sizes.

    Stable across processes: texts count, not their ids.
    """
    text_keys = np.r_[pd.util.hash_array(trace.strings, categorize=False), np.uint64(0)]  # the last: no text
    kinds = trace.kind[positions]
    rows = trace.row[positions]
    keys = mix(kinds.astype(np.uint64))
    for kind in np.unique(kinds):
        name = _KIND_NAMES[int(kind)]
        of_kind = np.flatnonzero(kinds == kind)
        fields = trace.fields(name)
        for column, field in enumerate(FIELDS[name]):
            if field in IDENTIFIER_FIELDS:
                continue
            values = fields[rows[of_kind], column]
            if field == TEXT_FIELD:
                coded = text_keys[np.where(values == MISSING, -1, values)]
            else:
                coded = values.view(np.uint64)
            keys[of_kind] = combine(keys[of_kind], coded)
    return keys


def occurrence(groups: np.ndarray) -> np.ndarray:
    """How many earlier elements of the array have the same value."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = (
        np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(groups) else np.empty(0, dtype=int)
    )
    lengths = np.diff(np.r_[starts, len(groups)])
    counts = np.empty(len(groups), dtype=np.int64)
    counts[order] = np.arange(len(groups)) - np.repeat(starts, lengths)
    return counts


_KIND_NAMES = {number: name for name, number in KINDS.items()}
