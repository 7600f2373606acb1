"""Numbers of summary.json and timelines, on jobs whose times (microseconds) are worked out by hand."""

import gzip
import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from job_builder import D2H, H2D, JobBuilder, make_cluster, make_gpu

from maya.errors import SimulationError
from maya.estimators.annotation import Annotation
from maya.simulator import (
    Simulation,
    Summary,
    simulate,
    summarise,
    timeline_rows,
    write_chrome_trace,
    write_summary,
)
from maya.simulator import host_costs as costs
from maya.simulator.summary import out_of_memory_summary

US = 1e-6
COMPUTE, NCCL, COPY = 7, 8, 9


@pytest.fixture(autouse=True)
def free_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "HOST_COST_US", dict.fromkeys(costs.HOST_COST_US, 0.0))
    monkeypatch.setattr(costs, "LAUNCH_US", 0.0)


def two_iterations() -> JobBuilder:
    """Rank 0 alone and rank 1 for three, two iterations each.

    The first iteration is odd (100 us of host time). In the second one, from its begin: a GEMM 0-40 on rank 0
    and 0-60 on rank 1; a collective of 20 behind it on stream 8 (60-80 on both, so rank 0 waits 40-60); a
    kernel of 10 behind the GEMM (40-50, 60-70); a copy to the host of 5 behind the collective (80-85); then
    the host waits for the copy, spends 15 us, and launches a kernel of 5 (100-105).
    """
    builder = JobBuilder()
    group = builder.communicator([0, 1], "DATA")
    ranks = [builder.rank(0), builder.rank(1, members=(1, 2, 3))]
    for number, rank in enumerate(ranks):
        rank.kernel(1, COMPUTE, gap_us=100)
        rank.device_sync()
        rank.iteration = 1
        rank.gemm(40 + 20 * number, flops=1e9, stream=COMPUTE, basis="measured")
        event = rank.record(COMPUTE)
        rank.kernel(10, COMPUTE, name="fused", operator="aten::add", shapes="[[4]]")
        rank.wait(event, NCCL)
        rank.collective(group, 20, NCCL)
        rank.memcpy(D2H, 5, NCCL)
        rank.stream_sync(NCCL)
        rank.kernel(5, COMPUTE, gap_us=15)
        rank.device_sync()
    return builder


def run(builder: JobBuilder, **gpu_values: float) -> tuple[Simulation, Summary, list[Annotation]]:
    job, annotations = builder.build()
    gpu = make_gpu(**gpu_values)
    simulation = simulate(job, annotations, gpu, make_cluster())
    return simulation, summarise(job, annotations, simulation, gpu), annotations


def test_time_of_one_iteration_and_its_parts() -> None:
    simulation, summary, _ = run(two_iterations())
    assert simulation.iteration_end_ns.tolist() == [101_000, 206_000]
    assert summary.iteration_time_s == pytest.approx(105 * US)
    # Compute: rank 0 40 + 10 + 5, ranks 1 to 3 60 + 10 + 5.
    assert summary.compute_s == pytest.approx((55 + 3 * 75) / 4 * US)
    # Communication: rank 0 40-80, hidden by the kernel 40-50; the others 60-80, hidden 60-70.
    assert summary.communication_s == pytest.approx((40 + 3 * 20) / 4 * US)
    assert summary.exposed_communication_s == pytest.approx((30 + 3 * 10) / 4 * US)
    # Rank 0 waits 40-60 for rank 1, of it 50-60 with nothing beside it.
    assert summary.rendezvous_wait_s == pytest.approx(10 / 4 * US)
    assert summary.exposed_copy_s == pytest.approx(5 * US)
    assert summary.host_bound_s == pytest.approx(15 * US)
    parts = (summary.compute_s, summary.exposed_communication_s, summary.exposed_copy_s, summary.host_bound_s)
    assert sum(parts) == pytest.approx(summary.iteration_time_s)


def test_gaps_between_queued_operations_are_not_host_bound() -> None:
    # Launch latency 8, gap 2: kernels at 8-18 and 20-25, then the host waits and thinks 15: the next one is
    # called at 40 and runs 48-53. Idle: 0-8 and 25-48 for want of work, 18-20 between queued kernels.
    builder = JobBuilder()
    rank = builder.rank(0)
    rank.kernel(10, COMPUTE)
    rank.kernel(5, COMPUTE)
    rank.stream_sync(COMPUTE)
    rank.kernel(5, COMPUTE, gap_us=15)
    _, summary, _ = run(builder, kernel_gap_us=2, launch_latency_us=8)
    assert summary.iteration_time_s == pytest.approx(53 * US)
    assert summary.compute_s == pytest.approx(20 * US)
    assert summary.launch_gap_s == pytest.approx(2 * US)
    assert summary.host_bound_s == pytest.approx(31 * US)


