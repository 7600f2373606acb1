"""Convolutions as the matrix products that cuDNN's implicit-GEMM kernels compute."""

from dataclasses import dataclass

import numpy as np

from maya.config.schema import GpuConfig
from maya.estimators.bounds import DTYPE_BYTES, gemm_compute_us, memory_us
from maya.estimators.gemm import BOUND, Basis
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Convolutions:
    """Geometry of convolutions of one type, arrays of equal length.

    ``direction`` is coded as `Pass` of the trace format.
    """

    direction: np.ndarray  # 0 forward, 1 backward to data, 2 backward to filter
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

    def num_bytes(self, dtype: str) -> Floats:
        """Input, output and filter, each once."""
        activations = self.batch * (self.in_points * self.channels_in + self.out_points * self.channels_out)
        weights = self.channels_out * self.channels_in / self.groups * self.kernel_points
        return DTYPE_BYTES[dtype] * (activations + weights)

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


def conv_us(gpu: GpuConfig, ops: Convolutions, dtype: str) -> tuple[Floats, Basis]:
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
    stream_us = memory_us(gpu, ops.num_bytes(dtype), STREAM_EFFICIENCY)
    duration_us = np.maximum(product_us, stream_us)
    few = np.minimum(ops.channels_in, ops.channels_out) / ops.groups < MIN_GEMM_CHANNELS
    depthwise = few & (ops.groups > 1)
    depthwise_us = memory_us(gpu, ops.num_bytes(dtype), DEPTHWISE_EFFICIENCY)
    duration_us = np.where(depthwise, depthwise_us, duration_us)
    if dtype in TENSOR_DTYPES:
        # cuDNN's tensor-core kernels work on NHWC: NCHW tensors are copied there and back, read and written.
        activations = DTYPE_BYTES[dtype] * ops.batch
        layout_bytes = 2 * activations * (ops.in_points * ops.channels_in + ops.out_points * ops.channels_out)
        duration_us = duration_us + np.where(
            ops.channels_last | depthwise, 0.0, memory_us(gpu, layout_bytes, 0.7)
        )
    return duration_us, np.full(len(duration_us), BOUND)
