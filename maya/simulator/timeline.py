"""Timelines for people: Chrome traces (Perfetto, HolisticTraceAnalysis) and rows for a plot."""

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
import pandas as pd

from maya.collate.job import Array, Job, RankTrace
from maya.errors import SimulationError
from maya.estimators.annotation import BASES, Annotation
from maya.simulator.lowering import (
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    PEER_TO_PEER,
    UNIT,
    detail,
    rows_by_kind,
)
from maya.simulator.simulate import RankTimes, Simulation

# Calls as a profiler names them; others keep the name of their kind.
CALL_NAMES = {
    "kernel": "cudaLaunchKernel",
    "gemm": "cudaLaunchKernel",
    "conv": "cudaLaunchKernel",
    "attention": "cudaLaunchKernel",
    "library_op": "cudaLaunchKernel",
    "collective": "cudaLaunchKernelExC",
    "memcpy": "cudaMemcpyAsync",
    "memset": "cudaMemsetAsync",
    "host_func": "cudaLaunchHostFunc",
    "graph_launch": "cudaGraphLaunch",
    "event_record": "cudaEventRecord",
    "stream_wait_event": "cudaStreamWaitEvent",
    "event_sync": "cudaEventSynchronize",
    "event_query": "cudaEventQuery",
    "stream_sync": "cudaStreamSynchronize",
    "stream_query": "cudaStreamQuery",
    "device_sync": "cudaDeviceSynchronize",
    "malloc": "cudaMalloc",
    "free": "cudaFree",
}
COPY_NAMES = {
    HOST_TO_DEVICE: "Memcpy HtoD",
    DEVICE_TO_HOST: "Memcpy DtoH",
    DEVICE_TO_DEVICE: "Memcpy DtoD (Device -> Device)",
    PEER_TO_PEER: "Memcpy PtoP (Device -> Device)",
}
SLICE_CATEGORIES = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}
HOST_TRACK_SORT, STREAM_TRACK_SORT = 0, 1000  # host threads stand above streams
STREAM_TRACK = 10_000  # track id of stream 0; threads use their own numbers
PLOT_CATEGORIES: dict[int, str] = {
    int(UNIT["compute"]): "compute",
    int(UNIT["collective"]): "communication",
    int(UNIT["copy_in"]): "copy",
    int(UNIT["copy_out"]): "copy",
    int(UNIT["host_function"]): "host",
}

Json = dict[str, Any]


def write_chrome_trace(
    path: Path | str,
    job: Job,
    annotations: Sequence[Annotation],
    simulation: Simulation,
    ranks: Sequence[int] | None = None,
    iteration: int = -1,
) -> None:
    """Writes what one iteration issued as a Chrome trace (JSON, microseconds), gzipped if named .gz.

    One process a rank, one track a host thread and a stream; arrows lead from a launch to its operation. With
    a single rank the file follows the conventions of PyTorch's profiler that HolisticTraceAnalysis reads.

    Args:
        ranks: simulated global ranks to write; all of them by default.
        iteration: number of the iteration, negative from the end.
    """
    iteration = _iteration_number(simulation, iteration)
    chosen = _chosen(job, ranks)
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    events = (
        event
        for index in chosen
        for event in _rank_events(job, index, annotations[index], simulation, iteration)
    )
    if path.suffix == ".gz":
        with gzip.open(temporary, "wt", compresslevel=3) as compressed:
            _write_events(cast(TextIO, compressed), job, job.ranks[chosen[0]].rank, events)
    else:
        with temporary.open("w") as plain:
            _write_events(plain, job, job.ranks[chosen[0]].rank, events)
    temporary.replace(path)


def _write_events(stream: TextIO, job: Job, rank: int, events: Iterable[Json]) -> None:
    # HolisticTraceAnalysis finds the rank by a pattern: before the events, with json's space after the colon.
    header = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": job.world_size}}
    stream.write(json.dumps(header)[:-1] + ', "displayTimeUnit": "ms", "traceEvents": [\n')
    for number, event in enumerate(events):
        stream.write(("" if number == 0 else ",\n") + json.dumps(event))
    stream.write("\n]}\n")


