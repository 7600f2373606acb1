"""Convolutions as the matrix products that cuDNN's implicit-GEMM kernels compute."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from maya.config.schema import GpuConfig
from maya.estimators.bounds import DTYPE_BYTES, gemm_compute_us, memory_us
from maya.estimators.fits import BOUND, Basis, Fit, Fits, fit_trees
from maya.estimators.interpolation import Floats

# Time of an implicit GEMM over the arithmetic of the explicit one: gathering the window, boundary handling.
# Fitted to the fp16 3x3 rows of DeepBench@da81ba7 on V100.
IMPLICIT_TIME_RATIO = 1.15
# A gradient to strided data writes in a pattern that wastes work: DeepBench rows take about twice as long.
STRIDED_DATA_TIME_RATIO = 1.8
# Winograd's F(2x2, 3x3) and F(4x4, 3x3) need 2.25 to 4 times fewer products; with transforms cuDNN gains
# about 2 on fp32 3x3 convolutions with unit stride (DeepBench, V100: 17 to 19 of 15.7 TFLOP/s in all three
# passes).
WINOGRAD_TIME_RATIO = 0.65
# Gradients of 1x1 filters are products of two tall matrices, short of parallel work: DeepBench, V100.
POINTWISE_FILTER_TIME_RATIO = 1.4
# Tensor-core kernels pad the input channels to at least this many; first layers have one or three
# (DeepBench).
MIN_TENSOR_CHANNELS = 4
# Bandwidth of convolutions that stream their tensors over a plain streaming kernel: an assumption.
STREAM_EFFICIENCY = 0.85
TENSOR_DTYPES = ("fp16", "bf16", "tf32")
# Few channels per group leave no matrix to multiply: such kernels stream, at a share of the bandwidth.
MIN_GEMM_CHANNELS = 4
DEPTHWISE_EFFICIENCY = 0.5


DIRECTIONS = ("forward", "dgrad", "wgrad")
"""The three passes: forward, gradient of the data, gradient of the filter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Convolutions:
    """Geometry of convolutions of one type, arrays of equal length.

    ``direction`` is the index into DIRECTIONS, `Pass` of the trace format.
    """

    direction: np.ndarray
    batch: Floats
    channels_in: Floats
    channels_out: Floats
    groups: Floats
    in_points: Floats  # depth x height x width
    out_points: Floats
    kernel_points: Floats
    stride_points: Floats
    channels_last: np.ndarray

    @property
    def flops(self) -> Floats:
        """2 N out C_out C_in / g K, for each of the three passes."""
        return (
            2.0
            * self.batch
            * self.out_points
            * self.channels_out
            * self.channels_in
            / self.groups
            * self.kernel_points
        )

    @property
    def num_elements(self) -> Floats:
        """Input, output and filter, each once."""
        activations = self.batch * (self.in_points * self.channels_in + self.out_points * self.channels_out)
        weights = self.channels_out * self.channels_in / self.groups * self.kernel_points
        return activations + weights

    def as_gemm(self) -> tuple[Floats, Floats, Floats]:
        """(m, n, k) of one group.

        forward: (N out, C_out/g, C_in/g K); to data: (N in, C_in/g, C_out/g K / stride); to filter: (C_out/g,
        C_in/g K, N out).
        """
        c_in, c_out = self.channels_in / self.groups, self.channels_out / self.groups
        forward = (self.batch * self.out_points, c_out, c_in * self.kernel_points)
        to_data = (
            self.batch * self.in_points,
            c_in,
            np.maximum(c_out * self.kernel_points / self.stride_points, 1.0),
        )
        to_filter = (c_out, c_in * self.kernel_points, self.batch * self.out_points)
        choose = [self.direction == 0, self.direction == 1]
        m, n, k = (np.select(choose, [f, d], w) for f, d, w in zip(forward, to_data, to_filter, strict=True))
        return m, n, k


def geometry(rows: pd.DataFrame) -> Convolutions:
    """Geometry from columns of the profile schema; in_d, kernel_d and out_d where there is a third dim."""

    def points(prefix: str, dims: str = "dhw") -> Floats:
        columns = [f"{prefix}_{dim}" for dim in dims if f"{prefix}_{dim}" in rows]
        return np.prod([np.maximum(rows[c].to_numpy(np.float64), 1.0) for c in columns], axis=0)

    return Convolutions(
        direction=rows.direction.map(DIRECTIONS.index).to_numpy(),
        batch=rows.batch.to_numpy(np.float64),
        channels_in=rows.channels_in.to_numpy(np.float64),
        channels_out=rows.channels_out.to_numpy(np.float64),
        groups=np.maximum(rows.groups.to_numpy(np.float64), 1.0),
        in_points=points("in"),
        out_points=points("out"),
        kernel_points=points("kernel"),
        stride_points=points("stride", "hw"),
        channels_last=rows.channels_last.to_numpy(bool),
    )


