"""Durations of fused attention, forward from tables, backward from the forward."""

import numpy as np
import pandas as pd

from maya.config.schema import GpuConfig
from maya.estimators.bounds import DTYPE_BYTES, peak_flops
from maya.estimators.fits import BOUND, EXTRAPOLATED, INTERPOLATED, MEASURED, Basis, Fit, Fits, fit_trees
from maya.estimators.interpolation import Floats, fit_log_grid

# Kernel families. "library": the best kernel for the GPU (cuDNN, FlashAttention-3 on Hopper); "flash": the
# FlashAttention-2 kernels inside PyTorch; "efficient": PyTorch's CUTLASS memory-efficient kernels.
FAMILIES = ("library", "flash", "efficient")

# Time of FlashAttention-2 over the best kernel. Hopper: 370 against 646 TFLOP/s full and 333 against 602
# causal at head dim 128, 322 against 496 at 64 (flash-attention@0251105 assets/flash3_fp16_fwd.png).
# Blackwell: the same instructions on 148 SMs, about 375 TFLOP/s against some 1,150 in the table. Elsewhere it
# is the best kernel.
FLASH_2_TIME_RATIO = {"9.0": 1.7, "10.0": 3.0}
# Memory-efficient kernels over FlashAttention-2: no published measurement of both in one harness was found.
EFFICIENT_TIME_RATIO = 1.6

# Backward over forward. The backward has 2.5 times the FLOPs (5 products for 2).
# library: 2.87 to 3.27, median 3.0, cuDNN on H200, bf16 (NVIDIA/cudnn-frontend@3929da2 SDPA benchmark).
# flash: forward and forward+backward of FlashAttention-2 give 2.6 on A100 and on H100 for long sequences
# (flash-attention@0251105 benchmark figures); its small kernels before and after are launched and timed
# apart.
BACKWARD_TIME_RATIO = {"library": 3.0, "flash": 2.6, "efficient": 3.0}

# Without a table: share of the peak for long sequences and the keys at which half of it is lost, as the A100
# table shows (0.60 and 500 at head dim 128).
PEAK_SHARE = 0.58
HALF_SHARE_KEYS = 500.0


def attention_flops(ops: pd.DataFrame) -> Floats:
    """FLOPs of a forward pass: 2 b h s_q s_kv (d_qk + d_v), half of it under a causal mask."""
    batch, heads, seq_q, seq_kv, dim_qk, dim_v = attention_dims(ops)
    share = np.where(ops.causal.to_numpy(bool), 0.5, 1.0)
    flops: Floats = 2.0 * batch * heads * seq_q * seq_kv * (dim_qk + dim_v) * share
    return flops


# Types whose kernels run on the same units at the same rate as the table's.
TABLE_DTYPES = ("bf16", "fp16", "fp8")
TABLE = "attention/bf16"


def attention_us(gpu: GpuConfig, fits: Fits, ops: pd.DataFrame) -> tuple[Floats, Basis]:
    """Durations in us and their basis.

    Args:
        ops: columns op (FAMILIES), dtype, direction, batch, heads_q, heads_kv, seq_q, seq_kv, head_dim,
            causal; head_dim_v where values have another width
    """
    duration_us = np.empty(len(ops))
    basis = np.full(len(ops), BOUND)
    groups = ops.groupby(["dtype", "head_dim", "causal"], sort=False).indices
    for (dtype, head_dim, causal), rows in groups.items():
        group = ops.iloc[rows]
        duration_us[rows], basis[rows] = _forward_us(
            gpu, fits, group, str(dtype), int(head_dim), bool(causal)
        )
    family = ops.op.to_numpy(object)
    flash_ratio = FLASH_2_TIME_RATIO.get(gpu.compute_capability, 1.0)
    ratio = {"library": 1.0, "flash": flash_ratio, "efficient": flash_ratio * EFFICIENT_TIME_RATIO}
    backward = (ops.direction == "backward").to_numpy()
    duration_us *= np.array([ratio[f] for f in family])
    duration_us *= np.where(backward, np.array([BACKWARD_TIME_RATIO[f] for f in family]), 1.0)
    derived = backward | np.array([ratio[f] != 1.0 for f in family], bool)
    basis = np.where(derived & (basis <= INTERPOLATED), EXTRAPOLATED, basis)
    return duration_us, basis.astype(np.uint8)


