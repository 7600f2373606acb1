"""A job as a folder of Parquet files."""

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from maya.collate.job import Communicator, Job, RankTrace
from maya.collate.memory_profile import read_profile
from maya.errors import TraceError
from maya.trace.triton_kernels import triton_kernel

SCHEMA_VERSION = 2
FILE_NAME = "job.json"


def write_job(job: Job, path: Path) -> None:
    """Writes a job to the folder ``path``, which appears (or is replaced) when it is whole.

    job.json holds what is no table; ``rank00000/`` has ops, details.<kind> and rendezvous of a rank.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        for rank in job.ranks:
            _write_rank(rank, temporary / f"rank{rank.rank:05d}")
        _column("arrivals", job.rendezvous_arrivals).to_parquet(temporary / "rendezvous.parquet")
        header = {
            "schema_version": SCHEMA_VERSION,
            "world_size": job.world_size,
            "gpus_per_node": job.gpus_per_node,
            "gpu": job.gpu,
            "ranks": [rank.rank for rank in job.ranks],
            "communicators": [asdict(communicator) for communicator in job.communicators],
            "unemulated_calls": job.unemulated_calls,
            "made_up_reads": job.made_up_reads,
            "calls": job.calls,
            "triton_kernels": [asdict(kernel) for kernel in job.triton_kernels.values()],
        }
        (temporary / FILE_NAME).write_text(json.dumps(header, indent=1) + "\n")
        temporary.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        temporary.replace(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_job(path: Path) -> Job:
    """Reads a job that `write_job` wrote.

    Raises:
        TraceError: the folder holds none, a damaged one, or one of another version.
    """
    try:
        header: dict[str, Any] = json.loads((path / FILE_NAME).read_text())
        version = header["schema_version"]
    except FileNotFoundError:
        raise TraceError(
            f"{path} holds no collated job ({FILE_NAME} is missing). Collate the traces first."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise TraceError(f"{path / FILE_NAME} is damaged. Collate the traces again.") from None
    if version != SCHEMA_VERSION:
        raise TraceError(
            f"{path} has job schema version {version}, and this Maya reads {SCHEMA_VERSION}. "
            "Collate the traces again."
        )
    try:
        return _read_tables(path, header)
    except (OSError, ValueError, KeyError, TypeError) as error:  # as pyarrow's errors are, too
        raise TraceError(f"{path} is damaged ({error}). Collate the traces again.") from None


def _read_tables(path: Path, header: dict[str, Any]) -> Job:
    return Job(
        world_size=header["world_size"],
        gpus_per_node=header["gpus_per_node"],
        gpu=header["gpu"],
        ranks=[_read_rank(path / f"rank{rank:05d}") for rank in header["ranks"]],
        communicators=[
            Communicator(ranks=tuple(communicator["ranks"]), label=communicator["label"])
            for communicator in header["communicators"]
        ],
        rendezvous_arrivals=pd.read_parquet(path / "rendezvous.parquet")["arrivals"].to_numpy(),
        unemulated_calls=header["unemulated_calls"],
        made_up_reads=header["made_up_reads"],
        calls=header["calls"],
        triton_kernels={row["code"]: triton_kernel(row) for row in header["triton_kernels"]},
    )


_SCALARS = (
    "rank",
    "members",
    "num_iterations",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_device_bytes",
    "peak_nccl_bytes",
)


def _write_rank(rank: RankTrace, folder: Path) -> None:
    folder.mkdir()
    rank.ops.to_parquet(folder / "ops.parquet")
    _column("rendezvous", rank.rendezvous).to_parquet(folder / "rendezvous.parquet")
    for kind, details in rank.details.items():
        details.to_parquet(folder / f"details.{kind}.parquet")
    scalars = {name: getattr(rank, name) for name in _SCALARS}
    (folder / "rank.json").write_text(json.dumps(scalars) + "\n")
    if rank.memory_profile is not None:
        (folder / "memory.json").write_text(json.dumps(asdict(rank.memory_profile)))


def _read_rank(folder: Path) -> RankTrace:
    scalars = json.loads((folder / "rank.json").read_text())
    scalars["members"] = tuple(scalars["members"])
    return RankTrace(
        ops=pd.read_parquet(folder / "ops.parquet"),
        details={
            path.name.split(".")[1]: pd.read_parquet(path)
            for path in sorted(folder.glob("details.*.parquet"))
        },
        rendezvous=pd.read_parquet(folder / "rendezvous.parquet")["rendezvous"].to_numpy(),
        memory_profile=read_profile(folder / "memory.json"),
        **scalars,
    )


def _column(name: str, values: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({name: np.asarray(values, dtype=np.int64)})
