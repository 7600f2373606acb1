"""Data-sheet bounds with efficiencies: what a kernel takes when no table covers it.

Units: microseconds, bytes, FLOP, per second.
"""

import numpy as np
from numpy.typing import NDArray

from maya.config.schema import GpuConfig

Floats = NDArray[np.float64]

# Share of the data-sheet HBM rate that a large streaming kernel (one operand read per operand written, or
# two) reaches, by compute capability.
# 7.0: 809 of 900 GB/s, scale kernel (RRZE-HPC/gpu-benches@1038c5d gpu-stream/v100.txt).
# 8.0: 1.70 of 2.039 TB/s, BabelStream add (Azure/AI-benchmarking-guide@8fd0c6e ND_A100_v4_results.md).
# 8.6: 573 of 696 GB/s, fp16 residual additions (microsoft/vidur@7d47513, A40 profiles).
# 8.9: 776 of 864 GB/s, scale kernel on the L40 (RRZE-HPC/gpu-benches@1038c5d gpu-stream/l40.txt).
# 9.0: 2.97 of 3.35 TB/s on H100 and 4.15 of 4.80 on H200, BabelStream add (Azure guide, ND_H100_v5,
# ND_H200_v5).
STREAM_HBM_RATIO = {"7.0": 0.90, "8.0": 0.835, "8.6": 0.82, "8.9": 0.90, "9.0": 0.88}
DEFAULT_STREAM_HBM_RATIO = 0.85

# Share of the L2 read rate that a streaming kernel with its data in L2 reaches: 2.4 of 5.4 TB/s on A100 and
# 4.1 of 9.6 on H100, from fp16 residual additions of 5 to 40 MB (microsoft/vidur@7d47513 profiles).
STREAM_L2_RATIO = 0.44
# GPUs without a measured L2 rate: such kernels run at about twice the HBM rate (A40, same profiles).
L2_OVER_HBM = 2.0

# Highest share of the peak rate that large GEMMs reach, where no table says so, by type and compute
# capability. fp32, TF32 off: medians of linear layers above 1 ms with m, n, k >= 1024 (NeuSight@6945927):
# V100 13 of 14.1 TFLOP/s (PCIe card), A100 17.5 of 19.5, H100 50.2 of 67.
# tf32: 403.7 of 494.7 TFLOP/s on H100 (zzc0721/torch-performance-test-data issue 21).
# fp16: V100 and A40 from DeepBench@da81ba7 and microsoft/vidur@7d47513, see docs/estimators.md.
GEMM_PEAK_SHARE = {
    "fp64": {},
    "fp32": {"7.0": 0.92, "8.0": 0.90, "9.0": 0.75},
    "tf32": {"9.0": 0.82},
    "fp16": {"7.0": 0.78, "8.6": 0.80},
    "bf16": {"8.6": 0.80},
    "fp8": {},
}
DEFAULT_GEMM_PEAK_SHARE = 0.80

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}

# Output tiles of a thread block and the share of the peak their inner loop sustains against the largest;
# filling the pipeline and storing the tile cost about as much as some further steps in k. Tensor cores need
# large tiles to be fed, CUDA cores much less so. Fitted to the same measurements as the shares above.
TENSOR_TILES = (
    (256, 128, 1.0),
    (128, 256, 1.0),
    (128, 128, 0.95),
    (64, 128, 0.75),
    (128, 64, 0.75),
    (64, 64, 0.6),
)
TENSOR_K_OVERHEAD = 96
CUDA_CORE_TILES = (
    (128, 128, 1.0),
    (64, 128, 0.96),
    (128, 64, 0.96),
    (64, 64, 0.9),
    (32, 128, 0.8),
    (128, 32, 0.8),
    (32, 64, 0.75),
    (64, 32, 0.75),
    (32, 32, 0.65),
)
CUDA_CORE_K_OVERHEAD = 24
CUDA_CORE_DTYPES = ("fp32", "fp64")
GEMM_K_SPLITS = (1, 2, 4, 8, 16)


def peak_flops(gpu: GpuConfig, dtype: str) -> float:
    """Dense peak rate for a type; one that the GPU has no units for runs at the fp32 rate.

    fp8 and int8 on a GPU without such units run at the fp16 rate, as they are converted first.
    """
    if dtype in gpu.peak_flops:
        return gpu.peak_flops[dtype]
    if dtype in ("fp8", "int8"):
        return gpu.peak_flops.get("fp8" if dtype == "int8" else "fp16", gpu.peak_flops["fp16"])
    return gpu.peak_flops["fp32"]