def _forward_us(
    gpu: GpuConfig, fits: Fits, ops: pd.DataFrame, dtype: str, head_dim: int, causal: bool
) -> tuple[Floats, Basis]:
    """From the table of the same head dim and mask, else the nearest.

    A full mask without a table is read from the causal one at twice the keys: rows as long on average.
    """
    bound_us = _roofline_us(gpu, ops, dtype)
    keys = ops.seq_kv.to_numpy(np.float64)
    tables = [_dims_of(group) for group in fits if group.startswith(TABLE)]
    if not tables or dtype not in TABLE_DTYPES:
        return bound_us / PEAK_SHARE * (1 + HALF_SHARE_KEYS / np.maximum(keys, 1.0)), np.full(len(ops), BOUND)

    def distance(dims: tuple[int, bool]) -> tuple[float, bool]:
        return abs(np.log(dims[0] / max(head_dim, 1))), dims[1] != causal

    nearest = min(tables, key=distance)
    stretch = 2.0 if nearest[1] and not causal else 0.5 if causal and not nearest[1] else 1.0
    work = (ops.batch * ops.heads_q).to_numpy(np.float64)
    log_ratio, basis = fits[group_of_attention(*nearest)](
        (work, keys * stretch), lambda rows: _tree_features(gpu, ops[rows], stretch)
    )
    if nearest != (head_dim, causal) or dtype == "fp8":
        basis = np.where(basis <= INTERPOLATED, EXTRAPOLATED, basis)
    elif dtype != "bf16":
        basis = np.where(basis == MEASURED, INTERPOLATED, basis)
    return bound_us * np.exp(log_ratio), basis.astype(np.uint8)


def group_of_attention(head_dim: int, causal: bool) -> str:
    return f"{TABLE}/{head_dim}/{'causal' if causal else 'full'}"


def _dims_of(group: str) -> tuple[int, bool]:
    head_dim, mask = group.split("/")[2:]
    return int(head_dim), mask == "causal"


def _roofline_us(gpu: GpuConfig, ops: pd.DataFrame, dtype: str) -> Floats:
    """max(FLOPs / peak, bytes of q, k, v and output / HBM rate) plus the shortest kernel."""
    batch, heads, seq_q, seq_kv, dim_qk, dim_v = attention_dims(ops)
    flops = attention_flops(ops)
    kv_heads = ops.heads_kv.to_numpy(np.float64)
    num_bytes = DTYPE_BYTES[dtype] * batch * (dim_qk + dim_v) * (heads * seq_q + kv_heads * seq_kv)
    return (
        np.maximum(flops / peak_flops(gpu, dtype), num_bytes / gpu.hbm_bytes_per_s) * 1e6 + gpu.min_kernel_us
    )


def attention_dims(ops: pd.DataFrame) -> list[Floats]:
    """batch, heads_q, seq_q, seq_kv, head dims of keys and of values as floats."""
    value_dim = "head_dim_v" if "head_dim_v" in ops else "head_dim"
    columns = ("batch", "heads_q", "seq_q", "seq_kv", "head_dim", value_dim)
    return [ops[column].to_numpy(np.float64) for column in columns]


def _tree_features(gpu: GpuConfig, ops: pd.DataFrame, stretch: float) -> Floats:
    batch, heads, seq_q, seq_kv, *_ = attention_dims(ops)
    group_size = heads / ops.heads_kv.to_numpy(np.float64)
    waves = batch * heads * np.ceil(seq_q / 128) / gpu.num_sms
    logs = [np.log(x) for x in (batch, heads, seq_kv * stretch, group_size, batch * heads, waves)]
    return np.stack([*logs, waves % 1], axis=1)


def fit_attention(gpu: GpuConfig, rows: pd.DataFrame) -> Fits:
    """One fit per head dim and mask, on forward passes of the best kernel in 2-byte types."""
    rows = rows[(rows.op == "library") & (rows.direction == "forward") & rows.dtype.isin(("bf16", "fp16"))]
    rows = rows[(rows.seq_q > 1) & (rows.heads_q > 0)]
    rows = rows.assign(causal=rows.causal.astype(bool))
    fits: Fits = {}
    for (head_dim, causal), group in rows.groupby(["head_dim", "causal"]):
        log_ratio = np.log(group.duration_us.to_numpy(np.float64) / _roofline_us(gpu, group, "bf16"))
        points = pd.DataFrame(
            {"work": group.batch * group.heads_q, "keys": group.seq_kv, "log_ratio": log_ratio}
        )
        # Serving kernels pay for few key/value heads where cuDNN does not, so multi-head rows go first.
        # Shapes with as many heads in all differ by a few percent: their mean.
        points["group_size"] = group.heads_q // group.heads_kv
        fewest = points.group_size == points.groupby(["work", "keys"]).group_size.transform("min")
        mean = points[fewest].groupby(["work", "keys"], as_index=False).log_ratio.mean()
        axes = (mean.work.to_numpy(np.float64), mean["keys"].to_numpy(np.float64))
        fits[group_of_attention(int(head_dim), bool(causal))] = Fit(
            grid=fit_log_grid(axes, mean.log_ratio.to_numpy(np.float64)),
            trees=fit_trees(_tree_features(gpu, group, 1.0), log_ratio, depth=6),
            way="mean",
        )
    return fits
