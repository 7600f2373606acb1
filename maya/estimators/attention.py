"""Durations of fused attention, forward from tables, backward from the forward."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from maya.config.schema import GpuConfig
from maya.estimators.bounds import DTYPE_BYTES, peak_flops
from maya.estimators.gemm import BOUND, INTERPOLATED, MEASURED, Basis, accuracy
from maya.estimators.interpolation import Floats, LogGrid, fit_log_grid

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


def attention_flops(
    batch: Floats,
    heads: Floats,
    seq_q: Floats,
    seq_kv: Floats,
    dim_qk: Floats,
    dim_v: Floats,
    causal: NDArray[np.bool_],
) -> Floats:
    """FLOPs of a forward pass: 2 b h s_q s_kv (d_qk + d_v), half of it under a causal mask."""
    return 2.0 * batch * heads * seq_q * seq_kv * (dim_qk + dim_v) * np.where(causal, 0.5, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionModel:
    """``tables``: by (head dim, causal), log of (forward duration / roofline) over (batch x heads, keys)."""

    gpu: GpuConfig
    tables: dict[tuple[int, bool], LogGrid]

    def predict(self, ops: pd.DataFrame) -> tuple[Floats, Basis]:
        """Durations in us and their basis.

        Args:
            ops: columns family, dtype, backward, batch, heads_q, heads_kv, seq_q, seq_kv, head_dim_qk,
                head_dim_v, causal
        """
        duration_us = np.empty(len(ops))
        basis = np.full(len(ops), BOUND)
        groups = ops.groupby(["dtype", "head_dim_qk", "causal"], sort=False).indices
        for (dtype, head_dim, causal), rows in groups.items():
            group = ops.iloc[rows]
            bound = _roofline_us(self.gpu, group, str(dtype))
            work = (group.batch * group.heads_q).to_numpy(np.float64)
            keys = group.seq_kv.to_numpy(np.float64)
            duration_us[rows], basis[rows] = self._forward(
                str(dtype), int(head_dim), bool(causal), bound, work, keys
            )
        family = ops.family.to_numpy(object)
        flash_ratio = FLASH_2_TIME_RATIO.get(self.gpu.compute_capability, 1.0)
        ratio = {"library": 1.0, "flash": flash_ratio, "efficient": flash_ratio * EFFICIENT_TIME_RATIO}
        backward = ops.backward.to_numpy(bool)
        duration_us *= np.array([ratio[f] for f in family])
        duration_us *= np.where(backward, np.array([BACKWARD_TIME_RATIO[f] for f in family]), 1.0)
        derived = backward | np.array([ratio[f] != 1.0 for f in family], bool)
        return duration_us, np.where(derived, BOUND, basis).astype(np.uint8)

    def _forward(
        self, dtype: str, head_dim: int, causal: bool, bound: Floats, work: Floats, keys: Floats
    ) -> tuple[Floats, Basis]:
        """From the table of the same head dim and mask, else the nearest.

        A full mask without a table is read from the causal one at twice the keys: rows as long on average.
        """
        if not self.tables or dtype not in ("bf16", "fp16", "fp8"):
            return bound / PEAK_SHARE * (1 + HALF_SHARE_KEYS / np.maximum(keys, 1.0)), np.full(
                len(keys), BOUND
            )

        def distance(key: tuple[int, bool]) -> tuple[float, bool]:
            return abs(np.log(key[0] / max(head_dim, 1))), key[1] != causal

        nearest = min(self.tables, key=distance)
        stretch = 2.0 if nearest[1] and not causal else 0.5 if causal and not nearest[1] else 1.0
        log_ratio, is_measured, inside = self.tables[nearest](work, keys * stretch)
        same = nearest == (head_dim, causal) and dtype != "fp8"
        basis = np.where(is_measured & (dtype == "bf16"), MEASURED, INTERPOLATED)
        return bound * np.exp(log_ratio), np.where(inside & same, basis, BOUND).astype(np.uint8)


def _roofline_us(gpu: GpuConfig, ops: pd.DataFrame, dtype: str) -> Floats:
    """max(FLOPs / peak, bytes of q, k, v and output / HBM rate) plus the shortest kernel."""
    columns = ("batch", "heads_q", "seq_q", "seq_kv", "head_dim_qk", "head_dim_v")
    batch, heads, seq_q, seq_kv, dim_qk, dim_v = (ops[c].to_numpy(np.float64) for c in columns)
    flops = attention_flops(batch, heads, seq_q, seq_kv, dim_qk, dim_v, ops.causal.to_numpy(bool))
    kv_heads = ops.heads_kv.to_numpy(np.float64)
    num_bytes = DTYPE_BYTES[dtype] * batch * (dim_qk + dim_v) * (heads * seq_q + kv_heads * seq_kv)
    return (
        np.maximum(flops / peak_flops(gpu, dtype), num_bytes / gpu.hbm_bytes_per_s) * 1e6 + gpu.min_kernel_us
    )


def fit_attention(gpu: GpuConfig, rows: pd.DataFrame) -> tuple[AttentionModel, dict[str, dict[str, float]]]:
    """Fits one grid per head dim and mask; the errors are those of a fit without a tenth of the shapes."""
    rows = rows.rename(columns={"head_dim": "head_dim_qk"})
    rows = rows.assign(head_dim_v=rows.head_dim_qk, family="library", backward=False)
    rows = rows[(rows.seq_q > 1) & (rows.heads_q > 0)].reset_index(drop=True)
    rows["causal"] = rows.causal.astype(bool)
    model = AttentionModel(gpu=gpu, tables=_fit_tables(gpu, rows))
    if rows.empty:
        return model, {}
    shape = rows.groupby(["batch", "seq_q", "head_dim_qk"]).ngroup().to_numpy()
    held_out = (np.random.default_rng(0).random(shape.max() + 1) < 0.1)[shape]
    trial = AttentionModel(gpu=gpu, tables=_fit_tables(gpu, rows[~held_out]))
    test = rows[held_out & (rows.heads_q == rows.heads_kv)].reset_index(drop=True)
    guess, _ = trial.predict(test)
    return model, {"attention_bf16": accuracy(guess / test.duration_us.to_numpy())}


def _fit_tables(gpu: GpuConfig, rows: pd.DataFrame) -> dict[tuple[int, bool], LogGrid]:
    tables = {}
    for (head_dim, causal), group in rows.groupby(["head_dim_qk", "causal"]):
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
        tables[(int(head_dim), bool(causal))] = fit_log_grid(axes, mean.log_ratio.to_numpy(np.float64))
    return tables
