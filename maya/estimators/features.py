"""From a recorded kernel launch to what decides its duration: kind, variant, type, bytes moved, dims.

One table of rules says, by kernel name, what a kernel is, how to count the bytes it moves and how fast
it moves them against a plain streaming kernel. Counts come from the launch (number of elements, types in the
name, grid) and from the input sizes of the PyTorch operator around the launch. Kinds, variants, types, rows,
columns and bytes mean what they mean for measured operations (`profile_schema`).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

import numpy as np
import pandas as pd

from maya.estimators.kernel_names import (
    copy_op,
    direction,
    element_bytes,
    element_dtype,
    elementwise_op,
    first_two_sizes,
    foreach_accesses,
    foreach_op,
    norm_op,
    operand_bytes,
    optimizer_op,
    reduction_op,
    softmax_op,
    trailing_bools,
)
from maya.estimators.launch_sizes import shape_of_launch
from maya.estimators.triton_kernels import space_of, triton_bytes, triton_dtype, triton_op
from maya.trace import TritonKernel

# Elements that one block of a multi_tensor_apply kernel handles (ATen/native/cuda/MultiTensorApply.cuh,
# kChunkSize).
FOREACH_CHUNK_ELEMENTS = 65536
# Elements per thread where nothing else is known: PyTorch's elementwise kernels unroll by 4 or more.
DEFAULT_ELEMENTS_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    ``num_elements`` of its index space, and its ``shape`` (rows, columns), are 0 where a launch is silent.
    ``triton`` describes the kernel where Triton made it and the capture has its table.
    """

    name: str
    num_elements: int
    shape: tuple[int, int]
    num_blocks: int
    threads_per_block: int
    operator: str
    sizes: tuple[tuple[int, ...], ...]  # of the operator's tensors, lists of tensors flattened
    scalars: tuple[int, ...] = field(default=())
    triton: TritonKernel | None = None

    @property
    def element_bytes(self) -> int:
        return element_bytes(self.name)

    def numel(self, index: int) -> int:
        """Elements of one of the operator's inputs, 0 where there is none."""
        return prod(self.sizes[index]) if index < len(self.sizes) and self.sizes[index] else 0

    @property
    def elements(self) -> int:
        """Elements that the launch shows, else those of the operator's largest input, else from the grid."""
        return self.num_elements or self.largest

    @property
    def largest(self) -> int:
        """Elements of the operator's largest input; of the launch where the operator is unknown."""
        known = max((prod(s) for s in self.sizes if s), default=0)
        return known or self.num_elements or self.grid_elements

    @property
    def total(self) -> int:
        """Elements of all inputs together."""
        return sum(prod(s) for s in self.sizes if s) or self.largest

    @property
    def grid_elements(self) -> int:
        return self.num_blocks * self.threads_per_block * DEFAULT_ELEMENTS_PER_THREAD


Traffic = Callable[[Launch], float]


def _elementwise(launch: Launch) -> float:
    return float(launch.elements * sum(operand_bytes(launch.name)))


def _elementwise_strided(launch: Launch) -> float:
    """As `_elementwise`, but operands that are broadcast (a bias, a mask) are read once at their own size.

    The operator's tensors are the operands where there are as many of them.
    """
    elements = launch.elements
    written, *read = operand_bytes(launch.name)
    tensors = [prod(s) for s in launch.sizes if s]
    if len(tensors) != len(read) or max(tensors, default=0) < elements:
        return _elementwise(launch)
    return float(
        elements * written + sum(size * min(n, elements) for size, n in zip(read, tensors, strict=True))
    )


def _accesses(per_element: float) -> Traffic:
    """Accesses of the element type for every element."""
    return lambda launch: per_element * launch.elements * launch.element_bytes


def _times_largest(accesses: float) -> Traffic:
    """Accesses of the element type for every element of the largest input."""
    return lambda launch: accesses * launch.largest * launch.element_bytes


def _max_pool(launch: Launch) -> float:
    """The larger side once; the smaller one, a quarter of it as a rule, with 8-byte indices."""
    return launch.largest * (launch.element_bytes + (launch.element_bytes + 8) / 4)


def _bytes_of_largest(per_element: float) -> Traffic:
    return lambda launch: per_element * launch.largest


def _read_and_write_all(launch: Launch) -> float:
    """A concatenation or a split: all inputs are read and written once."""
    return 2.0 * launch.total * launch.element_bytes


