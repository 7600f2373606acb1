"""Splits a profile into rows to fit and rows to test on, and predicts the latter."""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from maya.config.schema import GpuConfig
from maya.estimators.attention import attention_flops, fit_attention, group_of_attention
from maya.estimators.collectives import fit_collectives
from maya.estimators.conv import fit_conv, geometry
from maya.estimators.estimator import Estimator
from maya.estimators.fits import WAYS, Fits
from maya.estimators.gemm import fit_gemm, group_of_gemm
from maya.estimators.interpolation import Floats
from maya.estimators.op_kinds import OP_KINDS, STREAM_KINDS
from maya.estimators.streams import fit_streams

TEST_SHARE = 0.15


def fit_rows(gpu: GpuConfig, rows: pd.DataFrame) -> Fits:
    """Fits all kinds on the rows of a profile; `train` decides which rows are fit to be learned from."""
    fitters = {"gemm": fit_gemm, "attention": fit_attention, "conv": fit_conv, "collective": fit_collectives}
    fits: Fits = {}
    for op_kind, fit in fitters.items():
        fits |= fit(gpu, rows[rows.op_kind == op_kind])
    return fits | fit_streams(gpu, rows[rows.op_kind.isin(STREAM_KINDS)])


def held_out_shapes(rows: pd.DataFrame, share: float = TEST_SHARE) -> NDArray[np.bool_]:
    """A fixed sample of shapes (`OpKind.shape`), with all their rows.

    Rows of one shape are near duplicates of each other: random rows would flatter the fit. The smallest and
    the largest size of a collective stay in, as a table is not asked beyond them here.
    """
    chosen = np.zeros(len(rows), bool)
    for op_kind, indices in rows.groupby("op_kind").indices.items():
        group = rows.iloc[indices]
        shape = group.groupby(list(OP_KINDS[str(op_kind)].shape), dropna=False).ngroup().to_numpy()
        test = (np.random.default_rng(0).random(shape.max() + 1) < share)[shape]
        if op_kind == "collective":
            ends = group.groupby(["op", "dtype", "num_gpus", "num_nodes"]).num_bytes
            test &= (group.num_bytes > ends.transform("min")).to_numpy()
            test &= (group.num_bytes < ends.transform("max")).to_numpy()
        chosen[indices] = test
    return chosen


def largest_tenth(rows: pd.DataFrame) -> NDArray[np.bool_]:
    """The tenth of each kind and type with the most FLOPs, or bytes where there are none."""
    chosen = np.zeros(len(rows), bool)
    for (op_kind, _), indices in rows.groupby(["op_kind", "dtype"]).indices.items():
        size = _size(str(op_kind), rows.iloc[indices])
        chosen[indices] = size > np.quantile(size, 0.9)
    return chosen


def _size(op_kind: str, rows: pd.DataFrame) -> Floats:
    match op_kind:
        case "gemm":
            return rows[["batch", "m", "n", "k"]].to_numpy(np.float64).prod(axis=1)
        case "attention":
            return attention_flops(rows)
        case "conv":
            return geometry(rows).flops
        case _:
            return rows.num_bytes.to_numpy(np.float64)


def predict_rows(estimator: Estimator, rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of a profile with columns predicted_us and basis."""
    parts = []
    for op_kind, group in rows.groupby("op_kind"):
        if op_kind in STREAM_KINDS:
            group = group.assign(efficiency=1.0, latency_us=0.0)
        predicted_us, basis = estimator.predict(str(op_kind), group)
        parts.append(group.assign(predicted_us=predicted_us, basis=basis))
    return pd.concat(parts)


def choose_ways(gpu: GpuConfig, fits: Fits, test: pd.DataFrame) -> Fits:
    """The fits with, for each that has a grid and a regressor, the way that was best on the held-out rows."""
    both = {group for group, fit in fits.items() if fit.grid is not None and fit.trees is not None}
    test = test[test.op_kind.isin({group.split("/")[0] for group in both})]
    if test.empty:
        return fits
    errors = {}
    for way in WAYS:
        trial = {group: replace(fit, way=way) if group in both else fit for group, fit in fits.items()}
        predicted = predict_rows(Estimator(gpu=gpu, fits=trial), test)
        error = (predicted.predicted_us / predicted.duration_us - 1).abs()
        errors[way] = error.groupby(_group_of_rows(predicted)).mean()
    best = pd.DataFrame(errors).idxmin(axis=1)
    return {group: replace(fit, way=best[group]) if group in best else fit for group, fit in fits.items()}


def _group_of_rows(rows: pd.DataFrame) -> pd.Series:
    groups = [
        group_of_gemm(dtype) if kind == "gemm" else group_of_attention(int(head_dim or 0), bool(causal))
        for kind, dtype, head_dim, causal in zip(
            rows.op_kind, rows.dtype, rows.head_dim.fillna(0), rows.causal, strict=True
        )
    ]
    return pd.Series(groups, index=rows.index)