def test_counts_shares_and_utilisation() -> None:
    _, summary, _ = run(two_iterations())
    assert (summary.operations, summary.host_calls) == (5, 9)
    # Device time, ranks weighted 1 : 3: GEMM 55, kernels 15, collective 20, copy 5.
    assert summary.duration_basis == pytest.approx(
        {
            "measured": 55 / 95,
            "interpolated": 0,
            "extrapolated": 0,
            "borrowed": 0,
            "bound": 20 / 95,
            "model": 20 / 95,
        }
    )
    assert list(summary.device_time_s) == ["gemm", "all_reduce", "elementwise", "copy"]
    assert summary.device_time_s["gemm"] == pytest.approx(55 * US)
    # 1e9 bf16 FLOP at 1e15 FLOP/s take 1 us of 105.
    assert summary.matrix_flops == {"bf16": 1e9}
    assert summary.hfu == pytest.approx(1 / 105)
    busy = {(stream["rank"], stream["stream"]): stream["busy_s"] for stream in summary.streams}
    assert busy == pytest.approx({(0, 7): 55 * US, (0, 8): 45 * US, (1, 7): 75 * US, (1, 8): 25 * US})


def test_single_iteration_counts_from_the_start() -> None:
    builder = JobBuilder()
    builder.rank(0).kernel(10, COMPUTE, gap_us=30)
    _, summary, _ = run(builder)
    assert summary.iteration_time_s == pytest.approx(40 * US)
    assert summary.host_bound_s == pytest.approx(30 * US)


def test_several_iterations_are_averaged_without_the_first() -> None:
    builder = JobBuilder()
    rank = builder.rank(0)
    for iteration, duration in enumerate((50, 10, 20, 30)):
        rank.iteration = iteration
        rank.kernel(duration, COMPUTE)
        rank.device_sync()
    _, summary, _ = run(builder)
    assert summary.iteration_time_s == pytest.approx(20 * US)
    assert summary.compute_s == pytest.approx(20 * US)
    assert summary.operations == 1


def test_utilisation_by_type() -> None:
    # bf16 at 1e15 and fp32 at 5e13: 1 + 3 us of 100. tf32 has no rate here and counts at that of fp32;
    # attention as a plain kernel counts with the type that most have.
    builder = JobBuilder()
    rank = builder.rank(0)
    rank.gemm(40, flops=8e8, type_a=14)
    rank.kernel(10, op_kind="attention", flops=2e8)
    rank.gemm(35, flops=5e7, type_a=0)
    rank.gemm(5, flops=5e7, type_a=0, compute_type=77)
    rank.add("conv", stream=0, duration_us=3, op_kind="conv", flops=3e7, dtype=0, compute_dtype=1000)
    rank.add("conv", stream=0, duration_us=2, op_kind="conv", flops=2e7, dtype=0, compute_dtype=0)
    rank.kernel(5, op_kind="elementwise", flops=1e12)
    _, summary, _ = run(builder)
    assert summary.matrix_flops == pytest.approx({"bf16": 1e9, "fp32": 7e7, "tf32": 8e7})
    assert summary.hfu == pytest.approx(0.04)


def test_memory_of_the_fullest_rank() -> None:
    # 0.5 GB of context; rank 1: 70 GB reserved and 0.2 GB of communicators.
    builder = JobBuilder()
    for number, reserved in enumerate((60, 70)):
        rank = builder.rank(number)
        rank.kernel(1, COMPUTE)
        rank.peak_reserved_bytes, rank.peak_allocated_bytes = (
            reserved * 10**9,
            (reserved - 5 * number) * 10**9,
        )
        rank.peak_nccl_bytes = 200_000_000
        rank.peak_device_bytes = rank.peak_reserved_bytes + rank.peak_nccl_bytes
    _, summary, _ = run(builder)
    assert summary.peak_memory_bytes == 70_700_000_000
    assert summary.peak_reserved_bytes == 70_000_000_000
    assert summary.peak_allocated_bytes == 65_000_000_000
    assert [rank["peak_memory_bytes"] for rank in summary.memory] == [60_700_000_000, 70_700_000_000]
    assert (summary.oom, summary.oom_rank) == (False, None)


def test_peak_above_the_capacity_is_out_of_memory() -> None:
    builder = JobBuilder()
    rank = builder.rank(3)
    rank.kernel(1, COMPUTE)
    rank.peak_device_bytes = 80 * 10**9  # and 0.5 GB of context on 80 GB
    _, summary, _ = run(builder)
    assert (summary.oom, summary.oom_rank, summary.oom_bytes) == (True, 3, 500_000_000)


