"""The stages that the workflow runs from files to files.

A run that went out of memory has no iterations to collate: its manifest takes the place of the
collated job, and the simulation makes a summary that says what did not fit.
"""

import gzip
import json
import shutil
from pathlib import Path

from maya.config.schema import ClusterConfig, GpuConfig


def collate_traces(trace_dir: Path, output: Path) -> None:
    """Writes the collated job of ``trace_dir`` to the folder ``output``.

    Raises: TraceError for traces that are damaged or contradict each other.
    """
    from maya.capture.manifest import FILE_NAME, read_manifest
    from maya.collate import collate, write_job
    from maya.collate.memory_profile import profile_path

    failed = read_manifest(trace_dir).out_of_memory
    if failed is None:
        write_job(collate(trace_dir), output)
        return
    output.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(trace_dir / FILE_NAME, output / FILE_NAME)
    profile = profile_path(trace_dir, failed.rank)
    if profile.exists():
        shutil.copyfile(profile, output / profile.name)


def simulate_collated(
    collated: Path,
    estimator_dir: Path,
    gpu: GpuConfig,
    cluster: ClusterConfig,
    *,
    summary: Path,
    timeline: Path,
    lanes: Path,
    memory: Path,
) -> None:
    """Predicts durations, simulates, and writes what a report needs.

    Args:
        collated: folder of ``collate_traces``; ``estimator_dir``: folder of ``maya.estimators.train``.
        summary: summary.json (docs/metrics.md); ``timeline``: Chrome trace of the last iteration.
        lanes: Parquet of the busy spans of that iteration (``maya.simulator.timeline_rows``).
        memory: JSON of what fills the memory of each simulated rank (``maya.simulator.write_memory``).
    """
    import pandas as pd

    from maya.capture.manifest import FILE_NAME
    from maya.collate import read_job
    from maya.estimators import annotate, load_estimator
    from maya.predict import out_of_memory
    from maya.simulator import (
        simulate,
        summarise,
        timeline_rows,
        write_chrome_trace,
        write_memory,
        write_summary,
    )

    if (collated / FILE_NAME).exists():
        with gzip.open(timeline, "wt") as empty:
            json.dump({"traceEvents": []}, empty)
        pd.DataFrame().to_parquet(lanes)
        failed, profiles = out_of_memory(collated, gpu)
        write_summary(summary, failed)
        write_memory(memory, failed.memory, profiles)
        return
    job = read_job(collated)
    annotations = annotate(job, load_estimator(estimator_dir), gpu, cluster)
    simulation = simulate(job, annotations, gpu, cluster)
    write_chrome_trace(timeline, job, annotations, simulation)
    # What is nearer than a pixel of the picture is one span.
    merge_gap_us = simulation.iteration_time_s * 1e6 / 2000
    timeline_rows(job, simulation, merge_gap_us=merge_gap_us).to_parquet(lanes, index=False)
    numbers = summarise(job, annotations, simulation, gpu)
    write_summary(summary, numbers)
    write_memory(memory, numbers.memory, {rank.rank: rank.memory_profile for rank in job.ranks})
