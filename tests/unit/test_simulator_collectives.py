"""Operations of several ranks: rendezvous, communicators, pipelines, deadlocks. Times in microseconds."""

import pytest
from job_builder import JobBuilder, RankBuilder, make_cluster, make_gpu

from maya.errors import SimulationError
from maya.simulator import Simulation, simulate
from maya.simulator import host_costs as costs

COMPUTE, NCCL, OTHER = 7, 8, 9


@pytest.fixture(autouse=True)
def free_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls cost no host time, so that expected times are sums of durations."""
    monkeypatch.setattr(costs, "HOST_COST_US", dict.fromkeys(costs.HOST_COST_US, 0.0))
    monkeypatch.setattr(costs, "LAUNCH_US", 0.0)


def run(builder: JobBuilder) -> Simulation:
    job, annotations = builder.build()
    return simulate(job, annotations, make_gpu(), make_cluster())


def spans_us(simulation: Simulation, rank: int, rows: list[int]) -> list[tuple[float, float]]:
    times = simulation.ranks[rank]
    return [(times.start_ns[row] / 1e3, times.end_ns[row] / 1e3) for row in rows]


def test_late_rank_in_an_all_reduce() -> None:
    # Ranks reach it after kernels of 10 and 30; it takes 5, and ends for both at 35.
    builder = JobBuilder()
    group = builder.communicator([0, 1])
    rows = []
    for number, work in enumerate((10, 30)):
        rank = builder.rank(number)
        rank.kernel(work, COMPUTE)
        rows.append([rank.collective(group, 5, COMPUTE), rank.kernel(2, COMPUTE)])
    simulation = run(builder)
    assert spans_us(simulation, 0, rows[0]) == [(10, 35), (35, 37)]
    assert spans_us(simulation, 1, rows[1]) == [(30, 35), (35, 37)]


def test_the_longest_duration_of_the_participants_counts() -> None:
    builder = JobBuilder()
    group = builder.communicator([0, 1])
    rows = [builder.rank(number).collective(group, 5 + number, NCCL) for number in range(2)]
    simulation = run(builder)
    assert spans_us(simulation, 0, rows[:1]) == spans_us(simulation, 1, rows[1:]) == [(0, 6)]


def test_collective_of_a_class_that_meets_only_itself_runs_by_itself() -> None:
    rank = JobBuilder().rank(0, members=(0, 1, 2, 3))
    group = rank.builder.communicator([0, 1, 2, 3])
    rank.kernel(10, COMPUTE)
    row = rank.add(
        "collective", stream=COMPUTE, duration_us=4, communicator=group, op="all_reduce", dtype="float32"
    )
    assert spans_us(run(rank.builder), 0, [row]) == [(10, 14)]


def test_one_rank_stands_for_a_class_of_equal_ranks() -> None:
    # Four equal ranks in full against one that stands for all: equal times to the nanosecond.
    def issue(rank: RankBuilder, group: int) -> None:
        for micro_batch in range(3):
            rank.kernel(7 + micro_batch, COMPUTE, gap_us=2)
            event = rank.record(COMPUTE)
            rank.wait(event, NCCL)
            meets = [rank.builder.meet((group, "all_reduce"), rank.number)]
            rank.add(
                "collective",
                stream=NCCL,
                duration_us=9,
                rendezvous=meets,
                communicator=group,
                op="all_reduce",
            )
        rank.stream_sync(NCCL)

    full, quotient = JobBuilder(), JobBuilder()
    group = full.communicator(range(4))
    for number in range(4):
        issue(full.rank(number), group)
    issue(quotient.rank(0, members=(0, 1, 2, 3)), quotient.communicator([0]))
    expected = run(quotient).ranks[0]
    for times in run(full).ranks:
        assert (times.end_ns == expected.end_ns).all()
        assert (times.host_end_ns == expected.host_end_ns).all()


def test_collectives_overlap_with_kernels() -> None:
    builder = JobBuilder()
    group = builder.communicator([0])
    rank = builder.rank(0)
    rows = [rank.collective(group, 10, NCCL), rank.kernel(8, COMPUTE)]
    assert spans_us(run(builder), 0, rows) == [(0, 10), (0, 8)]


def test_one_communicator_in_two_streams_is_serial() -> None:
    # NCCL chains them in the order of the calls: the second waits for the first though its stream is free.
    builder = JobBuilder()
    group = builder.communicator([0])
    rank = builder.rank(0)
    rank.kernel(10, COMPUTE)
    rows = [rank.collective(group, 5, COMPUTE), rank.collective(group, 4, NCCL)]
    assert spans_us(run(builder), 0, rows) == [(10, 15), (15, 19)]


def test_two_communicators_run_in_parallel() -> None:
    builder = JobBuilder()
    groups = [builder.communicator([0]), builder.communicator([0])]
    rank = builder.rank(0)
    rank.kernel(10, COMPUTE)
    rows = [rank.collective(groups[0], 5, COMPUTE), rank.collective(groups[1], 4, NCCL)]
    assert spans_us(run(builder), 0, rows) == [(10, 15), (0, 4)]


def test_grouped_send_and_receive_is_one_operation_with_two_rendezvous() -> None:
    # A ring of three; each rank sends on and receives in one group, at 10, 20 and 40. Rank 0 meets 1 at 20
    # and 2 at 40, so it ends at 42. Rank 1 meets 0 at 20 and 2 at 40, rank 2 both at 40: all end at 42.
    builder = JobBuilder()
    group = builder.communicator([0, 1, 2])
    rows = []
    for number, work in enumerate((10, 20, 40)):
        rank = builder.rank(number)
        rank.kernel(work, COMPUTE)
        rows.append(rank.exchange(group, 2, COMPUTE, send_to=(number + 1) % 3, receive_from=(number - 1) % 3))
    simulation = run(builder)
    assert [spans_us(simulation, number, [row]) for number, row in enumerate(rows)] == [
        [(10, 42)],
        [(20, 42)],
        [(40, 42)],
    ]


def test_unfinished_group_of_a_chain_ends_by_its_own_rendezvous() -> None:
    # Open chain 0 -> 1 -> 2 with ranks ready at 10, 20, 40: 0 meets 1 at 20 and ends at 22, the others at 42.
    builder = JobBuilder()
    group = builder.communicator([0, 1, 2])
    rows = []
    for number, work in enumerate((10, 20, 40)):
        rank = builder.rank(number)
        rank.kernel(work, COMPUTE)
        send_to = number + 1 if number < 2 else None
        receive_from = number - 1 if number > 0 else None
        rows.append(rank.exchange(group, 2, COMPUTE, send_to=send_to, receive_from=receive_from))
    simulation = run(builder)
    ends = [spans_us(simulation, number, [row])[0][1] for number, row in enumerate(rows)]
    assert ends == [22, 42, 42]


FORWARD, BACKWARD, TRANSFER = 10.0, 20.0, 1.0


def pipeline(num_micro_batches: int) -> JobBuilder:
    """1F1B on two stages; work and transfers of a stage share a stream, as with blocking send and receive."""
    builder = JobBuilder()
    group = builder.communicator([0, 1])

    def forward(rank: RankBuilder) -> None:
        rank.kernel(FORWARD, COMPUTE)

    def backward(rank: RankBuilder) -> None:
        rank.kernel(BACKWARD, COMPUTE)

    first, last = builder.rank(0), builder.rank(1)
    forward(first)  # warm-up: one micro-batch ahead
    first.exchange(group, TRANSFER, COMPUTE, send_to=1)
    for number in range(num_micro_batches):
        if number + 1 < num_micro_batches:
            forward(first)
            first.exchange(group, TRANSFER, COMPUTE, send_to=1, receive_from=1)
        else:
            first.exchange(group, TRANSFER, COMPUTE, receive_from=1)
        backward(first)
    last.exchange(group, TRANSFER, COMPUTE, receive_from=0)
    for number in range(num_micro_batches):
        forward(last)
        backward(last)
        if number + 1 < num_micro_batches:
            last.exchange(group, TRANSFER, COMPUTE, send_to=0, receive_from=0)
        else:
            last.exchange(group, TRANSFER, COMPUTE, send_to=0)
    return builder


def test_1f1b_of_two_stages_and_four_micro_batches() -> None:
    # F = 10, B = 20, transfer = 1. Stage 0: F1 0-10, transfer 10-11. Stage 1: F1 11-21, B1 21-41, then the
    # exchange of gradient 1 for activation 2 (ready on stage 0 at 21, so it waits) 41-42.
    # From here on both stages do 30 us a micro-batch: stage 1 F2 42-52, B2 52-72; stage 0 B1 42-62, F3 62-72;
    # exchange 72-73. Likewise exchanges at 103-104 (gradient 3, activation 4) and, without activation, at
    # 134-135; then stage 0 ends with B4 135-155.
    simulation = run(pipeline(4))
    assert simulation.makespan_ns == 155_000
    last = simulation.ranks[1]
    assert (last.end_ns[-1], last.host_end_ns[-1]) == (135_000, 0)


@pytest.mark.parametrize("num_micro_batches", [1, 2, 8, 32])
def test_1f1b_grows_by_one_period_a_micro_batch(num_micro_batches: int) -> None:
    # F + t before stage 1 starts, F + B + t per micro-batch on stage 1, B behind the last one on stage 0.
    period = FORWARD + BACKWARD + TRANSFER
    expected_us = FORWARD + TRANSFER + num_micro_batches * period + BACKWARD
    assert run(pipeline(num_micro_batches)).makespan_ns == expected_us * 1e3


def test_opposite_orders_on_two_communicators_are_a_deadlock() -> None:
    builder = JobBuilder()
    tensor, data = builder.communicator([0, 1], "TENSOR"), builder.communicator([0, 1], "DATA")
    for number, order in enumerate(((tensor, data), (data, tensor))):
        for group in order:
            builder.rank(number).collective(group, 5, NCCL)
        builder.rank(number).stream_sync(NCCL)
    with pytest.raises(SimulationError) as error:
        run(builder)
    text = str(error.value)
    assert "rank 0, stream 8: all_reduce number 0 on communicator 'TENSOR' (row 0) waits for rank 1" in text
    assert "rank 1, stream 8: all_reduce number 0 on communicator 'DATA' (row 0) waits for rank 0" in text
    assert "rank 0, thread 0: is held in stream_sync (row 2)" in text
    assert "Capture the job again" in text


def test_a_collective_that_a_rank_never_issues_is_named() -> None:
    builder = JobBuilder()
    group = builder.communicator([0, 1], "DATA")
    builder.rank(1).kernel(3, COMPUTE)
    for _ in range(2):
        builder.rank(0).collective(group, 5, NCCL)
    builder.rank(1).collective(group, 5, NCCL)
    with pytest.raises(
        SimulationError, match=r"number 1 on communicator 'DATA' \(row 1\) waits for 1 participant"
    ):
        run(builder)


def test_hundreds_of_waiting_ranks_are_listed_in_short() -> None:
    builder = JobBuilder()
    group = builder.communicator(range(101))
    for number in range(100):
        builder.rank(number).collective(group, 5, NCCL)
    with pytest.raises(SimulationError) as error:
        run(builder)
    assert len(str(error.value).splitlines()) < 30
    assert "and 76 more" in str(error.value)


def test_too_many_arrivals_are_refused() -> None:
    builder = JobBuilder()
    group = builder.communicator([0])
    rank = builder.rank(0)
    for _ in range(2):
        rank.add(
            "collective", stream=NCCL, rendezvous=[0], communicator=group, op="all_reduce", dtype="float32"
        )
    builder.meet((group, "all_reduce"), 0)
    with pytest.raises(SimulationError, match="more rows than arrivals"):
        run(builder)


def test_unknown_kind_and_wrong_lengths_are_refused() -> None:
    builder = JobBuilder()
    builder.rank(0).add("teleport", stream=COMPUTE)
    with pytest.raises(
        SimulationError, match="Rank 0, row 0: the simulator knows no operation of kind 'teleport'"
    ):
        run(builder)
    builder = JobBuilder()
    builder.rank(0).kernel(1, COMPUTE)
    job, _ = builder.build()
    with pytest.raises(SimulationError, match="one annotation for each simulated rank"):
        simulate(job, [], make_gpu(), make_cluster())
