"""Random jobs: the engine against a plain one, and properties that hold for every job."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from job_builder import D2D, D2H, H2D, JobBuilder, RankBuilder, make_cluster
from slow_engine import SlowEngine

from maya.collate.job import Job
from maya.estimators.annotation import Annotation
from maya.simulator import _engine
from maya.simulator.lowering import UNIT, engine_columns, lower_rank

STREAMS = (0, 1, 7, 8)  # legacy default, per-thread default, blocking, non-blocking
LOCAL = (
    "kernel",
    "kernel",
    "copy",
    "record",
    "wait",
    "event_sync",
    "stream_sync",
    "device_sync",
    "free",
    "host_func",
)
NAMES = ("host_start", "host_end", "start", "end")

Columns = dict[str, Any]
Times = dict[str, np.ndarray]


@st.composite
def jobs(draw: st.DrawFn, max_ranks: int = 3, max_steps: int = 30) -> tuple[Job, list[Annotation]]:
    """Ranks, threads, streams and communicators at random; all ranks issue collectives in one order."""
    builder = JobBuilder()
    num_ranks = draw(st.integers(1, max_ranks))
    ranks = [builder.rank(number) for number in range(num_ranks)]
    groups = [builder.communicator(range(num_ranks)), builder.communicator(range(num_ranks))]
    records: list[list[int]] = [[-1] for _ in ranks]
    for rank in ranks:
        rank.stream_create(7, non_blocking=False)
    short = st.integers(0, 12)
    for _ in range(draw(st.integers(1, max_steps))):
        stream = draw(st.sampled_from(STREAMS))
        options = {
            "gap_us": draw(short),
            "thread": draw(st.integers(0, 1)),
            "flags": draw(st.sampled_from((0, 0, 1, 4))),
        }
        what = draw(st.sampled_from((*LOCAL, "all_reduce", "exchange")))
        if what == "all_reduce":
            group = draw(st.sampled_from(groups))
            for rank in ranks:
                rank.collective(group, draw(short), stream, **options | {"flags": 0})
        elif what == "exchange" and num_ranks > 1:
            for rank in ranks:
                rank.exchange(
                    groups[0],
                    draw(short),
                    stream,
                    send_to=(rank.number + 1) % num_ranks,
                    receive_from=(rank.number - 1) % num_ranks,
                    **options | {"flags": 0},
                )
        else:
            rank = draw(st.sampled_from(ranks))
            add_local(draw, rank, what, stream, records[rank.number], options)
    return builder.build()


def add_local(
    draw: st.DrawFn, rank: RankBuilder, what: str, stream: int, records: list[int], options: dict[str, Any]
) -> None:
    duration = draw(st.integers(0, 12))
    match what:
        case "copy":
            direction = draw(st.sampled_from((H2D, D2H, D2D)))
            rank.memcpy(direction, duration, stream, pinned=draw(st.booleans()), **options)
        case "record":
            row = rank.record(stream, **options)
            if options["flags"] != 4:
                records.append(row)
        case "wait":
            rank.wait(draw(st.sampled_from(records)), stream, **options)
        case "event_sync":
            rank.event_sync(draw(st.sampled_from(records)), **options)
        case "stream_sync":
            rank.stream_sync(stream, **options)
        case "device_sync":
            rank.device_sync(**options)
        case "free":
            rank.free(**options)
        case "host_func":
            rank.add("host_func", stream=stream, duration_us=duration, **options)
        case _:
            rank.kernel(duration, stream, **options)


parameters = st.fixed_dictionaries(
    {
        "launch_latency_ns": st.sampled_from((0, 5000)),
        "dependency_gap_ns": st.sampled_from((0, 1400)),
        "queue_depth": st.sampled_from((1, 2, 3, 1024)),
    }
)


def lower(job: Job, annotations: list[Annotation]) -> Columns:
    cluster = make_cluster()
    return engine_columns(
        job, [lower_rank(t, a, cluster) for t, a in zip(job.ranks, annotations, strict=True)]
    )


def run(columns: Columns, **options: int) -> Times:
    return dict(zip(NAMES, _engine.simulate(**columns, **options), strict=True))


@settings(max_examples=400, deadline=None)
@given(jobs(), parameters)
def test_engine_agrees_with_the_plain_one(
    made: tuple[Job, list[Annotation]], options: dict[str, int]
) -> None:
    """To the nanosecond, also where the job comes to a standstill."""
    columns = lower(*made)
    fast = run(columns, **options)
    for name, slow in zip(NAMES, SlowEngine(columns, **options).run(), strict=True):
        np.testing.assert_array_equal(fast[name], slow, err_msg=name)


@settings(max_examples=200, deadline=None)
@given(jobs(), parameters)
def test_order_and_exclusion(made: tuple[Job, list[Annotation]], options: dict[str, int]) -> None:
    """Units serve one row at a time, waits are kept, threads go forward, durations are kept."""
    columns = lower(*made)
    times = run(columns, **options)
    done = times["end"] >= 0
    assert (times["start"][done] + columns["duration_ns"][done] <= times["end"][done]).all()
    stream_rank = np.append(columns["stream_rank"], -1)[columns["stream"]]
    for rank in np.unique(columns["stream_rank"]):
        for unit in ("compute", "copy_in", "copy_out"):
            rows = np.flatnonzero(done & (columns["unit"] == UNIT[unit]) & (stream_rank == rank))
            order = rows[np.lexsort((times["end"][rows], times["start"][rows]))]
            assert (times["end"][order][:-1] <= times["start"][order][1:]).all()
    waiting = np.flatnonzero(done & (columns["waits_on"] >= 0))
    assert (times["end"][columns["waits_on"][waiting]] <= times["start"][waiting]).all()
    for lane in np.unique(columns["lane"]):
        rows = np.flatnonzero((columns["lane"] == lane) & (times["host_end"] >= 0))
        assert (times["host_start"][rows] <= times["host_end"][rows]).all()
        assert (times["host_end"][rows][:-1] <= times["host_start"][rows][1:]).all()


@settings(max_examples=100, deadline=None)
@given(jobs(max_ranks=1), parameters)
def test_makespan_is_at_least_the_work_of_each_stream_and_thread(
    made: tuple[Job, list[Annotation]], options: dict[str, int]
) -> None:
    columns = lower(*made)
    times = run(columns, **options)
    if (times["host_end"] < 0).any():
        return  # a standstill: threads that wait for each other
    makespan = max(times["end"].max(), times["host_end"].max())
    for stream in np.unique(columns["stream"]):
        assert columns["duration_ns"][columns["stream"] == stream].sum() <= makespan
    for lane in np.unique(columns["lane"]):
        rows = columns["lane"] == lane
        assert (columns["gap_ns"] + columns["call_ns"])[rows].sum() <= makespan


@settings(max_examples=100, deadline=None)
@given(jobs(), parameters)
def test_same_input_same_output(made: tuple[Job, list[Annotation]], options: dict[str, int]) -> None:
    columns = lower(*made)
    first, second = run(columns, **options), run(columns, **options)
    assert all(first[name].tobytes() == second[name].tobytes() for name in NAMES)


@st.composite
def jobs_without_contention(draw: st.DrawFn) -> tuple[Job, list[Annotation]]:
    """One thread, and a stream for each unit: nothing is decided by who comes first."""
    builder = JobBuilder()
    num_ranks = draw(st.integers(1, 3))
    group = builder.communicator(range(num_ranks))
    streams = {"kernel": 7, "copy": 8, "collective": 9}
    records: list[list[int]] = [[-1] for _ in range(num_ranks)]
    for _ in range(draw(st.integers(1, 30))):
        what = draw(st.sampled_from(("kernel", "copy", "collective", "record", "wait", "stream_sync")))
        stream = streams.get(what) or draw(st.sampled_from(tuple(streams.values())))
        for number in range(num_ranks):
            rank = builder.rank(number)
            options = {"gap_us": draw(st.integers(0, 9))}
            if what == "collective":
                rank.collective(group, draw(st.integers(0, 9)), stream, **options)
            elif what == "copy":
                rank.memcpy(H2D, draw(st.integers(0, 9)), stream, **options)
            else:
                add_local(draw, rank, what, stream, records[number], options | {"flags": 0})
    return builder.build()


@settings(max_examples=200, deadline=None)
@given(jobs_without_contention(), parameters, st.data())
def test_longer_operations_never_make_anything_earlier(
    made: tuple[Job, list[Annotation]], options: dict[str, int], data: st.DataObject
) -> None:
    columns = lower(*made)
    before = run(columns, **options)
    row = data.draw(st.integers(0, len(columns["unit"]) - 1))
    column = data.draw(st.sampled_from(("duration_ns", "gap_ns", "call_ns")))
    if column == "duration_ns" and columns["unit"][row] in (UNIT["none"], UNIT["marker"]):
        return
    columns[column] = columns[column].copy()
    columns[column][row] += data.draw(st.integers(1, 20_000))
    after = run(columns, **options)
    assert all((before[name] <= after[name]).all() for name in NAMES)
