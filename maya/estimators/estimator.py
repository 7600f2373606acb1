"""A trained estimator of one GPU: what `train` writes and `annotate` asks. Files hold data, never code."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from maya.config.schema import GpuConfig
from maya.errors import EstimatorError
from maya.estimators.attention import attention_us
from maya.estimators.collectives import IntraNodeModel
from maya.estimators.conv import conv_us, geometry
from maya.estimators.fits import Basis, Fit, Fits, Trees
from maya.estimators.gemm import gemm_us
from maya.estimators.interpolation import Floats, LogGrid
from maya.estimators.intervals import Intervals
from maya.estimators.streams import streams_us

SCHEMA_VERSION = 2
CARD = "card.json"
ARRAYS = "tables.npz"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimator:
    """``card`` says what it was made from: sources with rows and hashes, the command, the schema version."""

    gpu: GpuConfig
    fits: Fits
    intervals: Intervals = field(default_factory=Intervals)
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def intra_node(self) -> IntraNodeModel:
        return IntraNodeModel.of(self.gpu, self.fits)

    @property
    def lenders(self) -> dict[str, str]:
        """By op kind, the other GPU whose efficiency stands in."""
        return {group.split("/")[0]: fit.lender for group, fit in self.fits.items() if fit.lender}

    def predict(self, op_kind: str, rows: pd.DataFrame) -> tuple[Floats, Basis]:
        """Durations in us, and their basis, of operations of one kind.

        Args:
            rows: the columns that `op_kinds` lists as features of the kind, and dtype; streaming kinds also
                efficiency and latency_us of the bound
        """
        if op_kind == "attention":
            return attention_us(self.gpu, self.fits, rows)
        if op_kind == "collective":
            return self._predict_collectives(rows)
        if op_kind not in ("gemm", "conv"):
            return streams_us(self.gpu, self.fits, rows)
        duration_us = np.empty(len(rows))
        basis = np.empty(len(rows), np.uint8)
        for dtype, indices in rows.groupby("dtype", sort=False).indices.items():
            group = rows.iloc[indices]
            if op_kind == "gemm":
                m, n, k, batch = (group[c].to_numpy(np.float64) for c in ("m", "n", "k", "batch"))
                duration_us[indices], basis[indices] = gemm_us(
                    self.gpu, self.fits, m, n, k, batch, str(dtype)
                )
            else:
                duration_us[indices], basis[indices] = conv_us(
                    self.gpu, self.fits, geometry(group), str(dtype)
                )
        return duration_us, basis

    def _predict_collectives(self, rows: pd.DataFrame) -> tuple[Floats, Basis]:
        model = self.intra_node
        # Tables of types that the switch can sum are stored as fp16, see `collectives`.
        names = rows.dtype.map({"int8": "int8"}).fillna("float16")
        answers = [
            model.predict_us(op, dtype, int(num_gpus), float(num_bytes), link)
            for op, dtype, num_gpus, num_bytes, link in zip(
                rows.op, names, rows.num_gpus, rows.num_bytes, rows.link, strict=True
            )
        ]
        duration_us, basis = (np.array(column) for column in zip(*answers, strict=True))
        return duration_us.astype(np.float64), basis.astype(np.uint8)


def save_estimator(estimator: Estimator, folder: Path) -> None:
    """Writes `card.json` (version, GPU, sources, index), `tables.npz` and an XGBoost model (.ubj) a group."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    index: dict[str, dict[str, Any]] = {}
    for group, fit in estimator.fits.items():
        entry: dict[str, Any] = {"way": fit.way, "lender": fit.lender, "axes": 0}
        if fit.grid is not None:
            entry["axes"] = len(fit.grid.axes)
            for dim, axis in enumerate(fit.grid.axes):
                arrays[f"{group}.axis{dim}"] = axis
            arrays[f"{group}.values"] = fit.grid.values.astype(np.float32)
            arrays[f"{group}.is_measured"] = fit.grid.is_measured
        if fit.trees is not None and fit.way != "grid":
            entry["trees"] = f"{group.replace('/', '-')}.ubj"
            entry["variants"] = list(fit.trees.variants)
            (folder / entry["trees"]).write_bytes(fit.trees.model)
            arrays[f"{group}.low"], arrays[f"{group}.high"] = fit.trees.low, fit.trees.high
        index[group] = entry
    np.savez_compressed(folder / ARRAYS, **arrays)  # type: ignore[arg-type]
    card = {
        "schema_version": SCHEMA_VERSION,
        "gpu": dataclasses.asdict(estimator.gpu),
        "made_from": estimator.card,
        "intervals": estimator.intervals.as_json(),
        "fits": index,
    }
    (folder / CARD).write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")


def load_estimator(folder: Path) -> Estimator:
    """Reads an estimator, with the GPU configuration it was trained for.

    Raises:
        EstimatorError: files are missing or of another version.
    """
    try:
        card = json.loads((folder / CARD).read_text())
        if card["schema_version"] != SCHEMA_VERSION:
            raise EstimatorError(
                f"the estimator in {folder} has schema {card['schema_version']}, this version reads "
                f"{SCHEMA_VERSION}: run `maya train` again"
            )
        arrays = dict(np.load(folder / ARRAYS, allow_pickle=False))
        fits = {group: _load_fit(folder, group, entry, arrays) for group, entry in card["fits"].items()}
    except (OSError, ValueError, KeyError) as error:
        raise EstimatorError(
            f"no readable estimator in {folder} ({error}): run `maya train` first"
        ) from error
    return Estimator(
        gpu=GpuConfig(**card["gpu"]),
        fits=fits,
        intervals=Intervals.from_json(card["intervals"]),
        card=card["made_from"],
    )


def _load_fit(folder: Path, group: str, entry: dict[str, Any], arrays: dict[str, np.ndarray]) -> Fit:
    grid = trees = None
    if entry["axes"]:
        grid = LogGrid(
            axes=tuple(arrays[f"{group}.axis{dim}"] for dim in range(entry["axes"])),
            values=arrays[f"{group}.values"].astype(np.float64),
            is_measured=arrays[f"{group}.is_measured"],
        )
    if "trees" in entry:
        trees = Trees(
            model=(folder / entry["trees"]).read_bytes(),
            low=arrays[f"{group}.low"],
            high=arrays[f"{group}.high"],
            variants=tuple(entry["variants"]),
        )
    return Fit(grid=grid, trees=trees, way=entry["way"], lender=entry["lender"])
