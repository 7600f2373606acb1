"""What the estimator of a GPU is made from: packaged tables, files in `profiling_data`, other GPUs."""

import hashlib
from dataclasses import dataclass
from math import log
from pathlib import Path

from maya.config.compose import available_options, gpu_config
from maya.config.schema import GpuConfig
from maya.estimators.estimator import CARD
from maya.estimators.ingest import SYSTEMS
from maya.paths import profiling_data_dir


@dataclass(frozen=True, kw_only=True, slots=True)
class Lender:
    """A GPU that stands in; ``regressors`` is None where its estimator is to be made from packaged tables."""

    gpu: str
    regressors: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """``measurements``: profiles of the GPU in the user's folder; ``shipped``: its regressors.

    ``lenders``: the most alike first.
    """

    measurements: tuple[Path, ...]
    shipped: tuple[Path, ...]
    lenders: tuple[Lender, ...]

    def digest(self) -> str:
        """Of all files, so that a changed one trains again."""
        digest = hashlib.sha256()
        for path in (*self.measurements, *self.shipped, *(lender.regressors for lender in self.lenders)):
            for file in sorted(path.iterdir()) if path and path.is_dir() else [path] if path else []:
                digest.update(file.name.encode())
                digest.update(file.read_bytes())
        return digest.hexdigest()


def inputs_of(gpu: GpuConfig, measurements: Path | None = None) -> Inputs:
    """Finds them.

    Args:
        measurements: folder with a folder of profiles (Parquet) for each GPU; by default `profiling_data`
    """
    others = [gpu_config(name) for name in available_options("gpu") if name != gpu.name]
    lenders = []
    needs_tables = gpu.name not in SYSTEMS
    for other in sorted(others, key=lambda other: unlikeness(gpu, other)):
        if needs_tables and other.name in SYSTEMS:
            lenders.append(Lender(gpu=other.name, regressors=None))
            needs_tables = False
        elif regressors := _regressors(other.name):
            lenders.append(Lender(gpu=other.name, regressors=regressors))
    shipped = _regressors(gpu.name)
    return Inputs(
        measurements=tuple(sorted(((measurements or profiling_data_dir()) / gpu.name).glob("*.parquet"))),
        shipped=(shipped,) if shipped else (),
        lenders=tuple(lenders),
    )


def _regressors(gpu: str) -> Path | None:
    folder = profiling_data_dir() / gpu / "regressors"
    return folder if (folder / CARD).is_file() else None


def unlikeness(gpu: GpuConfig, other: GpuConfig) -> tuple[float, float]:
    """How far apart two GPUs are: first by architecture, then by the ratio of their memory rates."""
    generations = abs(float(other.compute_capability) - float(gpu.compute_capability))
    return generations, abs(log(other.hbm_bytes_per_s / gpu.hbm_bytes_per_s))
