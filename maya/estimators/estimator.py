"""A trained estimator of one GPU: what `train` writes and `annotate` asks. Files hold data, never code."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from maya.config.schema import GpuConfig
from maya.errors import EstimatorError
from maya.estimators.attention import AttentionModel
from maya.estimators.collectives import IntraNodeModel
from maya.estimators.gemm import GemmModel, GemmTable
from maya.estimators.interpolation import LogGrid

SCHEMA_VERSION = 1
CARD = "card.json"
ARRAYS = "tables.npz"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimator:
    """``data_digest`` is the SHA-256 of the profile it was trained on."""

    gpu: GpuConfig
    gemm: GemmModel
    attention: AttentionModel
    intra_node: IntraNodeModel
    data_digest: str


def save_estimator(estimator: Estimator, folder: Path) -> None:
    """Writes `card.json` (version, GPU, digest, index), `tables.npz` and `gemm_<dtype>.ubj` (XGBoost)."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    index: dict[str, list[dict[str, object]]] = {"gemm": [], "attention": [], "collective": []}
    for dtype, table in estimator.gemm.tables.items():
        key = f"gemm.{dtype}"
        _put_grid(arrays, key, table.grid)
        trees = f"gemm_{dtype}.ubj" if table.trees else ""
        if trees:
            (folder / trees).write_bytes(table.trees)
        index["gemm"].append({"key": key, "dtype": dtype, "off_grid": table.off_grid, "trees": trees})
    for (head_dim, causal), grid in estimator.attention.tables.items():
        key = f"attention.{head_dim}.{'causal' if causal else 'full'}"
        _put_grid(arrays, key, grid)
        index["attention"].append({"key": key, "head_dim": head_dim, "causal": causal})
    for (op, dtype, num_gpus), (sizes, log_us) in estimator.intra_node.tables.items():
        key = f"collective.{op}.{dtype}.{num_gpus}"
        arrays[f"{key}.bytes"], arrays[f"{key}.log_us"] = sizes, log_us
        index["collective"].append({"key": key, "op": op, "dtype": dtype, "num_gpus": num_gpus})
    np.savez_compressed(folder / ARRAYS, **arrays)  # type: ignore[arg-type]
    card = {
        "schema_version": SCHEMA_VERSION,
        "gpu": dataclasses.asdict(estimator.gpu),
        "data_digest": estimator.data_digest,
        "tables": index,
    }
    (folder / CARD).write_text(json.dumps(card, indent=1, sort_keys=True) + "\n")


def load_estimator(folder: Path) -> Estimator:
    """Reads an estimator, with the GPU configuration it was trained for.

    Raises:
        EstimatorError: files are missing or of another version.
    """
    try:
        card = json.loads((folder / CARD).read_text())
        arrays = dict(np.load(folder / ARRAYS, allow_pickle=False))
    except (OSError, ValueError) as error:
        raise EstimatorError(
            f"no readable estimator in {folder} ({error}): run `maya train` first"
        ) from error
    if card["schema_version"] != SCHEMA_VERSION:
        raise EstimatorError(
            f"the estimator in {folder} has schema {card['schema_version']}, this version reads "
            f"{SCHEMA_VERSION}: run `maya train` again"
        )
    gpu = GpuConfig(**card["gpu"])
    gemm = {
        entry["dtype"]: GemmTable(
            grid=_get_grid(arrays, entry["key"]),
            trees=(folder / entry["trees"]).read_bytes() if entry["trees"] else b"",
            off_grid=entry["off_grid"],
        )
        for entry in card["tables"]["gemm"]
    }
    attention = {
        (entry["head_dim"], entry["causal"]): _get_grid(arrays, entry["key"])
        for entry in card["tables"]["attention"]
    }
    collectives = {
        (entry["op"], entry["dtype"], entry["num_gpus"]): (
            arrays[f"{entry['key']}.bytes"],
            arrays[f"{entry['key']}.log_us"],
        )
        for entry in card["tables"]["collective"]
    }
    return Estimator(
        gpu=gpu,
        gemm=GemmModel(gpu=gpu, tables=gemm),
        attention=AttentionModel(gpu=gpu, tables=attention),
        intra_node=IntraNodeModel(gpu=gpu, tables=collectives),
        data_digest=card["data_digest"],
    )


def _put_grid(arrays: dict[str, np.ndarray], key: str, grid: LogGrid) -> None:
    for dim, axis in enumerate(grid.axes):
        arrays[f"{key}.axis{dim}"] = axis
    arrays[f"{key}.values"] = grid.values.astype(np.float32)
    arrays[f"{key}.is_measured"] = grid.is_measured


def _get_grid(arrays: dict[str, np.ndarray], key: str) -> LogGrid:
    values = arrays[f"{key}.values"].astype(np.float64)
    axes = tuple(arrays[f"{key}.axis{dim}"] for dim in range(values.ndim))
    return LogGrid(axes=axes, values=values, is_measured=arrays[f"{key}.is_measured"])