def timeline_rows(
    job: Job,
    simulation: Simulation,
    ranks: Sequence[int] | None = None,
    iteration: int = -1,
    merge_gap_us: float = 0.0,
) -> pd.DataFrame:
    """Busy spans of one iteration for a picture.

    Columns: rank (int), lane (str, "thread 0" or "stream 7"), category (str: compute, communication, copy,
    host), start_us and end_us (float, from the end of the iteration before). Neighbours in a lane of one
    category that are at most ``merge_gap_us`` apart are one row.
    """
    iteration = _iteration_number(simulation, iteration)
    begin_ns = int(simulation.iteration_end_ns[iteration - 1]) if iteration > 0 else 0
    end_ns = int(simulation.iteration_end_ns[iteration])
    parts = [pd.DataFrame({"rank": [], "lane": [], "category": [], "start_us": [], "end_us": []})]
    for index in _chosen(job, ranks):
        trace, times = job.ranks[index], simulation.ranks[index]
        for label, rows, category, start, end in _lanes(trace, times):
            start, end = np.clip(start[rows], begin_ns, end_ns), np.clip(end[rows], begin_ns, end_ns)
            order = np.argsort(start, kind="stable")
            order = order[(end > start)[order]]
            start, end, category = start[order], end[order], category[rows][order]
            if len(start) == 0:
                continue
            reach = np.maximum.accumulate(end)
            is_new = np.concatenate(
                [[True], (start[1:] - reach[:-1] > merge_gap_us * 1e3) | (category[1:] != category[:-1])]
            )
            firsts = np.flatnonzero(is_new)
            parts.append(
                pd.DataFrame(
                    {
                        "rank": trace.rank,
                        "lane": label,
                        "category": category[firsts],
                        "start_us": (start[firsts] - begin_ns) / 1e3,
                        "end_us": (np.maximum.reduceat(end, firsts) - begin_ns) / 1e3,
                    }
                )
            )
    return pd.concat(parts[1:] or parts, ignore_index=True)


def _lanes(trace: RankTrace, times: RankTimes) -> Iterator[tuple[str, Array, Array, Array, Array]]:
    """Label, rows, category by row, start and end by row of every lane."""
    thread = trace.ops["thread"].to_numpy()
    host = np.full(len(thread), "host", dtype=object)
    for number in np.unique(thread):
        yield (
            f"thread {number}",
            np.flatnonzero(thread == number),
            host,
            times.host_start_ns,
            times.host_end_ns,
        )
    stream = trace.ops["stream"].to_numpy()
    category_of_unit = np.array([PLOT_CATEGORIES.get(unit, "") for unit in range(len(UNIT))], dtype=object)
    category = category_of_unit[times.unit]
    for number in np.unique(stream[category != ""]):
        rows = np.flatnonzero((stream == number) & (category != ""))
        yield f"stream {number}", rows, category, times.start_ns, times.end_ns


def _iteration_number(simulation: Simulation, iteration: int) -> int:
    number = iteration + simulation.num_iterations if iteration < 0 else iteration
    if not 0 <= number < simulation.num_iterations:
        raise SimulationError(
            f"Iteration {iteration} was asked for, but the job has {simulation.num_iterations} simulated "
            "iterations. Choose one of them, counted from 0."
        )
    return number


def _chosen(job: Job, ranks: Sequence[int] | None) -> list[int]:
    simulated = [trace.rank for trace in job.ranks]
    if ranks is None:
        return list(range(len(simulated)))
    absent = [rank for rank in ranks if rank not in simulated]
    if absent or not ranks:
        raise SimulationError(
            f"A timeline of ranks {list(ranks)} was asked for; the simulated ranks are {simulated}. "
            "Choose among those."
        )
    return [simulated.index(rank) for rank in ranks]


