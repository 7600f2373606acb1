"""One rank: iterations, host gaps, waits, operators."""

from pathlib import Path

import numpy as np
import pytest
from trace_writer import TraceWriter, write_job

from maya.collate import collate
from maya.collate.host_gaps import STRETCH_NS
from maya.collate.operators import parse_range
from maya.errors import TraceError

BLOCKED, NOT_WORKLOAD = 1, 4


def program(writer: TraceWriter, iteration, num_plain: int = 3, warmup: int = 1) -> None:
    """Runs ``iteration(number)`` with the marks of the start-up hook; number -1 is the announcing one."""
    for number in range(warmup):
        iteration(writer, -2 - number)
        writer.iteration(number + 1)
    writer.mark("shapes", 1)
    iteration(writer, -1)
    writer.mark("shapes", 0)
    writer.iteration(warmup + 1)
    for number in range(num_plain):
        iteration(writer, number)
        writer.iteration(warmup + 2 + number)
    writer.mark("stop", 0)


def test_steady_part_is_the_plain_iterations(tmp_path: Path) -> None:
    writer = TraceWriter()
    program(writer, lambda w, i: w.kernel(f"k{i}"), num_plain=2, warmup=2)
    rank = collate(write_job(tmp_path, [writer])).ranks[0]
    assert rank.num_iterations == 2
    assert rank.details["kernel"]["name"].tolist() == ["k0", "k1"]
    assert rank.ops["iteration"].tolist() == [0, 1]
    assert (rank.peak_allocated_bytes, rank.peak_reserved_bytes) == (1000, 2000)


def test_too_few_iterations_say_what_to_do(tmp_path: Path) -> None:
    writer = TraceWriter()
    program(writer, lambda w, i: w.kernel("k"), num_plain=0)
    with pytest.raises(
        TraceError, match=r"has 2 iterations, but no whole one .* Let the program run more steps"
    ):
        collate(write_job(tmp_path, [writer]))


def test_without_announcing_iteration_the_newest_are_steady(tmp_path: Path) -> None:
    writer = TraceWriter()
    for number in range(1, 5):
        writer.kernel(f"k{number}")
        writer.iteration(number)
    rank = collate(write_job(tmp_path, [writer])).ranks[0]
    assert rank.details["kernel"]["name"].tolist() == ["k3", "k4"]


def test_gaps_are_those_of_a_fast_execution_around_a_call(tmp_path: Path) -> None:
    gaps_ns = {-2: (1, 1), -1: (1, 1), 0: (40, 10), 1: (13, 50), 2: (20, 21)}
    writer = TraceWriter()

    def iteration(w: TraceWriter, i: int) -> None:
        for name, gap_ns in zip("ab", gaps_ns[i], strict=True):
            w.kernel(name, gap_ns=gap_ns)
        w.kernel("long", gap_ns=STRETCH_NS)  # the next call begins another stretch
        w.kernel("c", gap_ns=100 - i)

    program(writer, iteration)
    ops = collate(write_job(tmp_path, [writer])).ranks[0].ops
    assert ops["gap_ns"].tolist() == [20, 21, STRETCH_NS, 98] * 3


def test_repeats_tell_host_gaps_only(tmp_path: Path) -> None:
    writer = TraceWriter()
    for number in range(1, 9):
        writer.kernel(f"k{number}" if number > 6 else "k", gap_ns=100 - number)
        writer.kernel("end", gap_ns=0)
        writer.iteration(number)
        if number == 4:
            writer.mark("repeats", 4)
    rank = collate(write_job(tmp_path, [writer])).ranks[0]
    assert rank.num_iterations == 2
    assert rank.details["kernel"]["name"].tolist() == ["k", "end"] * 2
    # In four of six iterations, so not in all of them: the median.
    assert rank.ops["gap_ns"].tolist() == [95, 0] * 2


def test_ranks_of_equal_operations_share_their_gaps(tmp_path: Path) -> None:
    writers = []
    for rank, gaps_ns in enumerate([(50, 60), (40, 70), (10, 20)]):
        writer = TraceWriter(rank)

        def iteration(w: TraceWriter, i: int, gaps_ns=gaps_ns, name="b" if rank < 2 else "other") -> None:
            w.kernel("a", gap_ns=gaps_ns[i % 2])
            w.kernel(name, gap_ns=7)

        program(writer, iteration, num_plain=2)
        writers.append(writer)
    ranks = collate(write_job(tmp_path, writers)).ranks
    assert [rank.ops["gap_ns"].tolist() for rank in ranks] == [[50, 7] * 2, [50, 7] * 2, [10, 7] * 2]


