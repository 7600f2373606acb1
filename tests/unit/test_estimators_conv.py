"""The first 3x3 convolution of ResNet-50's second stage: 56 x 56, 64 to 64 channels, batch 32."""

import numpy as np
import pytest
from job_builder import make_gpu

from maya.estimators.conv import Convolutions
from maya.estimators.conv import conv_us as fitted_conv_us
from maya.estimators.interpolation import Floats

GPU = make_gpu(
    l2_bytes=50 * 10**6, l2_bytes_per_s=10e12, peak_flops={"bf16": 1e15, "fp16": 1e15, "fp32": 5e13}
)


def conv_us(ops: Convolutions, dtype: str) -> Floats:
    """Without measurements."""
    return fitted_conv_us(GPU, {}, ops, dtype)[0]


def layer(direction: int, **changes: float) -> Convolutions:
    sizes = {
        "batch": 32, "channels_in": 64, "channels_out": 64, "groups": 1, "in_points": 56 * 56,
        "out_points": 56 * 56, "kernel_points": 9, "stride_points": 1,
    } | changes  # fmt: skip
    arrays = {key: np.array([value], float) for key, value in sizes.items()}
    return Convolutions(direction=np.array([direction]), channels_last=np.array([True]), **arrays)


def test_flops_and_bytes() -> None:
    # 2 x 32 x 3136 x 64 x 64 x 9; two tensors of 32 x 3136 x 64 and 64 x 64 x 9 weights.
    assert layer(0).flops == 2 * 32 * 3136 * 64 * 64 * 9
    assert layer(0).num_elements == 2 * 32 * 3136 * 64 + 64 * 64 * 9


@pytest.mark.parametrize("direction", [0, 1, 2])
def test_each_pass_is_a_product_of_the_same_flops(direction: int) -> None:
    m, n, k = layer(direction).as_gemm()
    assert 2 * m * n * k == layer(direction).flops
    m, n, k = layer(direction, in_points=112 * 112, stride_points=4).as_gemm()
    assert 2 * m * n * k == layer(direction).flops


def test_layouts_and_groups() -> None:
    fast = conv_us(layer(0), "bf16")
    nchw = Convolutions(
        **{f: getattr(layer(0), f) for f in Convolutions.__slots__} | {"channels_last": np.array([False])}
    )
    assert conv_us(nchw, "bf16") > fast
    # Depthwise: 64 groups of one channel stream their tensors rather than multiply.
    depthwise = layer(0, groups=64)
    expected = 1.3 + 2 * 2 * depthwise.num_elements / 4.4e12 * 1e6
    np.testing.assert_allclose(conv_us(depthwise, "bf16"), expected)