def _pack_or_unpack(launch: Launch) -> float:
    """FSDP2's copies between parameters and communication buffers.

    The operator names inputs and outputs, which hold the same elements. Without a cast the kernels copy
    char, whatever the type: 2 bytes are assumed, as parameters are gathered in mixed precision.
    """
    read, written = first_two_sizes(launch.name)
    sizes = read + written if max(read, written) > 1 else 4
    return launch.total / 2 * sizes


def _foreach(launch: Launch) -> float:
    elements = launch.num_elements or launch.num_blocks * FOREACH_CHUNK_ELEMENTS
    return elements * foreach_accesses(launch.name) * launch.element_bytes


def _partial_results(launch: Launch) -> float:
    """One partial norm per chunk is summed up for each tensor."""
    return 4.0 * max(launch.total / FOREACH_CHUNK_ELEMENTS, launch.num_blocks)


def _dropout(launch: Launch) -> float:
    """Reads the input, writes the output and a mask of bytes."""
    return launch.elements * (2 * launch.element_bytes + 1)


def _random_fill(launch: Launch) -> float:
    scalar = max((s for s in launch.scalars if 0 < s < 2**40), default=0)
    return (launch.num_elements or launch.numel(0) or scalar or launch.grid_elements) * launch.element_bytes


def _gather(launch: Launch) -> float:
    """Rows of a table (the first input) picked by an index: each is read and written, the index is read."""
    if "vectorized_gather" in launch.name and launch.scalars[1:]:
        num_rows, row_bytes = launch.scalars[:2]
        return num_rows * (2.0 * row_bytes + 8)
    width = prod(launch.sizes[0][1:]) if launch.sizes and launch.sizes[0] else 1
    indices = min((prod(s) for s in launch.sizes[1:] if s), default=0)
    if not indices:
        return 2.0 * launch.grid_elements * launch.element_bytes
    if launch.operator == "aten::gather":  # the index has the shape of the result
        return indices * (2.0 * launch.element_bytes + 8)
    return indices * (2.0 * width * launch.element_bytes + 8)


def _indexed_elements(launch: Launch) -> float:
    """index and index_put: an element is read and written, its 8-byte index is read."""
    return launch.elements * (2.0 * launch.element_bytes + 8)


def _scatter_rows(launch: Launch) -> float:
    """Gradient rows (the first input) are added to rows of a table: read, read and written."""
    return 3.0 * (launch.num_elements or launch.numel(0) or launch.largest) * launch.element_bytes


def _triton(launch: Launch) -> float:
    # Only torch.compile announces the arguments of a kernel, as an operator of the kernel's name.
    sizes = launch.sizes if launch.operator == launch.name else ()
    elements = launch.num_elements or (0 if sizes else launch.grid_elements)
    return triton_bytes(launch.triton, sizes, elements)


def _num_keys(launch: Launch) -> int:
    """What is sorted or scanned: the indices under an operator that gathers or scatters rows."""
    indices = [prod(s) for s in launch.sizes[1:] if s]
    by_index = "embedding" in launch.operator or "index" in launch.operator
    return min(indices) if by_index and indices else launch.largest


def _scan(launch: Launch) -> float:
    return 2.0 * _num_keys(launch) * launch.element_bytes


def _few_scalars(launch: Launch) -> float:
    return 64.0


def _picked_per_row(launch: Launch) -> float:
    """A loss reads one sector of 32 bytes and an 8-byte label for each row."""
    rows = launch.sizes[0][0] if launch.sizes and launch.sizes[0] else launch.threads_per_block
    return 40.0 * rows


def _sort_pass(launch: Launch) -> float:
    """One pass over keys and 8-byte values."""
    return 2.0 * _num_keys(launch) * (launch.element_bytes + 8)


@dataclass(frozen=True, slots=True)
class Rule:
    """``efficiency``: bandwidth against a plain streaming kernel (`bounds.memory_us`).

    ``latency_us``: what it takes beyond the shortest kernel however small it is: stages that wait for each
    other inside a block or between blocks.
    """

    pattern: re.Pattern[str]
    op_kind: str
    traffic: Traffic
    efficiency: float
    latency_us: float
    op: str = ""


def _rule(
    pattern: str,
    op_kind: str,
    traffic: Traffic,
    efficiency: float,
    latency_us: float = 0.0,
    op: str = "",
) -> Rule:
    return Rule(re.compile(pattern), op_kind, traffic, efficiency, latency_us, op)


def _unknown(launch: Launch) -> float:
    """The operator's tensors, or the index space once in and once out."""
    known = launch.total if launch.sizes else launch.num_elements or launch.grid_elements
    return 2.0 * known * launch.element_bytes


# What nothing is known of.
UNKNOWN = _rule("", "generic", _unknown, 0.7)
TRITON = re.compile("^triton_|_triton_")