def test_call_of_one_iteration_keeps_its_gap_and_shifts_nothing(tmp_path: Path) -> None:
    writer = TraceWriter()

    def iteration(w: TraceWriter, i: int) -> None:
        w.kernel("a", gap_ns=10 + i)
        if i == 1:
            w.record("malloc", address=1, bytes=512, memory=0, gap_ns=777)
        w.kernel("b", gap_ns=20 + i)

    program(writer, iteration)
    ops = collate(write_job(tmp_path, [writer])).ranks[0].ops
    assert ops["kind"].tolist() == ["kernel", "kernel", "kernel", "malloc", "kernel", "kernel", "kernel"]
    assert ops["gap_ns"].tolist() == [10, 20, 10, 777, 20, 10, 20]


def test_gaps_of_records_left_out_go_to_the_next_call_of_the_thread(tmp_path: Path) -> None:
    writer = TraceWriter()

    def iteration(w: TraceWriter, i: int) -> None:
        # The marks of the hook in between: the gap before the first is the program's (700), the
        # two of 50,000 between them are the hook's.
        w.record("range_push", name="user", gap_ns=100)
        w.kernel("other", thread=1, gap_ns=1000)
        w.record("range_pop", gap_ns=30, flags=BLOCKED)
        w.kernel("a", gap_ns=4)

    for number in range(1, 6):
        iteration(writer, number)
        writer.iteration(number, gap_ns=700)
    ops = collate(write_job(tmp_path, [writer])).ranks[0].ops
    assert ops["thread"].tolist() == [1, 0] * 3
    assert ops["gap_ns"].tolist() == [1000, 834] * 3
    assert ops["flags"].tolist() == [0, BLOCKED] * 3


def test_blocked_is_what_most_iterations_say(tmp_path: Path) -> None:
    writer = TraceWriter()

    def iteration(w: TraceWriter, i: int) -> None:
        w.kernel("a", flags=BLOCKED if i == 1 else 0)
        w.kernel("b", flags=0 if i == 1 else BLOCKED)

    program(writer, iteration)
    ops = collate(write_job(tmp_path, [writer])).ranks[0].ops
    assert ops["flags"].tolist() == [0, BLOCKED] * 3


def test_watchdog_is_no_workload_but_queries_of_the_program_are(tmp_path: Path) -> None:
    writer = TraceWriter()

    def iteration(w: TraceWriter, i: int) -> None:
        w.kernel("a")
        w.record("device_sync")
        w.record("event_query", thread=9, flags=NOT_WORKLOAD, event=3, version=1)
        w.record("event_query", event=4, version=0)

    program(writer, iteration, num_plain=1)
    ops = collate(write_job(tmp_path, [writer])).ranks[0].ops
    assert ops["kind"].tolist() == ["kernel", "device_sync", "event_query"]
    assert ops["thread"].tolist() == [0, 0, 0]


def test_wait_is_bound_to_the_version_current_at_its_call(tmp_path: Path) -> None:
    writer = TraceWriter()
    version = iter(range(1, 100))

    def iteration(w: TraceWriter, i: int) -> None:
        first, second = next(version), next(version)
        w.record("event_record", stream=1, event=5, version=first)  # row 0
        w.record("stream_wait_event", stream=2, event=5, version=first)  # row 1
        w.record("event_record", stream=1, event=5, version=second)  # row 2
        w.record("stream_wait_event", stream=2, event=5, version=first)  # row 3, called before row 2
        w.record("event_sync", event=5, version=second)  # row 4
        w.record("stream_wait_event", stream=2, event=6, version=0)  # row 5, never recorded
        w.record("stream_wait_event", stream=2, event=7, version=1)  # row 6, recorded before the steady part

    writer.record("event_record", stream=0, event=7, version=1)
    program(writer, iteration, num_plain=2)
    ops = collate(write_job(tmp_path, [writer])).ranks[0].ops
    assert ops["waits_on"].tolist() == [-1, 0, -1, 0, 2, -1, -1, -1, 7, -1, 7, 9, -1, -1]
    assert ops["stream"].tolist()[:5] == [1, 2, 1, 2, -1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aten::relu", ("aten::relu", "")),
        (
            "aten::addmm, op_id = 123, sizes = [[768], [8, 768], [], []], input_op_ids = [(120,0), (121,0)]",
            ("aten::addmm", "[[768], [8, 768], [], []]"),
        ),
        ("AddmmBackward0, seq = 5, op_id = 7, sizes = [[8, 768]]", ("AddmmBackward0", "[[8, 768]]")),
        ("aten::cat, sizes = [[], []]", ("aten::cat", "[[], []]")),
        ("Optimizer.step#AdamW.step, op_id = 9", ("Optimizer.step#AdamW.step", "")),
        ("layer 3, sizes = many", ("layer 3, sizes = many", "")),
    ],
)
def test_text_of_a_range(text: str, expected: tuple[str, str]) -> None:
    assert parse_range(text) == expected


