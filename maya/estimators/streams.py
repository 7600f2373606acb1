"""Durations of kernels that stream tensors through memory: norms, elementwise kernels, reductions, ...

The bound is bytes over the streaming rate (`bounds.memory_us`). Where variants of a kind were measured on the
GPU, a regressor of the ratio to it predicts these variants; all others have the efficiency of their rule
in `features`.
"""

import numpy as np
import pandas as pd

from maya.config.schema import GpuConfig
from maya.estimators.bounds import memory_us
from maya.estimators.fits import BOUND, Basis, Fit, Fits, fit_trees
from maya.estimators.interpolation import Floats


def streams_us(gpu: GpuConfig, fits: Fits, rows: pd.DataFrame) -> tuple[Floats, Basis]:
    """Durations in us and their basis.

    Args:
        rows: columns op_kind, op, direction, dtype, rows, cols, num_bytes; efficiency and latency_us of the
            bound
    """
    num_bytes = rows.num_bytes.to_numpy(np.float64)
    duration_us = memory_us(gpu, num_bytes, rows.efficiency.to_numpy(np.float64))
    duration_us += rows.latency_us.to_numpy(np.float64)
    basis = np.full(len(rows), BOUND)
    for (op_kind, dtype), indices in rows.groupby(["op_kind", "dtype"], sort=False).indices.items():
        fit = fits.get(f"{op_kind}/{dtype}")
        if fit is None:
            continue
        assert fit.trees is not None
        group = rows.iloc[indices]
        codes = fit.trees.codes(_variants(group))
        known = codes >= 0
        if not known.any():
            continue
        measured, indices = group[known], indices[known]
        features = _tree_features(measured, codes[known])
        stream_us = memory_us(gpu, num_bytes[indices])
        log_ratio, basis[indices] = fit((stream_us,), features.__getitem__)
        duration_us[indices] = stream_us * np.exp(log_ratio)
    return duration_us, basis


def _variants(rows: pd.DataFrame) -> np.ndarray:
    return (rows.op.astype(str) + "/" + rows.direction.astype(str)).to_numpy(object)


def _tree_features(rows: pd.DataFrame, codes: Floats) -> Floats:
    sizes = (rows[c].to_numpy(np.float64) for c in ("num_bytes", "rows", "cols"))
    return np.stack([*(np.log(np.maximum(size, 1.0)) for size in sizes), codes], axis=1)


def fit_streams(gpu: GpuConfig, rows: pd.DataFrame) -> Fits:
    """One fit per kind and type."""
    fits: Fits = {}
    for (op_kind, dtype), group in rows.groupby(["op_kind", "dtype"]):
        names = _variants(group)
        variants = tuple(np.unique(names).tolist())
        codes = np.searchsorted(variants, names).astype(np.float64)
        stream_us = memory_us(gpu, group.num_bytes.to_numpy(np.float64))
        log_ratio = np.log(group.duration_us.to_numpy(np.float64) / stream_us)
        trees = fit_trees(_tree_features(group, codes), log_ratio, variants=variants)
        fits[f"{op_kind}/{dtype}"] = Fit(trees=trees)
    return fits