# The first rule that matches wins. docs/estimators.md says where the efficiencies come from.
RULES = (
    # Around FlashAttention's backward: dO and O are read and an fp32 accumulator is cleared; it becomes dQ.
    _rule("flash_bwd_dot_do_o", "attention", _bytes_of_largest(8.0), 0.9, op="dot_do_o"),
    _rule("flash_bwd_convert_d", "attention", _bytes_of_largest(6.0), 0.9, op="convert_dq"),
    _rule("flash_fwd_splitkv_combine", "attention", _times_largest(2.0), 0.8, op="splitkv_combine"),
    _rule("FusedOptimizer|Fused(Adam|Sgd|SGD|Adagrad|Lamb)", "optimizer", _foreach, 0.9),
    _rule("multi_tensor_apply_kernel", "foreach", _foreach, 0.85),
    _rule("lpnorm_cleanup|lpmax_cleanup", "reduction", _partial_results, 0.5, 2.0),
    _rule("CatArrayBatchedCopy|foreach_tensor_copy", "copy", _read_and_write_all, 0.85, op="cat"),
    _rule("chunk_cat_cuda_kernel|split_with_sizes_copy", "copy", _pack_or_unpack, 0.85, op="chunk_cat"),
    _rule("unrolled_elementwise_kernel<.*copy_kernel", "copy", _elementwise, 0.97),
    _rule("vectorized_elementwise_kernel<.*copy_kernel", "copy", _elementwise, 1.0),
    _rule("::elementwise_kernel<.*copy_kernel", "copy", _elementwise, 0.75),
    # Several results: batch norm's statistics of each channel.
    _rule("unrolled_elementwise_kernel_for_multi_outputs<", "elementwise", _elementwise, 0.97),
    _rule("unrolled_elementwise_kernel<", "elementwise", _elementwise_strided, 0.97),
    _rule("vectorized_elementwise_kernel<|vectorized_templated", "elementwise", _elementwise, 1.0),
    _rule("::elementwise_kernel<|elementwise_kernel_with_index", "elementwise", _elementwise_strided, 0.92),
    # Rows that fit in shared memory or registers are read once, others three times.
    _rule("cunn_SoftMaxForward(Smem|Reg)", "softmax", _accesses(2.0), 0.78, 2.0),
    _rule("cunn_SoftMaxForward", "softmax", _accesses(4.0), 0.9, 2.0),
    _rule("cunn_SoftMaxBackwardSmem|softmax_warp_backward", "softmax", _accesses(3.0), 0.78, 1.0),
    _rule("[Ss]oft[Mm]ax.*[Bb]ackward", "softmax", _accesses(4.0), 0.9, 2.0),
    _rule("[Ss]oft[Mm]ax", "softmax", _accesses(2.0), 0.78, 1.0),
    _rule("nll_loss2d", "loss", _accesses(1.0), 0.5, 2.0, op="nll"),
    # One block for all rows: far from the bandwidth.
    _rule("nll_loss", "loss", _picked_per_row, 0.02, 1.0, op="nll"),
    _rule("GammaBeta", "norm", _accesses(2.0), 0.7, 5.0, op="layer_norm_gamma_beta"),
    _rule("layer_norm_grad_input|LayerNormBackward", "norm", _accesses(3.0), 0.7, 2.0),
    _rule("ComputeInternalGradients|RowwiseMoments", "norm", _accesses(1.0), 0.7, 2.0, op="moments"),
    _rule("layer_norm|LayerNorm|[Rr]ms_?[Nn]orm|RMSNorm|GroupNorm", "norm", _accesses(2.0), 0.68, 2.0),
    _rule(
        "batch_norm_(collect|reduce)_statistics",
        "norm",
        _accesses(1.0),
        0.75,
        3.0,
        op="batch_norm_statistics",
    ),
    _rule("batch_norm_backward_reduce", "norm", _accesses(2.0), 0.75, 3.0, op="batch_norm_reduce"),
    _rule("batch_norm_backward", "norm", _accesses(3.0), 0.8, 1.0, op="batch_norm"),
    _rule("batch_norm", "norm", _accesses(2.0), 0.8, 1.0, op="batch_norm"),
    _rule("fused_dropout_kernel", "dropout", _dropout, 0.75),
    _rule("distribution_elementwise_grid_stride|distribution_nullary", "random", _random_fill, 0.5),
    _rule("reduce_kernel|DeviceReduce|DeviceSegmentedReduce", "reduction", _times_largest(1.0), 0.75, 3.0),
    _rule("index_elementwise_kernel", "embedding", _indexed_elements, 0.6, op="index"),
    _rule("vectorized_gather|indexSelect|index_kernel", "embedding", _gather, 0.6, op="gather"),
    _rule(
        "indexing_backward|embedding_backward|indexFunc|index_put",
        "embedding",
        _scatter_rows,
        0.5,
        2.0,
        op="scatter",
    ),
    _rule("compute_grad_weight|sum_and_scatter", "embedding", _scatter_rows, 0.4, 2.0, op="sum"),
    _rule("krn_partial|_of_partial|_of_segments", "embedding", _picked_per_row, 0.1, op="segments"),
    _rule("scatter_gather", "embedding", _times_largest(2.0), 0.5, 2.0, op="scatter_gather"),
    _rule("max_pool_backward|MaxPoolBackward", "pooling", _max_pool, 0.5),
    _rule("max_pool|MaxPool", "pooling", _max_pool, 0.6),
    _rule("avg_pool|AvgPool|adaptive_?average", "pooling", _times_largest(1.3), 0.6),
    _rule(
        "upsample|reflection_pad|replication_pad|grid_sampl|pad_kernel", "resize", _times_largest(2.5), 0.5
    ),
    _rule(
        "[Rr]adix_?[Ss]ort|[Bb]itonic|[Mm]erge_?[Ss]ort|Onesweep", "sort", _sort_pass, 0.35, 2.0, op="radix"
    ),
    _rule("topk|TopK|radixFind|gatherKth|DigitCounts", "sort", _times_largest(2.0), 0.4, 2.0, op="topk"),
    _rule("[Ss]can|cumsum|UniqueByKey|DeviceSelect|AdjacentDifference", "scan", _scan, 0.5, 2.0),
    _rule(TRITON.pattern, "triton", _triton, 0.85),
    _rule("depthwise|dilated", "conv", _times_largest(2.5), 0.3),
    _rule("triu_tril", "elementwise", _times_largest(2.0), 0.9),
    _rule("amp_update_scale", "elementwise", _few_scalars, 1.0),
    _rule("transpose|nchwToNhwc|nhwcToNchw|[Cc]opy", "copy", _times_largest(2.0), 0.75),
    _rule("fill|arange|range", "elementwise", _times_largest(1.0), 0.9),
)

