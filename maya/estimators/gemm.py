"""Durations of matrix products, from tables where there are any.

Shapes follow the tables: y[m,n] = x[m,k] W[n,k]^T, row-major. A column-major C(m_c x n_c) of cuBLAS is
row-major y[n_c, m_c], so m = n_c and n = m_c. The tables hold the transposed-normal layout alone; the
other layouts are taken to be as fast, which holds within a few percent for 2-byte types.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from maya.config.schema import GpuConfig
from maya.estimators.annotation import BASES
from maya.estimators.bounds import DTYPE_BYTES, gemm_roofline_us, gemm_tiled_us
from maya.estimators.interpolation import Floats, LogGrid, fit_log_grid

Basis = NDArray[np.uint8]
MEASURED, INTERPOLATED, BOUND, MODEL = (
    np.uint8(BASES.index(b)) for b in ("measured", "interpolated", "bound", "model")
)

# Types whose GEMMs run on the same units at the same rate as the measured type.
SAME_RATE = {"fp16": "bf16", "bf16": "fp16", "int8": "fp8"}

# Twice as many at half the learning rate gain 0.1 points of held-out error and take twice as long.
BOOST_ROUNDS = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class GemmTable:
    """What was measured for one type: log of (measured duration / roofline) on the grid of (m, n, k).

    ``trees`` is a regressor (XGBoost, UBJSON bytes) of the same logarithm; ``off_grid`` says what
    predicts between the points: "grid", "trees" or "mean" of the two, whichever was best on held-out shapes.
    """

    grid: LogGrid
    trees: bytes
    off_grid: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GemmModel:
    gpu: GpuConfig
    tables: dict[str, GemmTable]

    def predict(self, m: Floats, n: Floats, k: Floats, batch: Floats, dtype: str) -> tuple[Floats, Basis]:
        """Durations in us of GEMMs of one type, and their basis.

        A batched product takes the efficiency of one with as many rows in all; its own bytes count.
        """
        source = dtype if dtype in self.tables else SAME_RATE.get(dtype, "")
        if source not in self.tables:
            return gemm_tiled_us(self.gpu, m, n, k, batch, dtype), np.full(len(m), BOUND)
        table = self.tables[source]
        rows, columns = _orient(m * batch, n, table.grid)
        log_ratio, is_measured, inside = predict_log_ratio(self.gpu, table, source, rows, columns, k)
        bound = gemm_roofline_us(self.gpu, m, n, k, batch, dtype)
        basis = np.where(is_measured, MEASURED, INTERPOLATED)
        if source != dtype:
            basis = np.full(len(m), INTERPOLATED)
        basis = np.where(inside & (batch == 1), basis, BOUND).astype(np.uint8)
        return bound * np.exp(log_ratio), basis


def _orient(m: Floats, n: Floats, grid: LogGrid) -> tuple[Floats, Floats]:
    """Swaps rows and columns of a product that is off the grid as it stands, but not when transposed."""
    beyond = (m > grid.axes[0][-1]) & (n <= grid.axes[0][-1]) & (n < m)
    return np.where(beyond, n, m), np.where(beyond, m, n)


def predict_log_ratio(
    gpu: GpuConfig, table: GemmTable, dtype: str, m: Floats, n: Floats, k: Floats
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Log of (duration / roofline), whether that very point was measured, whether it is inside the grid."""
    from_grid, is_measured, inside = table.grid(m, n, k)
    ask_trees = inside & ~is_measured
    if table.off_grid == "grid" or not ask_trees.any():
        return from_grid, is_measured, inside
    import xgboost

    trees = xgboost.Booster(params={"nthread": 1})
    trees.load_model(bytearray(table.trees))
    features = tree_features(gpu, dtype, m[ask_trees], n[ask_trees], k[ask_trees])
    from_trees = trees.predict(xgboost.DMatrix(features, nthread=1)).astype(np.float64)
    share = 1.0 if table.off_grid == "trees" else 0.5
    log_ratio = from_grid.copy()
    log_ratio[ask_trees] = share * from_trees + (1 - share) * from_grid[ask_trees]
    return log_ratio, is_measured, inside


