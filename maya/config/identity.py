"""Names of jobs and traces: a digest of everything that they depend on, and nothing else."""

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from maya.config.schema import DEVICE_PROPERTIES, Builtin, GpuConfig, JobConfig
from maya.config.validate import world_size
from maya.paths import write_whole

SCHEMA_VERSION = 1  # of the configuration; part of every id
ID_HEX_DIGITS = 12


def job_to_dict(job: JobConfig) -> dict[str, Any]:
    """The job as builtin values with sorted keys, for rules, YAML and digests."""
    sorted_job: dict[str, Any] = _sort(asdict(job))
    return sorted_job


def job_from_dict(values: dict[str, Any]) -> JobConfig:
    """The inverse of ``job_to_dict``."""
    job = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(JobConfig), values))
    assert isinstance(job, JobConfig)
    return job


def gpu_to_dict(gpu: GpuConfig) -> dict[str, Any]:
    """The ``gpu`` part of ``job_to_dict``."""
    sorted_gpu: dict[str, Any] = _sort(asdict(gpu))
    return sorted_gpu


def gpu_from_dict(values: dict[str, Any]) -> GpuConfig:
    """The ``gpu`` part of ``job_to_dict`` as an object."""
    gpu = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(GpuConfig), values))
    assert isinstance(gpu, GpuConfig)
    return gpu


def job_id(job: JobConfig) -> str:
    """12 hex digits that name a job: its whole configuration, apart from limits of time."""
    values = asdict(job)
    del values["capture"]["timeout_s"]
    return content_id(values)


def trace_id(job: JobConfig) -> str:
    """12 hex digits that name the traces of a job.

    They depend on what the program can see: the device, the model, the recipe and how many ranks on how
    many GPUs a node; neither on the network nor on speeds, so jobs that differ in those share traces.
    """
    capture = asdict(job.capture)
    del capture["timeout_s"]
    return content_id(
        {
            "device": device_properties(job.gpu),
            "model": asdict(job.model),
            "framework": asdict(job.framework),
            "capture": capture,
            "world_size": world_size(job),
            "gpus_per_node": job.cluster.gpus_per_node,
        }
    )


def device_properties(gpu: GpuConfig) -> dict[str, Builtin]:
    """The part of a GPU's description that a program under emulation can see."""
    return {key: getattr(gpu, key) for key in ("name", *DEVICE_PROPERTIES)}


def job_table(jobs: Sequence[JobConfig]) -> list[dict[str, Builtin]]:
    """One flat row a job: its ids, world size and the keys that tell jobs apart."""
    rows = []
    for job in jobs:
        row: dict[str, Builtin] = {
            "job_id": job_id(job),
            "trace_id": trace_id(job),
            "gpu": job.gpu.name,
            "cluster": job.cluster.name,
            "nodes": job.cluster.nodes,
            "gpus_per_node": job.cluster.gpus_per_node,
            "world_size": world_size(job),
            "model": job.model.name,
            "framework": job.framework.name,
        }
        for key, value in asdict(job.framework).items():
            if key != "name":
                row[key] = value
        rows.append(row)
    return rows


def write_job_table(jobs: Sequence[JobConfig], path: Path) -> None:
    """Write ``jobs.csv``, which says what each id stands for."""
    rows = job_table(jobs)
    text = io.StringIO()
    writer = csv.DictWriter(
        text, fieldnames=list(rows[0]) if rows else ["job_id", "trace_id"], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text.getvalue())


def content_id(values: dict[str, Any]) -> str:
    """12 hex digits of the SHA-256 of builtin values, whatever the order of their keys."""
    canonical = json.dumps(
        {"schema_version": SCHEMA_VERSION, **values}, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:ID_HEX_DIGITS]


def _sort(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sort(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sort(item) for item in value]
    return value
