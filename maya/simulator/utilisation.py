"""Hardware FLOPs utilisation: the share of a rank's time that its matrix work would take at peak rate."""

from collections import defaultdict

import numpy as np

from maya.collate.job import Array, RankTrace
from maya.config.schema import GpuConfig
from maya.errors import SimulationError
from maya.estimators.annotation import Annotation
from maya.estimators.library_codes import CONV_COMPUTE_TF32
from maya.simulator.lowering import detail, rows_by_kind

MATRIX_OP_KINDS = ("gemm", "attention", "conv")

# Names of type codes: cudaDataType (library_types.h) for GEMMs, cudnnDataType_t (cudnn_graph.h) for others.
CUDA_TYPES = {0: "fp32", 1: "fp64", 2: "fp16", 14: "bf16", 28: "fp8", 29: "fp8"}
CUDNN_TYPES = {0: "fp32", 1: "fp64", 2: "fp16", 9: "bf16", 12: "fp8", 13: "fp8"}
CUDNN_FLOAT = 0  # cudnnDataType_t
COMPUTE_32F_FAST_TF32 = 77  # cublasComputeType_t
OTHER_RATES = {"fp8": "fp16", "bf16": "fp16", "fp16": "fp32", "tf32": "fp32"}
"""The rate that applies on a GPU that has none of its own for a type."""


def matrix_flops(trace: RankTrace, annotation: Annotation, is_measured: Array) -> dict[str, float]:
    """FLOPs of matrix multiplications, convolutions and attention in the rows measured, by type.

    Attention that runs as a plain kernel shows no type; it counts with the type that has most of the others.
    """
    counted = is_measured & np.isin(annotation.op_kind, MATRIX_OP_KINDS) & (annotation.flops > 0)
    rows_of = rows_by_kind(trace)
    flops: dict[str, float] = defaultdict(float)
    untyped = float(annotation.flops[counted].sum())
    for name, column, names in (
        ("gemm", "type_a", CUDA_TYPES),
        ("conv", "dtype", CUDNN_TYPES),
        ("attention", "dtype", CUDNN_TYPES),
    ):
        if name not in rows_of:
            continue
        rows = rows_of[name]
        codes = detail(trace, name, column, rows)
        is_tf32 = np.zeros(len(rows), dtype=bool)
        if name == "gemm":
            is_tf32 = detail(trace, name, "compute_type", rows) == COMPUTE_32F_FAST_TF32
        elif name == "conv":
            is_fp32 = codes == CUDNN_FLOAT
            is_tf32 = is_fp32 & (detail(trace, name, "compute_dtype", rows) == CONV_COMPUTE_TF32)
        for code in np.unique(codes):
            for tf32 in (False, True):
                rows_of_type = rows[(codes == code) & (is_tf32 == tf32)]
                amount = float(annotation.flops[rows_of_type][counted[rows_of_type]].sum())
                if amount > 0 and int(code) in names:
                    flops["tf32" if tf32 else names[int(code)]] += amount
                    untyped -= amount
    if untyped > 0:
        flops[max(flops, key=lambda dtype: flops[dtype], default="fp32")] += untyped
    return dict(flops)


def time_at_peak_s(flops: dict[str, float], gpu: GpuConfig) -> float:
    """Seconds that the FLOPs take at the peak rates of their types."""
    return sum(amount / _peak_flops_per_s(gpu, dtype) for dtype, amount in flops.items())


def _peak_flops_per_s(gpu: GpuConfig, dtype: str) -> float:
    name: str | None = dtype
    while name is not None:
        if gpu.peak_flops.get(name):
            return gpu.peak_flops[name]
        name = OTHER_RATES.get(name)
    raise SimulationError(
        f"GPU {gpu.name} has no peak rate for {dtype}, which the job uses. Add it to peak_flops in "
        f"config/gpu/{gpu.name}.yaml."
    )