def memory_us(gpu: GpuConfig, num_bytes: Floats, efficiency: Floats | float = 1.0) -> Floats:
    """Duration of memory-bound kernels.

    t = t_min + r b / (w_L2 e) + (1 - r) b / (w_HBM e), with r = min(1, L2 / b)^2 the share of the
    traffic that a working set of b bytes finds in L2. The constant term makes the achieved bandwidth
    saturate with size, as measured curves do.

    Args:
        num_bytes: read and written bytes of each kernel
        efficiency: of each kernel against a plain streaming kernel (see `features`)
    """
    hbm = gpu.hbm_bytes_per_s * STREAM_HBM_RATIO.get(gpu.compute_capability, DEFAULT_STREAM_HBM_RATIO)
    l2 = gpu.l2_bytes_per_s * STREAM_L2_RATIO if gpu.l2_bytes_per_s else L2_OVER_HBM * hbm
    resident = np.minimum(1.0, gpu.l2_bytes / np.maximum(num_bytes, 1.0)) ** 2
    seconds = num_bytes * (resident / max(l2, hbm) + (1 - resident) / hbm) / efficiency
    return gpu.min_kernel_us + seconds * 1e6


def gemm_roofline_us(gpu: GpuConfig, m: Floats, n: Floats, k: Floats, batch: Floats, dtype: str) -> Floats:
    """max(2 b m n k / peak, bytes / HBM rate) plus the shortest kernel, the measure of GEMM efficiency."""
    flops = 2.0 * batch * m * n * k
    num_bytes = DTYPE_BYTES[dtype] * batch * (m * n + m * k + n * k)
    return (
        np.maximum(flops / peak_flops(gpu, dtype), num_bytes / gpu.hbm_bytes_per_s) * 1e6 + gpu.min_kernel_us
    )


def gemm_tiled_us(gpu: GpuConfig, m: Floats, n: Floats, k: Floats, batch: Floats, dtype: str) -> Floats:
    """Duration of a GEMM where no table of this GPU exists: max(`gemm_compute_us`, bytes / w_HBM) + t_min."""
    num_bytes = DTYPE_BYTES[dtype] * batch * (m * n + m * k + n * k)
    hbm = gpu.hbm_bytes_per_s * STREAM_HBM_RATIO.get(gpu.compute_capability, DEFAULT_STREAM_HBM_RATIO)
    return np.maximum(gemm_compute_us(gpu, m, n, k, batch, dtype), num_bytes / hbm * 1e6) + gpu.min_kernel_us


def gemm_compute_us(gpu: GpuConfig, m: Floats, n: Floats, k: Floats, batch: Floats, dtype: str) -> Floats:
    """Duration of a GEMM's arithmetic from tile and wave quantisation.

    The output is cut into tiles, one per thread block, a wave is one tile on every SM; the best of a few
    tile shapes and splits of k is taken: t = waves 2 t_m t_n (k/s + k_0) SMs / (peak e).
    """
    share = GEMM_PEAK_SHARE.get(dtype, {}).get(gpu.compute_capability, DEFAULT_GEMM_PEAK_SHARE)
    flops_per_sm = peak_flops(gpu, dtype) * share / gpu.num_sms
    compute_s = np.full(np.shape(m), np.inf)
    on_cuda_cores = dtype in CUDA_CORE_DTYPES
    overhead = CUDA_CORE_K_OVERHEAD if on_cuda_cores else TENSOR_K_OVERHEAD
    for tile_m, tile_n, tile_share in CUDA_CORE_TILES if on_cuda_cores else TENSOR_TILES:
        tiles = np.ceil(m / tile_m) * np.ceil(n / tile_n) * batch
        for split in GEMM_K_SPLITS:
            waves = np.ceil(tiles * split / gpu.num_sms)
            steps = np.ceil(k / split) + overhead * (1 if split == 1 else 2)
            compute_s = np.minimum(
                compute_s, waves * 2.0 * tile_m * tile_n * steps / (flops_per_sm * tile_share)
            )
    return compute_s * 1e6
