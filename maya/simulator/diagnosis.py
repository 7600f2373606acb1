"""Says who waits for what when a simulation stops before all work is done."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from maya.collate.job import Job, RankTrace
from maya.simulator.lowering import UNIT, RankColumns, detail

if TYPE_CHECKING:
    from maya.simulator.simulate import RankTimes

MAX_LINES = 24

Places = dict[int, list[tuple[int, int]]]  # rendezvous id -> (index of the rank, row)


def describe_deadlock(job: Job, lowered: Sequence[RankColumns], times: Sequence["RankTimes"]) -> str:
    """The text of the error: what, where (one line a waiting thread or stream), and what to do."""
    unfinished = sum(
        int(((rank.host_end_ns < 0) | ((rank.unit != UNIT["none"]) & (rank.end_ns < 0))).sum())
        for rank in times
    )
    stopped_ns = max(int(max(rank.host_end_ns.max(), rank.end_ns.max())) for rank in times)
    waited_for = _rendezvous_places(job, times)
    lines = [
        line
        for index in range(len(job.ranks))
        for line in (
            *_waiting_streams(job, index, lowered[index], times, waited_for),
            *_waiting_threads(job.ranks[index], lowered[index], times[index]),
        )
    ]
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"... and {len(lines) - MAX_LINES} more"]
    where = "".join(f"\n  {line}" for line in lines)
    return (
        f"The simulation stopped at {stopped_ns / 1e3:.1f} us with {unfinished} operations that cannot run:"
        f"{where}\n"
        "All ranks must reach the operations of a communicator in the same order; a rank that is listed as "
        "missing issued something else, or its trace is incomplete. Capture the job again."
    )


def _rendezvous_places(job: Job, times: Sequence["RankTimes"]) -> Places:
    """Where the rendezvous occur that some rank waits in."""
    waited_for = set()
    for trace, rank in zip(job.ranks, times, strict=True):
        for row in np.flatnonzero(
            (rank.unit == UNIT["collective"]) & (rank.start_ns >= 0) & (rank.end_ns < 0)
        ):
            waited_for.update(_rendezvous_of(trace, int(row)))
    places: Places = {rendezvous: [] for rendezvous in waited_for}
    for index, trace in enumerate(job.ranks):
        for row in np.flatnonzero(trace.ops["rendezvous_end"] > trace.ops["rendezvous_begin"]):
            for rendezvous in _rendezvous_of(trace, int(row)):
                if rendezvous in places:
                    places[rendezvous].append((index, int(row)))
    return places


def _rendezvous_of(trace: RankTrace, row: int) -> list[int]:
    begin, end = trace.ops["rendezvous_begin"].iloc[row], trace.ops["rendezvous_end"].iloc[row]
    return [int(rendezvous) for rendezvous in trace.rendezvous[begin:end]]


def _waiting_streams(
    job: Job, index: int, columns: RankColumns, times: Sequence["RankTimes"], places: Places
) -> Iterator[str]:
    trace, rank = job.ranks[index], times[index]
    waiting = (columns.unit != UNIT["none"]) & (rank.end_ns < 0) & (rank.host_start_ns >= 0)
    for stream, stream_id in enumerate(columns.stream_ids):
        rows = np.flatnonzero(waiting & (columns.stream == stream))
        if len(rows) == 0:
            continue
        row = int(rows[0])
        place = f"rank {trace.rank}, stream {stream_id}: {_operation(job, trace, row)}"
        if rank.start_ns[row] >= 0 and columns.unit[row] == UNIT["collective"]:
            yield f"{place} waits for {_missing(job, times, _rendezvous_of(trace, row), places)}"
        elif columns.waits_on[row] >= 0 and rank.end_ns[columns.waits_on[row]] < 0:
            yield f"{place} waits for {_operation(job, trace, int(columns.waits_on[row]))}"
        elif rank.host_end_ns[row] < 0:
            yield f"{place} waits for its call to end"
        else:
            yield f"{place} waits for earlier work of its stream, its communicator or the default stream"


def _missing(job: Job, times: Sequence["RankTimes"], rendezvous: list[int], places: Places) -> str:
    parts = []
    for one in rendezvous:
        absent = [(job.ranks[index], row) for index, row in places[one] if times[index].start_ns[row] < 0]
        parts += [
            f"rank {trace.rank}, which has not reached its {_operation(job, trace, row)}"
            for trace, row in absent
        ]
        nowhere = int(job.rendezvous_arrivals[one]) - len(places[one])
        if nowhere > 0:
            parts.append(f"{nowhere} participant(s) that never issue it")
    return ", ".join(parts) or "another operation of its group"


def _waiting_threads(trace: RankTrace, columns: RankColumns, rank: "RankTimes") -> Iterator[str]:
    threads = trace.ops["thread"].to_numpy()
    for lane in range(columns.num_lanes):
        rows = np.flatnonzero((columns.lane == lane) & (rank.host_end_ns < 0))
        if len(rows) == 0:
            continue
        row = int(rows[0])
        kind = trace.ops["kind"].iloc[row]
        place = f"rank {trace.rank}, thread {threads[row]}:"
        if rank.host_start_ns[row] >= 0:
            yield f"{place} is held in {kind} (row {row})"
        else:
            after = int(columns.handoff[row])
            yield f"{place} waits before {kind} (row {row}) for thread {threads[after]} to end row {after}"


def _operation(job: Job, trace: RankTrace, row: int) -> str:
    kind = trace.ops["kind"].iloc[row]
    if kind != "collective":
        return f"{kind} (row {row})"
    collectives = np.flatnonzero(trace.ops["kind"].to_numpy() == "collective")
    communicators = detail(trace, "collective", "communicator", collectives)
    position = int(np.searchsorted(collectives, row))
    communicator = communicators[position]
    number = int((communicators[:position] == communicator).sum())
    op = detail(trace, "collective", "op", collectives)[position]
    label = job.communicators[int(communicator)].label
    return f"{op} number {number} on communicator {label!r} (row {row})"
