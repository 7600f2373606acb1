"""Streams, events and copies of one rank. Times in microseconds, worked out in each test.

Unless a test says otherwise the host is infinitely fast: calls cost nothing (``free_host``), launches have no
latency, kernels no gap.
"""

import numpy as np
import pytest
from job_builder import D2D, D2H, H2D, H2H, JobBuilder, RankBuilder, make_cluster, make_gpu

from maya.simulator import RankTimes, simulate
from maya.simulator import host_costs as costs

A, B, C = 7, 8, 9  # non-blocking streams
LEGACY, PER_THREAD = 0, 1


@pytest.fixture(autouse=True)
def free_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls cost no host time, so that expected times are sums of durations."""
    monkeypatch.setattr(costs, "HOST_COST_US", dict.fromkeys(costs.HOST_COST_US, 0.0))
    monkeypatch.setattr(costs, "FREE_COST_US", (0.0,) * 5)
    monkeypatch.setattr(costs, "MALLOC_COST_US", (0.0,) * 5)
    monkeypatch.setattr(costs, "LAUNCH_US", 0.0)


@pytest.fixture
def rank() -> RankBuilder:
    return JobBuilder().rank(0)


def run(rank: RankBuilder, **gpu: float) -> RankTimes:
    job, annotations = rank.builder.build()
    return simulate(job, annotations, make_gpu(**gpu), make_cluster()).ranks[0]


def device_us(times: RankTimes, row: int) -> tuple[float, float]:
    return times.start_ns[row] / 1e3, times.end_ns[row] / 1e3


def host_us(times: RankTimes, row: int) -> tuple[float, float]:
    return times.host_start_ns[row] / 1e3, times.host_end_ns[row] / 1e3


def test_kernels_of_one_stream_run_one_after_another(rank: RankBuilder) -> None:
    rows = [rank.kernel(10, A), rank.kernel(5, A)]
    times = run(rank)
    assert [device_us(times, row) for row in rows] == [(0, 10), (10, 15)]


def test_launch_latency_and_kernel_gap(rank: RankBuilder) -> None:
    # Calls at 3 and 4 (gaps 3 and 1). The first kernel starts 8 later, at 11, and ends at 21; the second one
    # would be ready at 12, and starts a gap of 2 behind the first. The third call comes at 44, long after.
    rows = [rank.kernel(10, A, gap_us=3), rank.kernel(5, A, gap_us=1), rank.kernel(5, A, gap_us=40)]
    times = run(rank, launch_latency_us=8, kernel_gap_us=2)
    assert [device_us(times, row) for row in rows] == [(11, 21), (23, 28), (52, 57)]


def test_host_time_ratio_scales_gaps(rank: RankBuilder) -> None:
    row = rank.kernel(1, A, gap_us=10)
    job, annotations = rank.builder.build()
    times = simulate(job, annotations, make_gpu(), make_cluster(host_time_ratio=0.5)).ranks[0]
    assert device_us(times, row) == (5, 6)


def test_event_orders_two_streams(rank: RankBuilder) -> None:
    # The copy in B waits for the 10 us kernel in A, the one issued before the wait does not.
    before = rank.memcpy(H2D, 3, B)
    rank.kernel(10, A)
    event = rank.record(A)
    rank.kernel(20, A)  # not captured by the event
    rank.wait(event, B)
    after = rank.memcpy(H2D, 3, B)
    times = run(rank)
    assert device_us(times, before) == (0, 3)
    assert device_us(times, event) == (10, 10)
    assert device_us(times, after) == (10, 13)


def test_re_recorded_event_keeps_the_earlier_wait(rank: RankBuilder) -> None:
    # One event, recorded after 10 us of work, waited for by B, recorded again after 30 us, waited for by C.
    rank.kernel(10, A)
    first = rank.record(A)
    rank.wait(first, B)
    in_b = rank.memcpy(H2D, 1, B)
    rank.kernel(20, A)
    second = rank.record(A)
    rank.wait(second, C)
    in_c = rank.memcpy(D2H, 1, C)
    times = run(rank)
    assert device_us(times, in_b) == (10, 11)
    assert device_us(times, in_c) == (30, 31)


def test_wait_on_a_never_recorded_event_is_no_wait(rank: RankBuilder) -> None:
    rank.kernel(10, A)
    rank.wait(-1, B)
    copy = rank.memcpy(H2D, 1, B)
    rank.event_sync(-1)
    times = run(rank)
    assert device_us(times, copy) == (0, 1)
    assert host_us(times, 3) == (0, 0)


def test_legacy_default_stream_joins_blocking_streams_both_ways(rank: RankBuilder) -> None:
    # Copy in s, kernel in the default stream, copy in s: all serial, though they use three engines.
    rank.stream_create(A, non_blocking=False)
    rows = [rank.memcpy(H2D, 4, A), rank.kernel(10, LEGACY), rank.memcpy(D2H, 2, A)]
    times = run(rank)
    assert [device_us(times, row) for row in rows] == [(0, 4), (4, 14), (14, 16)]


def test_legacy_default_stream_ignores_non_blocking_streams(rank: RankBuilder) -> None:
    rank.stream_create(A, non_blocking=True)
    rows = [rank.memcpy(H2D, 4, A), rank.kernel(10, LEGACY), rank.memcpy(D2H, 2, A)]
    times = run(rank)
    assert [device_us(times, row) for row in rows] == [(0, 4), (0, 10), (4, 6)]


def test_per_thread_default_stream_is_a_blocking_stream(rank: RankBuilder) -> None:
    rows = [rank.memcpy(H2D, 4, PER_THREAD), rank.kernel(10, LEGACY)]
    times = run(rank)
    assert [device_us(times, row) for row in rows] == [(0, 4), (4, 14)]


def test_event_in_the_legacy_stream_includes_blocking_streams(rank: RankBuilder) -> None:
    # Record in 0 behind a kernel in blocking A; non-blocking B waits for it.
    rank.stream_create(A, non_blocking=False)
    rank.kernel(10, A)
    event = rank.record(LEGACY)
    rank.wait(event, B)
    copy = rank.memcpy(H2D, 1, B)
    assert device_us(run(rank), copy) == (10, 11)


def test_synchronising_the_legacy_stream_waits_for_blocking_streams(rank: RankBuilder) -> None:
    rank.stream_create(A, non_blocking=False)
    rank.stream_create(B, non_blocking=True)
    rank.kernel(10, A)
    rank.memcpy(H2D, 50, B)
    sync = rank.stream_sync(LEGACY)
    assert host_us(run(rank), sync) == (0, 10)


def test_synchronise_stream_event_and_device(rank: RankBuilder) -> None:
    rank.kernel(10, A)
    event = rank.record(A)
    rank.kernel(5, A)
    rank.memcpy(H2D, 30, B)
    rows = [rank.event_sync(event), rank.stream_sync(A), rank.device_sync()]
    late = rank.kernel(1, A)
    times = run(rank)
    assert [host_us(times, row) for row in rows] == [(0, 10), (10, 15), (15, 30)]
    assert device_us(times, late) == (30, 31)


def test_cost_of_a_synchronisation_comes_after_the_wait(
    rank: RankBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(costs.HOST_COST_US, "stream_sync", 3.0)
    rank.kernel(10, A)
    rows = [rank.stream_sync(A), rank.stream_sync(A)]
    times = run(rank)
    assert [host_us(times, row) for row in rows] == [(0, 13), (13, 16)]


@pytest.mark.parametrize(
    ("direction", "options", "blocks"),
    [
        (H2D, {"pinned": True}, False),
        (H2D, {"pinned": True, "blocking": True}, True),
        (H2D, {"pinned": False}, True),  # staged behind the stream
        (H2D, {"pinned": False, "num_bytes": 64 * 1024}, False),
        (H2D, {"pinned": False, "num_bytes": 64 * 1024 + 1}, True),
        (D2H, {"pinned": True}, False),
        (D2H, {"pinned": True, "blocking": True}, True),
        (D2H, {"pinned": False}, True),
        (D2D, {"blocking": True}, False),  # never blocks the host
    ],
)
def test_which_copies_block_the_host(
    rank: RankBuilder, direction: int, options: dict[str, object], blocks: bool
) -> None:
    # A copy of 4 us behind a kernel of 10 us: a blocking one returns at 14, others at once.
    rank.kernel(10, A)
    copy = rank.memcpy(direction, 4, A, **options)  # type: ignore[arg-type]
    times = run(rank)
    assert device_us(times, copy) == (10, 14)
    assert host_us(times, copy) == (0, 14 if blocks else 0)


def test_copy_between_host_memories_is_host_work(rank: RankBuilder) -> None:
    copy = rank.memcpy(H2H, 4, A)
    times = run(rank)
    assert host_us(times, copy) == (0, 4)
    assert device_us(times, copy) == (-0.001, -0.001)


def test_copy_engines_run_beside_each_other_and_beside_kernels(rank: RankBuilder) -> None:
    # Host-to-device copies serial, the other direction and a kernel in parallel.
    rows = [rank.memcpy(H2D, 4, A), rank.memcpy(H2D, 4, B), rank.memcpy(D2H, 6, C), rank.kernel(10, 10)]
    times = run(rank)
    assert [device_us(times, row) for row in rows] == [(0, 4), (4, 8), (0, 6), (0, 10)]


def test_kernels_of_different_streams_share_the_device_in_order_of_readiness(rank: RankBuilder) -> None:
    # B's kernel is called first but waits for a copy of 6; A's second kernel is ready at 4, before that.
    rank.memcpy(H2D, 6, B)
    in_b = rank.kernel(3, B)
    in_a = [rank.kernel(4, A), rank.kernel(4, A)]
    times = run(rank)
    assert [device_us(times, row) for row in in_a] == [(0, 4), (4, 8)]
    assert device_us(times, in_b) == (8, 11)


def test_equal_readiness_goes_by_order_of_calls(rank: RankBuilder) -> None:
    rows = [rank.kernel(4, B), rank.kernel(4, A), rank.kernel(4, C)]
    times = run(rank)
    assert [device_us(times, row) for row in rows] == [(0, 4), (4, 8), (8, 12)]


def test_what_is_ready_goes_before_what_is_called_at_that_instant(rank: RankBuilder) -> None:
    # Thread 1's kernel is ready at 10, behind a copy; thread 0 calls its own at 10, earlier in the trace.
    rank.kernel(0, A)
    rank.memcpy(H2D, 10, B, thread=1)
    called = rank.kernel(4, A, gap_us=10)
    ready = rank.kernel(4, B, gap_us=3, thread=1)
    times = run(rank)
    assert device_us(times, ready) == (10, 14)
    assert device_us(times, called) == (14, 18)


def test_free_waits_for_the_device_and_stream_ordered_free_does_not(rank: RankBuilder) -> None:
    rank.kernel(10, A)
    rows = [rank.free(memory=3), rank.free(memory=0)]
    times = run(rank)
    assert [host_us(times, row) for row in rows] == [(0, 0), (0, 10)]


def test_host_function_holds_its_stream(rank: RankBuilder) -> None:
    rank.kernel(10, A)
    function = rank.add("host_func", stream=A, duration_us=5)
    copy = rank.memcpy(H2D, 1, A)
    times = run(rank)
    assert device_us(times, function) == (10, 15)
    assert device_us(times, copy) == (15, 16)


def test_full_launch_queue_blocks_the_host(rank: RankBuilder) -> None:
    # Kernels of 1 us and a queue of 1024: launch 1025 returns when kernel 1 ends, launch 1026 when 2 does.
    rows = [rank.kernel(1, A) for _ in range(3000)]
    times = run(rank)
    host_end_us = times.host_end_ns[rows] / 1e3
    assert (host_end_us[:1024] == 0).all()
    np.testing.assert_array_equal(host_end_us[1024:], np.arange(1, 3000 - 1024 + 1))


def test_launch_queues_are_per_stream_and_markers_take_no_place(rank: RankBuilder) -> None:
    for _ in range(1024):
        rank.kernel(1, A)
        rank.record(A)
    other = rank.kernel(1, B)
    full = rank.kernel(1, A)
    times = run(rank)
    assert host_us(times, other) == (0, 0)
    assert host_us(times, full) == (0, 1)


def test_woken_thread_goes_on_after_the_call_before(rank: RankBuilder) -> None:
    # Thread 0 calls at 5 and hands over; thread 1 was asleep (flag 1), calls 2 later, and again at 9; thread
    # 0 then wakes and calls 4 later, at 13.
    rows = [
        rank.kernel(1, A, gap_us=5),
        rank.kernel(1, A, gap_us=2, thread=1, flags=1),
        rank.kernel(1, A, gap_us=2, thread=1),
        rank.kernel(1, A, gap_us=4, flags=1),
    ]
    times = run(rank)
    assert [host_us(times, row)[0] for row in rows] == [5, 7, 9, 13]


def test_threads_without_a_handoff_run_side_by_side(rank: RankBuilder) -> None:
    # Thread 1 begins behind row 0, then both go on by their own gaps: rows 2 and 3 at 15 and 5 + 2 + 3.
    rows = [
        rank.kernel(1, A, gap_us=5),
        rank.kernel(1, B, gap_us=2, thread=1),
        rank.kernel(1, A, gap_us=10),
        rank.kernel(1, B, gap_us=3, thread=1),
    ]
    times = run(rank)
    assert [host_us(times, row)[0] for row in rows] == [5, 7, 15, 10]


def test_watchdog_calls_take_no_part(rank: RankBuilder) -> None:
    # Flag 4: the handoff looks past the watchdog's query, which costs nothing.
    rank.kernel(1, A, gap_us=5)
    rank.add("event_query", thread=2, gap_us=1000, flags=4)
    row = rank.kernel(1, A, gap_us=2, thread=1, flags=1)
    assert host_us(run(rank), row) == (7, 7)


def test_graph_nodes_cost_no_call(rank: RankBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(costs.HOST_COST_US, "kernel", 2.0)
    monkeypatch.setitem(costs.HOST_COST_US, "graph_launch", 10.0)
    rank.add("graph_launch", stream=A)
    rows = [rank.kernel(4, A, flags=2), rank.kernel(4, A, flags=2)]
    times = run(rank)
    assert [device_us(times, row) for row in rows] == [(10, 14), (14, 18)]
