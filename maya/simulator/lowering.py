"""Turns a job into the flat columns that the engine reads (native/simulator/operations.h)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from maya.collate.job import Array, Job, RankTrace
from maya.config.schema import ClusterConfig
from maya.errors import SimulationError
from maya.estimators.annotation import Annotation
from maya.simulator import host_costs
from maya.simulator._engine import HOST_WAITS, STREAM_KINDS, UNITS

UNIT = {name: np.uint8(number) for number, name in enumerate(UNITS)}
HOST_WAIT = {name: np.uint8(number) for number, name in enumerate(HOST_WAITS)}
STREAM_KIND = {name: np.uint8(number) for number, name in enumerate(STREAM_KINDS)}

# Values of native/trace/format.h.
BLOCKED, FROM_GRAPH, NOT_WORKLOAD = 1, 2, 4  # flags
HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, HOST_TO_HOST, PEER_TO_PEER = range(
    5
)  # directions of a copy
WAITING_FREES = (0, 1, 2)  # memory whose release waits for the device: device, pinned_host, managed
LEGACY_STREAM, PER_THREAD_STREAM = 0, 1
NON_BLOCKING_FLAG = 1  # cudaStreamNonBlocking

COMPUTE_KINDS = ("kernel", "gemm", "conv", "attention", "library_op", "memset")
MARKER_KINDS = ("event_record", "stream_wait_event")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankColumns:
    """Columns of one rank, row numbers, lanes, streams and communicators local to it."""

    unit: Array
    host_wait: Array
    lane: Array
    stream: Array
    gap_ns: Array
    call_ns: Array
    duration_ns: Array
    waits_on: Array
    handoff: Array
    communicator: Array
    num_lanes: int
    num_communicators: int
    stream_kind: Array
    stream_ids: Array  # the trace's stream id of each local stream


def detail(trace: RankTrace, kind: str, column: str, rows: Array) -> Array:
    """Values of one field of the rows of a kind, in the order of ``rows``."""
    table = trace.details.get(kind)
    if table is None or column not in table.columns:
        raise SimulationError(
            f"Rank {trace.rank} has {kind} operations without their field {column!r}. Collate the job again."
        )
    if len(table) == len(rows) and np.array_equal(table.index.to_numpy(), rows):
        return table[column].to_numpy()
    return table[column].reindex(rows).to_numpy()


def rows_by_kind(trace: RankTrace) -> dict[str, Array]:
    """Row numbers of each kind that occurs, kinds in the order of their first row."""
    codes, kinds = pd.factorize(trace.ops["kind"])
    return {str(kind): np.flatnonzero(codes == code) for code, kind in enumerate(kinds)}


def lower_rank(trace: RankTrace, annotation: Annotation, cluster: ClusterConfig) -> RankColumns:
    """Columns of one rank.

    Raises:
        SimulationError: a row that the simulator cannot interpret.
    """
    ops = trace.ops
    num_rows = len(ops)
    if len(annotation.duration_ns) != num_rows:
        raise SimulationError(
            f"Rank {trace.rank} has {num_rows} operations but {len(annotation.duration_ns)} durations. "
            "Annotate the job again."
        )
    flags = ops["flags"].to_numpy()
    rows_of = rows_by_kind(trace)
    unit = np.full(num_rows, UNIT["none"], dtype=np.uint8)
    host_wait = np.full(num_rows, HOST_WAIT["none"], dtype=np.uint8)
    call_us = np.zeros(num_rows)
    duration_ns = np.zeros(num_rows, dtype=np.int64)
    waits_on = np.full(num_rows, -1, dtype=np.int64)
    communicator = np.full(num_rows, -1, dtype=np.int32)
    num_communicators = 0

    for name, rows in rows_of.items():
        if name in ("malloc", "free"):
            memory = detail(trace, name, "memory", rows).astype(np.int64)
            costs = host_costs.MALLOC_COST_US if name == "malloc" else host_costs.FREE_COST_US
            call_us[rows] = np.asarray(costs)[memory]
            if name == "free":
                host_wait[rows[np.isin(memory, WAITING_FREES)]] = HOST_WAIT["device"]
            continue
        if name not in host_costs.HOST_COST_US:
            raise SimulationError(
                f"Rank {trace.rank}, row {rows[0]}: the simulator knows no operation of kind {name!r}. "
                "The trace may come from a newer version of Maya."
            )
        call_us[rows] = host_costs.HOST_COST_US[name]
        if name in COMPUTE_KINDS:
            unit[rows] = UNIT["compute"]
        elif name == "host_func":
            unit[rows] = UNIT["host_function"]
        elif name in MARKER_KINDS:
            unit[rows] = UNIT["marker"]
        elif name == "collective":
            unit[rows] = UNIT["collective"]
            of_job = detail(trace, name, "communicator", rows)
            used, local = np.unique(of_job, return_inverse=True)
            communicator[rows] = local
            num_communicators = len(used)
        elif name == "memcpy":
            unit[rows], host_wait[rows] = _copies(trace, rows)
        elif name == "event_sync":
            host_wait[rows] = HOST_WAIT["operation"]
        elif name == "stream_sync":
            host_wait[rows] = HOST_WAIT["stream"]
        elif name == "device_sync":
            host_wait[rows] = HOST_WAIT["device"]
        if name in ("stream_wait_event", "event_sync"):
            waits_on[rows] = ops["waits_on"].to_numpy()[rows]

    takes_time = (unit != UNIT["none"]) & (unit != UNIT["marker"])
    duration_ns[takes_time] = annotation.duration_ns[takes_time]
    call_us[(flags & FROM_GRAPH) != 0] = 0  # the graph launch paid
    call_ns = np.rint(call_us * 1e3).astype(np.int64)
    if "memcpy" in rows_of:  # a copy between host memories is work of the host
        on_host = rows_of["memcpy"][unit[rows_of["memcpy"]] == UNIT["none"]]
        call_ns[on_host] += annotation.duration_ns[on_host]
    gap_ns = np.rint(ops["gap_ns"].to_numpy() * cluster.host_time_ratio).astype(np.int64)

    is_workload = (flags & NOT_WORKLOAD) == 0
    for column, value in (
        (unit, 0),
        (host_wait, 0),
        (call_ns, 0),
        (gap_ns, 0),
        (duration_ns, 0),
        (waits_on, -1),
    ):
        column[~is_workload] = value

    lane, threads = pd.factorize(ops["thread"].to_numpy(), sort=True)
    needs_stream = (unit != UNIT["none"]) | (host_wait == HOST_WAIT["stream"])
    stream, stream_ids, stream_kind = _streams(trace, needs_stream)
    return RankColumns(
        unit=unit,
        host_wait=host_wait,
        lane=lane.astype(np.int32),
        stream=stream,
        gap_ns=gap_ns,
        call_ns=call_ns,
        duration_ns=duration_ns,
        waits_on=waits_on,
        handoff=_handoffs(flags, lane, is_workload),
        communicator=communicator,
        num_lanes=len(threads),
        num_communicators=num_communicators,
        stream_kind=stream_kind,
        stream_ids=stream_ids,
    )


def _copies(trace: RankTrace, rows: Array) -> tuple[Array, Array]:
    """Unit and host wait of memcpy rows (CUDA runtime API, "API synchronization behavior")."""
    direction = detail(trace, "memcpy", "direction", rows)
    is_pinned = detail(trace, "memcpy", "host_pinned", rows) == 1
    is_blocking = detail(trace, "memcpy", "is_blocking", rows) == 1
    is_small = detail(trace, "memcpy", "bytes", rows) <= host_costs.PAGEABLE_ASYNC_BYTES
    unit = np.full(len(rows), UNIT["none"], dtype=np.uint8)  # between host memories
    unit[direction == HOST_TO_DEVICE] = UNIT["copy_in"]
    unit[np.isin(direction, (DEVICE_TO_HOST, PEER_TO_PEER))] = UNIT["copy_out"]  # the source's copy engine
    unit[direction == DEVICE_TO_DEVICE] = UNIT["compute"]  # shares the memory bandwidth with kernels
    waits = np.select(
        [direction == HOST_TO_DEVICE, direction == DEVICE_TO_HOST],
        [np.where(is_pinned, is_blocking, ~is_small), is_blocking | ~is_pinned],
        default=False,
    )
    return unit, np.where(waits, HOST_WAIT["completion"], HOST_WAIT["none"])


def _handoffs(flags: Array, lane: Array, is_workload: Array) -> Array:
    """Row that must have been called before a thread goes on: where it slept, and where it begins."""
    rows = np.flatnonzero(is_workload)
    handoff = np.full(len(flags), -1, dtype=np.int64)
    if len(rows) == 0:
        return handoff
    begins = np.zeros(len(rows), dtype=bool)
    begins[np.unique(lane[rows], return_index=True)[1]] = True
    woken = (begins | ((flags[rows] & BLOCKED) != 0))[1:]
    handoff[rows[1:][woken]] = rows[:-1][woken]
    return handoff


def _streams(trace: RankTrace, needs_stream: Array) -> tuple[Array, Array, Array]:
    """Local stream of each row (-1 for none), the trace's id of each local stream, and its kind."""
    of_trace = trace.ops["stream"].to_numpy()
    missing = needs_stream & (of_trace < 0)
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise SimulationError(
            f"Rank {trace.rank}, row {row}: {trace.ops['kind'].iloc[row]} names no stream. "
            "Collate the job again."
        )
    local, ids = pd.factorize(of_trace[needs_stream], sort=True)
    stream = np.full(len(of_trace), -1, dtype=np.int32)
    stream[needs_stream] = local
    # PyTorch and NCCL create non-blocking streams only; one made before the steady part is taken as such.
    kind = np.full(len(ids), STREAM_KIND["non_blocking"], dtype=np.uint8)
    created = trace.details.get("stream_create")
    if created is not None:
        is_blocking = (created["flags"].to_numpy() & NON_BLOCKING_FLAG) == 0
        kind[np.isin(ids, created["stream"].to_numpy()[is_blocking])] = STREAM_KIND["blocking"]
    kind[ids == LEGACY_STREAM] = STREAM_KIND["legacy_default"]
    kind[ids == PER_THREAD_STREAM] = STREAM_KIND["blocking"]
    return stream, ids, kind


