import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_builder import make_gpu

from maya.estimators.bounds import gemm_roofline_us, gemm_tiled_us, memory_us, peak_flops

# HBM at 3e12 x 0.88 as on compute capability 9.0; L2 at 10e12 x 0.44.
GPU = make_gpu(l2_bytes=50 * 10**6, l2_bytes_per_s=10e12, min_kernel_us=1.5)


def us(num_bytes: float) -> float:
    return float(memory_us(GPU, np.array([num_bytes]))[0])


def test_small_working_sets_run_from_l2_and_large_ones_from_memory() -> None:
    assert us(0) == 1.5
    assert us(44e6) == pytest.approx(1.5 + 44e6 / 4.4e12 * 1e6)
    # Of 5 GB a share of (50e6 / 5e9)^2 is found in L2, which does not show.
    assert us(5e9) == pytest.approx(1.5 + 5e9 / 2.64e12 * 1e6, rel=1e-3)


@given(st.floats(1, 1e11), st.floats(1.01, 10))
def test_more_bytes_never_take_less(num_bytes: float, factor: float) -> None:
    assert us(num_bytes * factor) >= us(num_bytes)


def test_types_without_units_run_at_the_rate_of_others() -> None:
    gpu = make_gpu(peak_flops={"fp32": 15e12, "fp16": 125e12})
    assert peak_flops(gpu, "bf16") == peak_flops(gpu, "tf32") == 15e12
    assert peak_flops(gpu, "fp8") == 125e12


def gemm(function: object, m: float, n: float, k: float) -> float:
    one = np.ones(1)
    return float(function(GPU, m * one, n * one, k * one, one, "bf16")[0])


def test_roofline_takes_the_slower_of_compute_and_memory() -> None:
    assert gemm(gemm_roofline_us, 8192, 8192, 8192) == pytest.approx(1.5 + 2 * 8192**3 / 1e15 * 1e6)
    # A product with a vector reads the matrix: 2 bytes of 8192^2 elements.
    traffic = 2 * (8192 + 8192 + 8192**2)
    assert gemm(gemm_roofline_us, 1, 8192, 8192) == pytest.approx(1.5 + traffic / 3e12 * 1e6)


def test_one_tile_more_than_a_wave_costs_a_wave() -> None:
    # 100 SMs: 10 x 10 tiles of 256 x 128 fill them once; one row of tiles more starts a second wave.
    full = gemm(gemm_tiled_us, 2560, 1280, 4096)
    more = gemm(gemm_tiled_us, 2561, 1280, 4096)
    assert 1.3 < more / full <= 2


def test_tiled_estimate_is_above_the_roofline() -> None:
    for shape in ((64, 64, 64), (4096, 4096, 4096), (1, 50304, 1024)):
        assert gemm(gemm_tiled_us, *shape) > gemm(gemm_roofline_us, *shape)
