"""Turns profiles into the estimator of a GPU."""

import hashlib
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from maya.config.schema import GpuConfig
from maya.errors import EstimatorError
from maya.estimators.estimator import Estimator, load_estimator, save_estimator
from maya.estimators.fits import Fits
from maya.estimators.gemm import SAME_RATE, group_of_gemm
from maya.estimators.held_out import choose_ways, fit_rows, held_out_shapes, predict_rows
from maya.estimators.intervals import Intervals, calibrate
from maya.estimators.profile_schema import read_profiles

log = logging.getLogger(__name__)

# Kinds whose efficiency carries over between GPUs. That of memory-bound kernels does not: on GPUs with
# measurements of both, a borrowed regressor is further off than the bound.
BORROWED_KINDS = ("gemm", "attention", "conv")
DRY_RUN = "dry run"


def train(
    profiles: Sequence[Path],
    gpu: GpuConfig,
    output_dir: Path,
    *,
    shipped: Sequence[Path] = (),
    lenders: Sequence[Path] = (),
) -> None:
    """Trains on profiles of ``gpu`` and writes the estimator to ``output_dir``.

    Kinds and types without rows come from ``shipped``, estimators of the same GPU, else from ``lenders``,
    estimators of other GPUs in the order of their likeness; what is then left is a bound.

    Raises:
        EstimatorError: a profile is unreadable, or comes from a dry run.
    """
    rows, dropped = read_profiles(profiles)
    if (rows.harness == DRY_RUN).any():
        raise EstimatorError(
            f"{', '.join(map(str, profiles))}: rows of a dry run are no measurements; profile on a real GPU"
        )
    estimator = fit_estimator(gpu, usable_rows(rows, gpu))
    fits, bands = dict(estimator.fits), dict(estimator.intervals.bands)
    for folder in shipped:
        own = load_estimator(folder)
        fits = own.fits | fits
        bands = own.intervals.bands | bands
    for folder in lenders:
        lender = load_estimator(folder)
        borrowed = _borrow(lender, fits)
        fits |= borrowed
        lent = {(group.split("/")[0], group.split("/")[1]) for group in borrowed}
        bands |= {key: band for key, band in lender.intervals.bands.items() if key in lent - set(bands)}
    card: dict[str, Any] = {
        "rows": {str(source): int(count) for source, count in rows.source.value_counts().items()},
        "rows_dropped": dropped,
        "files_sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in profiles},
        "shipped": [folder.parent.name for folder in shipped],
        "lenders": sorted({fit.lender for fit in fits.values() if fit.lender}),
        "command": f"maya train {gpu.name} " + " ".join(f"--profile {path.name}" for path in profiles),
    }
    write_estimator(Estimator(gpu=gpu, fits=fits, intervals=Intervals(bands=bands), card=card), output_dir)


def usable_rows(rows: pd.DataFrame, gpu: GpuConfig) -> pd.DataFrame:
    """Rows of this GPU that time one kernel: an operator's several kernels must not teach what one takes."""
    return rows[(rows.gpu == gpu.name) & (rows.scope == "kernel")].reset_index(drop=True)


def fit_estimator(gpu: GpuConfig, rows: pd.DataFrame) -> Estimator:
    """Fits on all rows; a first fit without some of the shapes chooses how to predict, and how sure it is."""
    if rows.empty:
        return Estimator(gpu=gpu, fits={})
    test = held_out_shapes(rows)
    trial = choose_ways(gpu, fit_rows(gpu, rows[~test]), rows[test])
    predicted = predict_rows(Estimator(gpu=gpu, fits=trial), rows[test])
    ways = {group: fit.way for group, fit in trial.items()}
    fits = {group: replace(fit, way=ways.get(group, fit.way)) for group, fit in fit_rows(gpu, rows).items()}
    return Estimator(gpu=gpu, fits=fits, intervals=calibrate(predicted))


def _borrow(lender: Estimator, own: Fits) -> Fits:
    """Groups of kinds that carry over between GPUs and that ``own`` lacks."""
    borrowed: Fits = {}
    has_attention = any(group.startswith("attention/") for group in own)
    for group, fit in lender.fits.items():
        kind, dtype, *_ = group.split("/")
        if kind not in BORROWED_KINDS or group in own or fit.lender:
            continue
        if kind == "attention" and has_attention:
            continue
        if kind == "gemm" and group_of_gemm(SAME_RATE.get(dtype, dtype)) in own:
            continue
        borrowed[group] = replace(fit, lender=lender.gpu.name)
    return borrowed


def write_estimator(estimator: Estimator, output_dir: Path) -> None:
    """Writes an estimator's folder, which then is complete or as it was before."""
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output_dir.parent) as scratch:
        save_estimator(estimator, Path(scratch))
        output_dir.mkdir(exist_ok=True)
        for stale in output_dir.glob("*.ubj"):
            stale.unlink()
        for file in sorted(Path(scratch).iterdir()):
            file.replace(output_dir / file.name)
    log.info("%s: %d fits in %s", estimator.gpu.name, len(estimator.fits), output_dir)
