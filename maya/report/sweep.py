"""The report of a sweep, from the folders of its simulated jobs."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from maya.config import data_parallel_size, job_id, load_sweep, num_micro_batches, world_size
from maya.config.schema import JobConfig
from maya.report.report import JobReport, write_report


def report_sweep(name: str, jobs: Sequence[JobConfig], folders: Sequence[Path], output_dir: Path) -> Path:
    """Writes the report of sweep ``name`` below ``output_dir``; returns the page.

    ``folders[i]`` holds summary.json, lanes.parquet and memory.json of ``jobs[i]``
    (``maya.stages.simulate_collated``).
    """
    reports = [_job_report(job, folder) for job, folder in zip(jobs, folders, strict=True)]
    return write_report(reports, output_dir, name, load_sweep(name).description)


def _job_report(job: JobConfig, folder: Path) -> JobReport:
    lanes = pd.read_parquet(folder / "lanes.parquet")
    return JobReport(
        job_id=job_id(job),
        label=f"{job.model.name}, {recipe(job)}\n{world_size(job)} x {job.gpu.name}",
        gpu=job.gpu.name,
        model=job.model.name,
        recipe=recipe(job),
        capacity_bytes=job.gpu.memory_bytes,
        summary=json.loads((folder / "summary.json").read_text()),
        timeline=lanes if len(lanes) else None,
        memory=json.loads((folder / "memory.json").read_text()),
    )


def recipe(job: JobConfig) -> str:
    """A recipe in a few words, e.g. "megatron tp2 pp2 dp2, 8 x 2": micro-batches by their size."""
    framework = job.framework
    degrees = {key: getattr(framework, key) for key in ("tp", "pp", "vpp", "cp", "ep")}
    degrees["dp"] = data_parallel_size(job)
    words = [framework.name, *(f"{key}{value}" for key, value in degrees.items() if value > 1)]
    if framework.recompute != "none":
        words.append(f"recompute={framework.recompute}")
    return f"{' '.join(words)}, {num_micro_batches(job)} x {framework.micro_batch_size}"
