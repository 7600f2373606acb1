"""Durations of matrix products, from tables where there are any.

Shapes follow the tables: y[m,n] = x[m,k] w[k,n], row-major. A column-major C(m_c x n_c) of cuBLAS is
row-major y[n_c, m_c], so m = n_c and n = m_c. Most tables hold the transposed-normal layout alone; the
other layouts are taken to be as fast, which holds within a few percent for 2-byte types.
"""

import numpy as np
import pandas as pd

from maya.config.schema import GpuConfig
from maya.estimators.bounds import DTYPE_BYTES, gemm_roofline_us, gemm_tiled_us
from maya.estimators.fits import BOUND, EXTRAPOLATED, INTERPOLATED, MEASURED, Basis, Fit, Fits, fit_trees
from maya.estimators.interpolation import Floats, fit_log_grid, grid_fill

# Types whose GEMMs run on the same units at the same rate as the measured type.
SAME_RATE = {"fp16": "bf16", "bf16": "fp16", "int8": "fp8"}

# Rows that fill less of the grid they span are a sample of shapes, not a table.
MIN_GRID_FILL = 0.25


def group_of_gemm(dtype: str) -> str:
    return f"gemm/{dtype}"


def gemm_us(
    gpu: GpuConfig, fits: Fits, m: Floats, n: Floats, k: Floats, batch: Floats, dtype: str
) -> tuple[Floats, Basis]:
    """Durations in us of GEMMs of one type, and their basis.

    On a table of single products a batched one takes the efficiency of one with as many rows in all; its own
    bytes count.
    """
    source = next((d for d in (dtype, SAME_RATE.get(dtype, "")) if group_of_gemm(d) in fits), None)
    if source is None:
        return gemm_tiled_us(gpu, m, n, k, batch, dtype), np.full(len(m), BOUND)
    fit = fits[group_of_gemm(source)]
    bound_us = gemm_roofline_us(gpu, m, n, k, batch, dtype)
    is_batched = batch > 1
    if fit.grid is None:
        log_ratio, basis = fit(
            (m, n, k), lambda rows: tree_features(gpu, dtype, *_take(rows, m, n, k, batch))
        )
    else:
        rows_in_all, columns = _orient(m * batch, n, fit)
        one = np.ones(len(m))
        log_ratio, basis = fit(
            (rows_in_all, columns, k),
            lambda rows: tree_features(gpu, dtype, *_take(rows, rows_in_all, columns, k, one)),
        )
        basis = np.where(is_batched & (basis <= INTERPOLATED), EXTRAPOLATED, basis)
    if source != dtype:
        basis = np.where(basis == MEASURED, INTERPOLATED, basis)
    return bound_us * np.exp(log_ratio), basis.astype(np.uint8)


def _take(rows: np.ndarray, *columns: Floats) -> list[Floats]:
    return [column[rows] for column in columns]


def _orient(m: Floats, n: Floats, fit: Fit) -> tuple[Floats, Floats]:
    """Swaps rows and columns of a product that is off the grid as it stands, but not when transposed."""
    assert fit.grid is not None
    largest = fit.grid.axes[0][-1]
    beyond = (m > largest) & (n <= largest) & (n < m)
    return np.where(beyond, n, m), np.where(beyond, m, n)


def tree_features(gpu: GpuConfig, dtype: str, m: Floats, n: Floats, k: Floats, batch: Floats) -> Floats:
    """Features of the regressor: sizes, bounds, how the output fills tiles and waves, alignment."""
    waves_128 = np.ceil(m / 128) * np.ceil(n / 128) * batch / gpu.num_sms
    waves_256 = np.ceil(m / 128) * np.ceil(n / 256) * batch / gpu.num_sms
    roofline_us = gemm_roofline_us(gpu, m, n, k, batch, dtype)
    tiled_us = gemm_tiled_us(gpu, m, n, k, batch, dtype)
    num_bytes = DTYPE_BYTES[dtype] * batch * (m * n + m * k + n * k)
    logs = [
        np.log(x)
        for x in (m, n, k, batch, m * n, batch * m * n * k, num_bytes, roofline_us, tiled_us / roofline_us)
    ]
    shares = [waves_128 % 1, waves_256 % 1, m % 8 / 8, m % 128 / 128]
    return np.stack([*logs, np.log(waves_256), *shares], axis=1)


def fit_gemm(gpu: GpuConfig, rows: pd.DataFrame) -> Fits:
    """One fit per type."""
    fits: Fits = {}
    for dtype, group in rows.groupby("dtype"):
        m, n, k, batch = (group[c].to_numpy(np.float64) for c in ("m", "n", "k", "batch"))
        duration_us = group.duration_us.to_numpy(np.float64)
        log_ratio = np.log(duration_us / gemm_roofline_us(gpu, m, n, k, batch, str(dtype)))
        is_table = (batch == 1).all() and grid_fill((m, n, k)) >= MIN_GRID_FILL
        fits[group_of_gemm(str(dtype))] = Fit(
            grid=fit_log_grid((m, n, k), log_ratio) if is_table else None,
            trees=fit_trees(tree_features(gpu, str(dtype), m, n, k, batch), log_ratio),
            way="mean" if is_table else "trees",
        )
    return fits