def tree_features(gpu: GpuConfig, dtype: str, m: Floats, n: Floats, k: Floats) -> Floats:
    """Features of the regressor: sizes, roofline, how the output fills tiles and waves, alignment."""
    waves_128 = np.ceil(m / 128) * np.ceil(n / 128) / gpu.num_sms
    waves_256 = np.ceil(m / 128) * np.ceil(n / 256) / gpu.num_sms
    roofline = gemm_roofline_us(gpu, m, n, k, np.ones(len(m)), dtype)
    num_bytes = DTYPE_BYTES[dtype] * (m * n + m * k + n * k)
    logs = [np.log(x) for x in (m, n, k, m * n, m * n * k, num_bytes, roofline, waves_256)]
    return np.stack([*logs, waves_128 % 1, waves_256 % 1, m % 8, m % 128], axis=1)


def fit_gemm(gpu: GpuConfig, rows: pd.DataFrame) -> tuple[GemmModel, dict[str, dict[str, float]]]:
    """Fits one table per type and measures each way to predict off the grid on held-out (n, k) pairs.

    Returns:
        the model, and by type the errors (see `accuracy`) of each way
    """
    tables: dict[str, GemmTable] = {}
    report: dict[str, dict[str, float]] = {}
    for dtype, group in rows.groupby("dtype"):
        m, n, k = (group[c].to_numpy(np.float64) for c in ("m", "n", "k"))
        duration_us = group.duration_us.to_numpy(np.float64)
        log_ratio = np.log(duration_us / gemm_roofline_us(gpu, m, n, k, np.ones(len(m)), str(dtype)))
        held_out = _held_out_pairs(n, k)
        trial = GemmTable(
            grid=_fit_on(m, n, k, log_ratio, ~held_out),
            trees=_fit_trees(gpu, str(dtype), m, n, k, log_ratio, ~held_out),
            off_grid="grid",
        )
        errors: dict[str, float] = {}
        for way in ("grid", "trees", "mean"):
            table = GemmTable(grid=trial.grid, trees=trial.trees, off_grid=way)
            guess, _, _ = predict_log_ratio(gpu, table, str(dtype), m[held_out], n[held_out], k[held_out])
            errors |= {f"{way}_{key}": v for key, v in accuracy(np.exp(guess - log_ratio[held_out])).items()}
        best = min(("grid", "trees", "mean"), key=lambda way: errors[f"{way}_mape"])
        everything = np.ones(len(m), bool)
        tables[str(dtype)] = GemmTable(
            grid=_fit_on(m, n, k, log_ratio, everything),
            trees=b"" if best == "grid" else _fit_trees(gpu, str(dtype), m, n, k, log_ratio, everything),
            off_grid=best,
        )
        report[f"gemm_{dtype}"] = errors
    return GemmModel(gpu=gpu, tables=tables), report


def _held_out_pairs(n: Floats, k: Floats, share: float = 0.12) -> NDArray[np.bool_]:
    """A fixed sample of (n, k) pairs, all their m: rows of one pair are near duplicates of each other."""
    pairs, pair_of_row = np.unique(np.stack([n, k], axis=1), axis=0, return_inverse=True)
    chosen = np.random.default_rng(0).random(len(pairs)) < share
    return chosen[pair_of_row.ravel()]


def _fit_on(m: Floats, n: Floats, k: Floats, log_ratio: Floats, keep: NDArray[np.bool_]) -> LogGrid:
    return fit_log_grid((m[keep], n[keep], k[keep]), log_ratio[keep])


def _fit_trees(
    gpu: GpuConfig, dtype: str, m: Floats, n: Floats, k: Floats, log_ratio: Floats, keep: NDArray[np.bool_]
) -> bytes:
    import xgboost

    data = xgboost.DMatrix(
        tree_features(gpu, dtype, m[keep], n[keep], k[keep]), label=log_ratio[keep], nthread=1
    )
    params = {
        "max_depth": 8,
        "eta": 0.2,
        "subsample": 0.8,
        "colsample_bytree": 0.8,
        "tree_method": "hist",
        "seed": 0,
        "nthread": 1,  # threads of one small fit wait for each other longer than they help on a busy machine
    }
    return bytes(xgboost.train(params, data, num_boost_round=BOOST_ROUNDS).save_raw("ubj"))


def accuracy(ratio: Floats) -> dict[str, float]:
    """Mean, median and 90th percentile of the absolute relative error of predicted / measured."""
    error = np.abs(ratio - 1)
    return {
        "mape": float(error.mean()),
        "median_ape": float(np.median(error)),
        "p90_ape": float(np.quantile(error, 0.9)),
        "count": float(len(error)),
    }