def _rank_events(
    job: Job, index: int, annotation: Annotation, simulation: Simulation, iteration: int
) -> Iterator[Json]:
    trace, times = job.ranks[index], simulation.ranks[index]
    ops = trace.ops
    kinds = ops["kind"].to_numpy(dtype=object)
    threads, streams = ops["thread"].to_numpy(), ops["stream"].to_numpy()
    in_iteration = ops["iteration"].to_numpy() == iteration
    rows = np.flatnonzero(in_iteration)
    takes_time = (times.unit != UNIT["none"]) & (times.unit != UNIT["marker"])
    names = _operation_names(job, trace, annotation)
    pid = trace.rank
    yield from _metadata(
        trace, np.unique(threads[in_iteration]), np.unique(streams[in_iteration & takes_time])
    )
    if len(rows) > 0:
        begin_ns, end_ns = times.host_start_ns[rows].min(), times.host_end_ns[rows].max()
        yield {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{iteration}",
            "pid": pid,
            "tid": int(threads[rows[0]]),
            "ts": begin_ns / 1e3,
            "dur": (end_ns - begin_ns) / 1e3,
        }
    operators = _operators(trace)
    for row in rows.tolist():
        kind = kinds[row]
        host_end_ns = int(times.host_end_ns[row])
        call = {"ts": int(times.host_start_ns[row]) / 1e3, "pid": pid, "tid": int(threads[row])}
        if host_end_ns > times.host_start_ns[row]:
            yield {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": CALL_NAMES.get(kind, kind),
                **call,
                "dur": (host_end_ns - int(times.host_start_ns[row])) / 1e3,
                "args": {"correlation": row + 1, "External id": row + 1},
            }
        if not takes_time[row]:
            continue
        stream = int(streams[row])
        slice_ = {"ts": int(times.start_ns[row]) / 1e3, "pid": pid, "tid": STREAM_TRACK + stream}
        operator, shapes = operators.get(row, ("", ""))
        yield {
            "ph": "X",
            "cat": SLICE_CATEGORIES.get(kind, "kernel"),
            "name": names[row],
            **slice_,
            "dur": (int(times.end_ns[row]) - int(times.start_ns[row])) / 1e3,
            "args": {
                "stream": stream,
                "correlation": row + 1,
                "External id": row + 1,
                "device": trace.rank % job.gpus_per_node,
                "op kind": str(annotation.op_kind[row]),
                "duration (us)": int(annotation.duration_ns[row]) / 1e3,
                "basis": BASES[annotation.basis[row]],
                "operator": operator,
                "shapes": shapes,
            },
        }
        arrow = {"cat": "ac2g", "name": "ac2g", "id": (index << 32) + row + 1}
        yield {"ph": "s", **arrow, **call}
        yield {"ph": "f", "bp": "e", **arrow, **slice_}


def _metadata(trace: RankTrace, threads: Array, streams: Array) -> Iterator[Json]:
    def named(what: str, tid: int, **args: Any) -> Json:
        return {"ph": "M", "name": what, "pid": trace.rank, "tid": tid, "ts": 0, "args": args}

    others = f", stands for {len(trace.members)} ranks" if len(trace.members) > 1 else ""
    yield named("process_name", 0, name=f"rank {trace.rank}{others}")
    yield named("process_sort_index", 0, sort_index=trace.rank)
    for thread in threads.tolist():
        yield named("thread_name", thread, name=f"thread {thread}")
        yield named("thread_sort_index", thread, sort_index=HOST_TRACK_SORT + thread)
    for stream in streams.tolist():
        yield named("thread_name", STREAM_TRACK + stream, name=f"stream {stream}")
        yield named("thread_sort_index", STREAM_TRACK + stream, sort_index=STREAM_TRACK_SORT + stream)


def _operation_names(job: Job, trace: RankTrace, annotation: Annotation) -> dict[int, str]:
    """Name of each device operation by row, close to what a profiler of a real GPU would show."""
    names: dict[int, str] = {}
    for kind, rows in rows_by_kind(trace).items():
        match kind:
            case "kernel" | "library_op":
                texts = detail(trace, kind, "name", rows).tolist()
            case "gemm":
                fields = (detail(trace, kind, name, rows) for name in ("batch", "m", "n", "k"))
                texts = [f"gemm {b}x{m}x{n}x{k}" for b, m, n, k in zip(*fields, strict=True)]
            case "collective":
                ops = detail(trace, kind, "op", rows)
                dtypes = detail(trace, kind, "dtype", rows)
                labels = [job.communicators[int(i)].label for i in detail(trace, kind, "communicator", rows)]
                texts = [
                    f"ncclDevKernel_{o}({d}, {label})"
                    for o, d, label in zip(ops, dtypes, labels, strict=True)
                ]
            case "memcpy":
                directions = detail(trace, kind, "direction", rows)
                texts = [COPY_NAMES.get(int(direction), "Memcpy HtoH") for direction in directions]
            case "memset":
                texts = ["Memset (Device)"] * len(rows)
            case _:
                texts = [str(annotation.op_kind[row]) or kind for row in rows]
        names.update(zip(rows.tolist(), texts, strict=True))
    return names


def _operators(trace: RankTrace) -> dict[int, tuple[str, str]]:
    """PyTorch operator and input sizes around each launch, where known."""
    operators: dict[int, tuple[str, str]] = {}
    for table in trace.details.values():
        if {"operator", "shapes"} <= set(table.columns):
            operators.update(
                zip(table.index.tolist(), zip(table["operator"], table["shapes"], strict=True), strict=True)
            )
    return operators