def engine_columns(job: Job, ranks: Sequence[RankColumns]) -> dict[str, Array | int]:
    """Columns of all ranks one after another, with global numbers: the arguments of the engine."""

    def offsets(counts: Sequence[int]) -> Array:
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)

    def joined(parts: Sequence[Array], dtype: type, starts: Array | None = None) -> Array:
        if starts is not None:
            parts = [np.where(part < 0, -1, part + start) for part, start in zip(parts, starts, strict=False)]
        return np.concatenate([*parts, np.empty(0, dtype)]).astype(dtype)

    rank_begin = offsets([len(rank.unit) for rank in ranks])
    lane_begin = offsets([rank.num_lanes for rank in ranks])
    stream_begin = offsets([len(rank.stream_kind) for rank in ranks])
    communicator_begin = offsets([rank.num_communicators for rank in ranks])
    rendezvous_begin = offsets([len(trace.rendezvous) for trace in job.ranks])
    stream_counts = np.diff(stream_begin)
    return {
        "rank_begin": rank_begin,
        "lane": joined([rank.lane for rank in ranks], np.int32, lane_begin),
        "stream": joined([rank.stream for rank in ranks], np.int32, stream_begin),
        "unit": joined([rank.unit for rank in ranks], np.uint8),
        "host_wait": joined([rank.host_wait for rank in ranks], np.uint8),
        "gap_ns": joined([rank.gap_ns for rank in ranks], np.int64),
        "call_ns": joined([rank.call_ns for rank in ranks], np.int64),
        "duration_ns": joined([rank.duration_ns for rank in ranks], np.int64),
        "waits_on": joined([rank.waits_on for rank in ranks], np.int64, rank_begin),
        "handoff": joined([rank.handoff for rank in ranks], np.int64, rank_begin),
        "communicator": joined([rank.communicator for rank in ranks], np.int32, communicator_begin),
        "rendezvous_begin": joined(
            [trace.ops["rendezvous_begin"].to_numpy() for trace in job.ranks], np.int64, rendezvous_begin
        ),
        "rendezvous_end": joined(
            [trace.ops["rendezvous_end"].to_numpy() for trace in job.ranks], np.int64, rendezvous_begin
        ),
        "rendezvous": joined([trace.rendezvous for trace in job.ranks], np.int64),
        "rendezvous_arrivals": np.ascontiguousarray(job.rendezvous_arrivals, dtype=np.int64),
        "stream_kind": joined([rank.stream_kind for rank in ranks], np.uint8),
        "stream_rank": np.repeat(np.arange(len(ranks), dtype=np.int32), stream_counts),
        "num_lanes": int(lane_begin[-1]),
        "num_communicators": int(communicator_begin[-1]),
    }