ATTENTION_FORWARD = re.compile(r"flash_fwd_kernel|flash_fwd_splitkv_kernel|fmha_cutlassF|AttentionKernel")
ATTENTION_BACKWARD = re.compile(r"flash_bwd_dq_dk_dv|fmha_cutlassB|AttentionBackwardKernel")


@lru_cache(maxsize=65536)
def rule_of(name: str) -> Rule | None:
    """The rule for a kernel, None where nothing is known of it."""
    return next((rule for rule in RULES if rule.pattern.search(name)), None)


@lru_cache(maxsize=65536)
def parse_sizes(text: str) -> tuple[tuple[int, ...], ...]:
    """Input sizes as PyTorch announces them, lists of tensors flattened; scalars are empty."""
    if not text:
        return ()
    try:
        entries = json.loads(text)
    except ValueError:
        return ()  # a text cut short by the recorder's limit on names
    flat: list[tuple[int, ...]] = []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, list) and entry and isinstance(entry[0], list):
            flat.extend(tuple(item) for item in entry if isinstance(item, list))
        elif isinstance(entry, list):
            flat.append(tuple(entry))
        else:
            flat.append(())
    return tuple(flat)


KERNEL_KEY = (
    "name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "num_elements",
    "scalar0", "scalar1", "scalar2", "scalar3", "scalar4", "scalar5", "operator", "shapes", "code",
)  # fmt: skip


