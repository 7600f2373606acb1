"""The numbers of a job: what summary.json holds. docs/metrics.md defines each of them."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from maya.collate.job import Array, Job
from maya.collate.memory_profile import MemoryProfile
from maya.config.schema import GpuConfig
from maya.estimators.annotation import BASES, Annotation
from maya.paths import write_whole
from maya.simulator.lowering import UNIT
from maya.simulator.memory import rank_memory
from maya.simulator.simulate import Simulation
from maya.simulator.usage import rank_usage
from maya.simulator.utilisation import matrix_flops, time_at_peak_s

NS = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """One predicted job. Times are of one iteration, means over ranks unless said otherwise.

    A job that does not fit into memory has ``oom`` true and no times (None).
    """

    gpu: str
    world_size: int
    oom: bool
    oom_rank: int | None = None  # the rank that ran out of memory
    oom_bytes: int | None = None  # the allocation that failed, or by how much the peak exceeds the device
    iteration_time_s: float | None = None
    compute_s: float | None = None
    exposed_communication_s: float | None = None
    exposed_copy_s: float | None = None
    launch_gap_s: float | None = None
    host_bound_s: float | None = None
    communication_s: float | None = None
    rendezvous_wait_s: float | None = None
    peak_memory_bytes: int = 0
    peak_memory_rank: int | None = None  # the rank with that peak, of a class the first
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    memory: list[dict[str, Any]] = field(default_factory=list)  # RankMemory of each simulated rank
    # LiveAllocations of that rank at its peak, the largest first
    peak_allocations: list[dict[str, Any]] = field(default_factory=list)
    matrix_flops: dict[str, float] = field(default_factory=dict)  # of one iteration of one GPU, by type
    hfu: float | None = None
    operations: float = 0.0  # device operations
    host_calls: float = 0.0
    duration_basis: dict[str, float] = field(default_factory=dict)  # shares of device time
    device_time_s: dict[str, float] = field(default_factory=dict)  # by op kind, largest first
    streams: list[dict[str, Any]] = field(
        default_factory=list
    )  # busy time of each stream of each simulated rank
    unemulated_calls: dict[str, int] = field(default_factory=dict)
    made_up_reads: list[dict[str, Any]] = field(default_factory=list)  # site, bytes, answer, count; whole run


def summarise(job: Job, annotations: Sequence[Annotation], simulation: Simulation, gpu: GpuConfig) -> Summary:
    """Numbers of a simulated job, of its measured window (docs/metrics.md)."""
    memory = rank_memory(job, gpu)
    fullest = max(memory, key=lambda rank: rank.peak_memory_bytes)
    profiles = {trace.rank: trace.memory_profile for trace in job.ranks}
    is_oom = fullest.peak_memory_bytes > gpu.memory_bytes
    num_ranks = sum(len(trace.members) for trace in job.ranks)
    weights = [len(trace.members) / num_ranks for trace in job.ranks]
    num_iterations = len(simulation.measured_iterations)
    usages = [
        rank_usage(times, annotation, simulation.window_ns, simulation.launch_latency_ns)
        for times, annotation in zip(simulation.ranks, annotations, strict=True)
    ]
    measured = [
        np.isin(trace.ops["iteration"].to_numpy(), np.asarray(simulation.measured_iterations))
        for trace in job.ranks
    ]

    def mean_s(name: str) -> float:
        return (
            float(sum(w * getattr(usage, name) for w, usage in zip(weights, usages, strict=True)))
            * NS
            / num_iterations
        )

    flops: dict[str, float] = defaultdict(float)
    by_basis: dict[str, float] = dict.fromkeys(BASES, 0.0)
    by_kind: dict[str, float] = defaultdict(float)
    operations = host_calls = 0.0
    for weight, trace, annotation, times, rows in zip(
        weights, job.ranks, annotations, simulation.ranks, measured, strict=True
    ):
        share = weight / num_iterations
        for dtype, amount in matrix_flops(trace, annotation, rows).items():
            flops[dtype] += share * amount
        takes_time = rows & (times.unit != UNIT["none"]) & (times.unit != UNIT["marker"])
        operations += share * int(takes_time.sum())
        host_calls += share * int(rows.sum())
        duration_s = annotation.duration_ns[takes_time] * (share * NS)
        for number, name in enumerate(BASES):
            by_basis[name] += float(duration_s[annotation.basis[takes_time] == number].sum())
        codes, kinds = pd.factorize(annotation.op_kind[takes_time])
        by_code_s = np.bincount(codes, weights=duration_s, minlength=len(kinds)).tolist()
        for kind, amount in zip(kinds, by_code_s, strict=True):
            by_kind[str(kind) or "other"] += amount
    device_time_s = sum(by_basis.values())
    iteration_time_s = simulation.iteration_time_s
    return Summary(
        gpu=gpu.name,
        world_size=job.world_size,
        oom=is_oom,
        oom_rank=fullest.rank if is_oom else None,
        oom_bytes=fullest.peak_memory_bytes - gpu.memory_bytes if is_oom else None,
        iteration_time_s=iteration_time_s,
        compute_s=mean_s("compute_ns"),
        exposed_communication_s=mean_s("exposed_communication_ns"),
        exposed_copy_s=mean_s("exposed_copy_ns"),
        launch_gap_s=mean_s("launch_gap_ns"),
        host_bound_s=mean_s("host_bound_ns"),
        communication_s=mean_s("communication_ns"),
        rendezvous_wait_s=mean_s("rendezvous_wait_ns"),
        peak_memory_bytes=fullest.peak_memory_bytes,
        peak_memory_rank=fullest.rank,
        peak_allocated_bytes=max(rank.peak_allocated_bytes for rank in memory),
        peak_reserved_bytes=max(rank.peak_reserved_bytes for rank in memory),
        memory=[asdict(rank) for rank in memory],
        peak_allocations=peak_allocations(profiles[fullest.rank]),
        matrix_flops=dict(flops),
        hfu=time_at_peak_s(dict(flops), gpu) / iteration_time_s if iteration_time_s > 0 else None,
        operations=operations,
        host_calls=host_calls,
        duration_basis={
            name: time_s / device_time_s if device_time_s else 0.0 for name, time_s in by_basis.items()
        },
        device_time_s=dict(sorted(by_kind.items(), key=lambda item: (-item[1], item[0]))),
        streams=_stream_times(job, annotations, simulation, measured),
        unemulated_calls=dict(job.unemulated_calls),
        made_up_reads=job.made_up_reads,
    )


def out_of_memory_summary(
    *,
    gpu: GpuConfig,
    world_size: int,
    rank: int,
    failed_bytes: int,
    used_bytes: int,
    unemulated_calls: dict[str, int],
    profile: MemoryProfile | None = None,
) -> Summary:
    """The summary of a job whose capture ended because an allocation of ``failed_bytes`` did not fit.

    ``used_bytes`` is what the device held at that moment, context and buffers of communicators included, and
    ``profile`` what it was filled with.
    """
    return Summary(
        gpu=gpu.name,
        world_size=world_size,
        oom=True,
        oom_rank=rank,
        oom_bytes=failed_bytes,
        peak_memory_bytes=used_bytes + failed_bytes,
        peak_memory_rank=rank,
        peak_allocated_bytes=profile.allocated_bytes if profile is not None else 0,
        peak_reserved_bytes=profile.reserved_bytes if profile is not None else 0,
        peak_allocations=peak_allocations(profile),
        unemulated_calls=unemulated_calls,
    )


def peak_allocations(profile: MemoryProfile | None) -> list[dict[str, Any]]:
    """The largest allocations of a profile as builtin values."""
    return [] if profile is None else [asdict(row) for row in profile.allocations]


def write_summary(path: Path | str, summary: Summary) -> None:
    """Writes summary.json."""
    write_whole(Path(path), json.dumps(asdict(summary), indent=2) + "\n")


def _stream_times(
    job: Job, annotations: Sequence[Annotation], simulation: Simulation, measured: Sequence[Array]
) -> list[dict[str, Any]]:
    num_iterations = len(simulation.measured_iterations)
    result = []
    for trace, annotation, times, rows in zip(
        job.ranks, annotations, simulation.ranks, measured, strict=True
    ):
        takes_time = rows & (times.unit != UNIT["none"]) & (times.unit != UNIT["marker"])
        stream = trace.ops["stream"].to_numpy()
        for stream_id in np.unique(stream[takes_time]):
            in_stream = takes_time & (stream == stream_id)
            busy_ns = (times.end_ns - times.start_ns)[in_stream].sum()
            result.append(
                {
                    "rank": trace.rank,
                    "stream": int(stream_id),
                    "operations": int(in_stream.sum()) / num_iterations,
                    "busy_s": float(busy_ns) * NS / num_iterations,
                    "duration_s": float(annotation.duration_ns[in_stream].sum()) * NS / num_iterations,
                }
            )
    return result