def test_summary_file(tmp_path: Path) -> None:
    _, summary, _ = run(two_iterations())
    write_summary(tmp_path / "summary.json", summary)
    assert json.loads((tmp_path / "summary.json").read_text()) == asdict(summary)
    failed = out_of_memory_summary(
        gpu=make_gpu(), world_size=8, rank=2, failed_bytes=100, used_bytes=900, unemulated_calls={"cuFoo": 1}
    )
    assert (failed.oom, failed.oom_rank, failed.peak_memory_bytes, failed.iteration_time_s) == (
        True,
        2,
        1000,
        None,
    )


def test_every_number_is_defined_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    defined = set(re.findall(r"^\| `(\w+)`", text, re.MULTILINE))
    assert set(Summary.__dataclass_fields__) <= defined


def test_chrome_trace(tmp_path: Path) -> None:
    builder = two_iterations()
    job, annotations = builder.build()
    simulation = simulate(job, annotations, make_gpu(), make_cluster())
    write_chrome_trace(tmp_path / "t.json.gz", job, annotations, simulation)
    write_chrome_trace(tmp_path / "t.json", job, annotations, simulation, ranks=[1])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["t.json", "t.json.gz"]
    events = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]
    slices = [event for event in events if event["ph"] == "X" and event["pid"] == 0]
    gemm = next(event for event in slices if event["name"].startswith("gemm"))
    assert (gemm["ts"], gemm["dur"], gemm["cat"], gemm["args"]["basis"]) == (101, 40, "kernel", "measured")
    assert gemm["args"]["stream"] == COMPUTE
    fused = next(event for event in slices if event["name"] == "fused")
    assert (fused["args"]["operator"], fused["args"]["shapes"]) == ("aten::add", "[[4]]")
    nccl = next(event for event in slices if event["name"].startswith("nccl"))
    assert (nccl["ts"], nccl["dur"]) == (141, 40)
    assert "DATA" in nccl["name"]
    assert [event["cat"] for event in slices if event["name"] == "Memcpy DtoH"] == ["gpu_memcpy"]
    sync = next(event for event in slices if event["name"] == "cudaStreamSynchronize")
    assert (sync["ts"], sync["dur"]) == (101, 85)
    # The first iteration is not in it, and every device slice has one arrow from its call.
    assert min(event["ts"] for event in slices) == 101
    for phase in "sf":
        assert sum(event["ph"] == phase for event in events) == 2 * 5
    tracks = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert tracks == {"thread 0", "stream 7", "stream 8"}
    ranks = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert ranks == {0: "rank 0", 1: "rank 1, stands for 3 ranks"}

    alone = (tmp_path / "t.json").read_text()
    assert re.search(r'"rank": 1\b', alone.split('"traceEvents"')[0])  # the pattern of HolisticTraceAnalysis
    assert {event["pid"] for event in json.loads(alone)["traceEvents"]} == {1}
    assert "ProfilerStep#1" in alone


def test_timeline_rows_join_neighbours_and_start_at_the_iteration() -> None:
    builder = two_iterations()
    job, annotations = builder.build()
    simulation = simulate(job, annotations, make_gpu(), make_cluster())
    rows = timeline_rows(job, simulation, ranks=[0])
    assert list(rows.columns) == ["rank", "lane", "category", "start_us", "end_us"]
    lanes = {
        lane: list(zip(part["category"], part["start_us"], part["end_us"], strict=True))
        for lane, part in rows.groupby("lane")
    }
    assert lanes["stream 7"] == [("compute", 0, 50), ("compute", 100, 105)]
    assert lanes["stream 8"] == [("communication", 40, 80), ("copy", 80, 85)]
    assert lanes["thread 0"] == [("host", 0, 85), ("host", 100, 105)]
    merged = timeline_rows(job, simulation, ranks=[0], merge_gap_us=50)
    assert (merged["lane"] == "stream 7").sum() == 1


def test_timeline_of_absent_rank_or_iteration() -> None:
    builder = JobBuilder()
    builder.rank(4).memcpy(H2D, 1, COPY)
    job, annotations = builder.build()
    simulation = simulate(job, annotations, make_gpu(), make_cluster())
    with pytest.raises(SimulationError, match=r"simulated ranks are \[4\]"):
        timeline_rows(job, simulation, ranks=[5])
    with pytest.raises(SimulationError, match="1 simulated iterations"):
        timeline_rows(job, simulation, iteration=1)