def conv_us(gpu: GpuConfig, fits: Fits, ops: Convolutions, dtype: str) -> tuple[Floats, Basis]:
    """Durations in us and their basis: the formula of `implicit_gemm_us`, times what was learned of it."""
    formula_us = implicit_gemm_us(gpu, ops, dtype)
    fit = fits.get(f"conv/{dtype}")
    if fit is None:
        return formula_us, np.full(len(formula_us), BOUND)
    features = _tree_features(gpu, ops, formula_us)
    log_ratio, basis = fit((formula_us,), lambda rows: features[rows])
    # A direction, a filter or a stride that was not measured, depthwise filters: the formula as it is.
    assert fit.trees is not None
    known = np.isin(_variants(ops), fit.trees.variants)
    duration_us = formula_us * np.exp(np.where(known, log_ratio, 0.0))
    return duration_us, np.where(known, basis, BOUND).astype(np.uint8)


def _variants(ops: Convolutions) -> np.ndarray:
    layout = np.where(ops.channels_last, "nhwc", "nchw")
    group = np.where(ops.groups > 1, "grouped", "dense")
    return np.array(
        [
            f"{DIRECTIONS[d]}/{int(kernel)}/{'strided' if stride > 1 else 'unit'}/{order}/{kind}"
            for d, kernel, stride, order, kind in zip(
                ops.direction, ops.kernel_points, ops.stride_points, layout, group, strict=True
            )
        ]
    )


def _tree_features(gpu: GpuConfig, ops: Convolutions, formula_us: Floats) -> Floats:
    m, n, k = ops.as_gemm()
    waves = np.ceil(m / 128) * np.ceil(n / 128) / gpu.num_sms
    logs = [
        np.log(x)
        for x in (
            ops.batch, ops.channels_in, ops.channels_out, ops.in_points, ops.out_points, ops.kernel_points,
            ops.stride_points, m, n, k, waves, formula_us, ops.flops,
        )
    ]  # fmt: skip
    plain = [ops.direction.astype(np.float64), waves % 1, ops.channels_in % 8, ops.channels_out % 8]
    return np.stack([*logs, *plain], axis=1)


def fit_conv(gpu: GpuConfig, rows: pd.DataFrame) -> Fits:
    """One fit per type."""
    fits: Fits = {}
    for dtype, group in rows.groupby("dtype"):
        ops = geometry(group)
        formula_us = implicit_gemm_us(gpu, ops, str(dtype))
        log_ratio = np.log(group.duration_us.to_numpy(np.float64) / formula_us)
        features = _tree_features(gpu, ops, formula_us)
        variants = tuple(np.unique(_variants(ops)).tolist())
        fits[f"conv/{dtype}"] = Fit(trees=fit_trees(features, log_ratio, variants=variants))
    return fits


def implicit_gemm_us(gpu: GpuConfig, ops: Convolutions, dtype: str) -> Floats:
    """Durations in us: max(implicit GEMM, memory), plus changes of layout for tensor cores on NCHW.

    The matrix that a GEMM would read is never in memory, so tables of GEMMs do not apply.
    """
    m, n, k = ops.as_gemm()
    winograd = (dtype == "fp32") & (ops.kernel_points == 9) & (ops.stride_points == 1)
    ratio = np.where(winograd, WINOGRAD_TIME_RATIO, IMPLICIT_TIME_RATIO)
    ratio *= np.where((ops.direction == 1) & (ops.stride_points > 1), STRIDED_DATA_TIME_RATIO, 1.0)
    ratio *= np.where((ops.direction == 2) & (ops.kernel_points == 1), POINTWISE_FILTER_TIME_RATIO, 1.0)
    if dtype in TENSOR_DTYPES:
        ratio *= np.maximum(MIN_TENSOR_CHANNELS * ops.groups / ops.channels_in, 1.0)
    product_us = gemm_compute_us(gpu, m, n, k, ops.groups, dtype) * ratio + gpu.min_kernel_us
    stream_us = memory_us(gpu, ops.num_elements * DTYPE_BYTES[dtype], STREAM_EFFICIENCY)
    duration_us = np.maximum(product_us, stream_us)
    few = np.minimum(ops.channels_in, ops.channels_out) / ops.groups < MIN_GEMM_CHANNELS
    depthwise = few & (ops.groups > 1)
    depthwise_us = memory_us(gpu, ops.num_elements * DTYPE_BYTES[dtype], DEPTHWISE_EFFICIENCY)
    duration_us = np.where(depthwise, depthwise_us, duration_us)
    if dtype in TENSOR_DTYPES:
        # cuDNN's tensor-core kernels work on NHWC: NCHW tensors are copied there and back, read and written.
        activations = DTYPE_BYTES[dtype] * ops.batch
        layout_bytes = 2 * activations * (ops.in_points * ops.channels_in + ops.out_points * ops.channels_out)
        duration_us = duration_us + np.where(
            ops.channels_last | depthwise, 0.0, memory_us(gpu, layout_bytes, 0.7)
        )
    return duration_us