def test_operator_is_the_innermost_with_sizes(tmp_path: Path) -> None:
    writer = TraceWriter()

    def iteration(w: TraceWriter, i: int) -> None:
        if i == -1:
            w.record("range_push", name="aten::linear, op_id = 1, sizes = [[4, 8], [8, 8]]")
            w.record("range_push", name="aten::addmm, op_id = 2, sizes = [[8], [4, 8], [8, 8]]")
            w.record("range_push", thread=1, name="MulBackward0, seq = 3, op_id = 3, sizes = [[4]]")
            w.record("range_push", thread=1, name="aten::scalar_tensor, op_id = 4, sizes = [[], []]")
        w.record("gemm", stream=0, library=0, m=8, n=4, k=8)
        w.kernel("mul", thread=1, grid=2)
        if i == -1:
            w.record("range_pop", thread=1)
            w.record("range_pop", thread=1)
            w.record("range_pop")
        w.kernel("relu", grid=4)
        if i == -1:
            w.record("range_pop")
        w.kernel("relu", grid=4)

    program(writer, iteration, num_plain=2)
    details = collate(write_job(tmp_path, [writer])).ranks[0].details
    assert details["gemm"]["operator"].tolist() == ["aten::addmm"] * 2
    assert details["gemm"]["shapes"].tolist() == ["[[8], [4, 8], [8, 8]]"] * 2
    # The second relu is outside of all ranges; equal launches are told apart by their order.
    assert details["kernel"]["operator"].tolist() == ["MulBackward0", "aten::linear", ""] * 2
    assert details["kernel"].index.tolist() == [1, 2, 3, 5, 6, 7]


def test_program_without_marks_is_cut_at_its_period(tmp_path: Path) -> None:
    writer = TraceWriter()
    for number in range(7):
        writer.kernel(f"init{number}", gap_ns=100)
    # Micro-batches repeat within the iteration, and counters differ between iterations.
    for number in range(5):
        for _ in range(3):
            writer.kernel("forward", scalar0=number)
            writer.kernel("backward")
        writer.kernel("step", scalar0=number)
        writer.record("event_record", stream=0, event=1, version=number)
    rank = collate(write_job(tmp_path, [writer])).ranks[0]
    assert rank.num_iterations == 3
    names = rank.details["kernel"].assign(iteration=rank.ops["iteration"])
    per_iteration = [group["name"].tolist() for _, group in names.groupby("iteration")]
    assert all(sorted(kernels) == sorted(["forward", "backward"] * 3 + ["step"]) for kernels in per_iteration)
    assert per_iteration[0] == per_iteration[1] == per_iteration[2]


def test_program_that_never_repeats_is_refused(tmp_path: Path) -> None:
    writer = TraceWriter()
    for number in range(9):
        writer.kernel(f"k{number}")
    with pytest.raises(TraceError, match="9 device operations do not repeat"):
        collate(write_job(tmp_path, [writer]))


def test_program_without_device_operations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has no device operations"):
        collate(write_job(tmp_path, [TraceWriter()]))


def test_calls_are_summed_over_ranks(tmp_path: Path) -> None:
    writers = [TraceWriter(rank=0), TraceWriter(rank=1)]
    for writer in writers:
        program(writer, lambda w, i: w.kernel("k"))
    job = collate(write_job(tmp_path, writers))
    assert job.calls == {"cudaLaunchKernel": 6}
    assert job.unemulated_calls == {"cufftExecC2C": 2}
    assert (job.world_size, job.gpu, job.gpus_per_node) == (2, "h100_sxm", 8)


def test_graph_expansion_has_no_operator(tmp_path: Path) -> None:
    writer = TraceWriter()

    def iteration(w: TraceWriter, i: int) -> None:
        w.record("range_push", name="aten::mul, sizes = [[4]]")
        w.record("graph_launch", stream=0, graph=1, num_operations=1)
        w.kernel("mul", flags=2)
        w.record("range_pop")

    program(writer, iteration, num_plain=1)
    rank = collate(write_job(tmp_path, [writer])).ranks[0]
    assert rank.ops["kind"].tolist() == ["graph_launch", "kernel"]
    assert rank.details["kernel"]["operator"].tolist() == [""]
    assert np.array_equal(rank.ops["flags"], [0, 2])