ATTENTION_COLUMNS = ("batch", "heads_q", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v", "causal")

# By kind, the variant that a kernel's name tells; the other kinds are called by their kind.
_OPS: Mapping[str, Callable[[str], str]] = {
    "elementwise": elementwise_op,
    "copy": copy_op,
    "norm": norm_op,
    "softmax": softmax_op,
    "reduction": reduction_op,
    "foreach": foreach_op,
    "optimizer": optimizer_op,
    "triton": triton_op,
}


def kernel_features(
    kernels: pd.DataFrame, triton_kernels: Mapping[int, TritonKernel] | None = None
) -> pd.DataFrame:
    """Features of distinct kernel launches.

    Args:
        kernels: columns KERNEL_KEY
        triton_kernels: by ``code``, as `Job.triton_kernels`

    Returns:
        op_kind, op, direction, dtype, rows, cols, num_bytes, efficiency, latency_us, and ATTENTION_COLUMNS,
        which are missing for all but the kernels of fused attention
    """
    table = triton_kernels or {}
    rows = [_features(row, table) for row in kernels[list(KERNEL_KEY)].itertuples(index=False)]
    return pd.DataFrame(rows, columns=[*_COLUMNS, *ATTENTION_COLUMNS])


_COLUMNS = (
    "op_kind", "op", "direction", "dtype", "rows", "cols", "num_bytes", "efficiency", "latency_us",
)  # fmt: skip


def _features(row: object, triton_kernels: Mapping[int, TritonKernel]) -> dict[str, object]:
    launch = _launch(row, triton_kernels)
    attention = _attention_features(launch)
    if attention is not None:
        return attention
    rule = rule_of(launch.name) or UNKNOWN
    is_triton = rule.op_kind == "triton"
    dtype = triton_dtype(launch.triton) if is_triton else element_dtype(launch.name)
    num_rows, cols = launch.shape
    name_op = _OPS.get(rule.op_kind)
    return {
        "op_kind": rule.op_kind,
        "op": rule.op or (name_op(launch.name) if name_op else rule.op_kind),
        "direction": direction(launch.name),
        "dtype": dtype,
        "rows": max(num_rows, 1),
        "cols": cols or launch.num_elements,
        "num_bytes": float(rule.traffic(launch)),
        "efficiency": rule.efficiency,
        "latency_us": rule.latency_us,
    }


def _launch(row: object, triton_kernels: Mapping[int, TritonKernel]) -> Launch:
    values = {key: getattr(row, key) for key in KERNEL_KEY}
    counts = {
        key: max(int(values[key]), 0)
        for key in KERNEL_KEY
        if key not in ("name", "operator", "shapes", "code")
    }
    name = str(values["name"])
    scalars = tuple(counts[f"scalar{i}"] for i in range(6))
    num_blocks = counts["grid_x"] * max(counts["grid_y"], 1) * max(counts["grid_z"], 1)
    triton = triton_kernels.get(int(values["code"]))
    is_triton = triton is not None or TRITON.search(name) is not None
    shape = space_of(name, scalars) if is_triton else shape_of_launch(name, num_blocks, scalars)
    return Launch(
        name=name,
        num_elements=counts["num_elements"] or shape[0] * shape[1],
        shape=shape,
        num_blocks=num_blocks,
        threads_per_block=counts["block_x"] * max(counts["block_y"], 1) * max(counts["block_z"], 1),
        operator=str(values["operator"] or ""),
        sizes=parse_sizes(str(values["shapes"] or "")),
        scalars=scalars,
        triton=triton,
    )


def _attention_features(launch: Launch) -> dict[str, object] | None:
    """Dims of a fused attention kernel, from the operator that launched it.

    _scaled_dot_product_* take [batch, heads, sequence, dim]; _flash_attention_* and
    _efficient_attention_* take [batch, sequence, heads, dim]. A backward operator has the gradient of the
    output first.
    """
    backward = bool(ATTENTION_BACKWARD.search(launch.name))
    if not backward and not ATTENTION_FORWARD.search(launch.name):
        return None
    tensors = [s for s in launch.sizes if len(s) == 4]
    tensors = tensors[1:] if backward else tensors
    if len(tensors) < 3:
        return None
    query, key, value = tensors[:3]
    heads_first = "scaled_dot_product" in launch.operator
    heads, sequence = (1, 2) if heads_first else (2, 1)
    flash = "flash_" in launch.name
    # Template arguments behind the kernel traits: dropout, causal, ... Memory-efficient kernels take the mask
    # at run time, where it is not recorded: a full one is assumed.
    flags = trailing_bools(launch.name)
    return {
        "op_kind": "attention",
        "op": "flash" if flash else "efficient",
        "direction": "backward" if backward else "forward",
        "dtype": "bf16" if launch.element_bytes == 2 else "fp32",
        "rows": 1,
        "cols": prod(query),
        "num_bytes": float(launch.element_bytes * sum(prod(s) for s in (query, key, value, query))),
        "efficiency": 1.0,
        "latency_us": 0.0,
        "batch": query[0],
        "heads_q": query[heads],
        "heads_kv": key[heads],
        "seq_q": query[sequence],
        "seq_kv": key[sequence],
        "head_dim": query[3],
        "head_dim_v": value[3],
        "causal": flash and len(flags) > 1 and flags[1],
    }


def missing_to_zero(values: "pd.Series[int]") -> np.ndarray:
    """Fields the trace left out (negative marker) as 0."""
    return np.maximum(values.to_numpy(np.float64), 0.0)
