"""Case O3: an all-to-all whose split sizes are themselves exchanged (pytorch 194530, 194545)."""

from pathlib import Path

import pytest
from captured_job import CapturedJob, capture_command

from maya.config.compose import compose_target
from maya.errors import CaptureError
from maya.estimators import annotate, load_estimator
from maya.predict import ensure_estimator

pytestmark = pytest.mark.emulator

RANKS, WIDTH = 16, 8

PROGRAM = f"""
import os
import torch, torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
weight = torch.nn.Parameter(torch.ones(4, device=device))
optimizer = torch.optim.SGD([weight], lr=0.1)


def rows(source, target):
    return 1 + (3 * source + 5 * target) % 7


def reduced(value, dtype, op):
    x = torch.tensor([value], dtype=dtype).to(device)
    dist.all_reduce(x, op)
    return x.item()


while True:
    sizes = torch.tensor([rows(rank, target) for target in range(size)]).to(device)
    received = torch.empty_like(sizes)
    dist.all_to_all_single(received, sizes)
    splits = received.tolist()
    assert splits == [rows(source, rank) for source in range(size)], splits
    data = torch.rand(sum(sizes.tolist()), {WIDTH}, device=device)
    output = torch.empty(sum(splits), {WIDTH}, device=device)
    dist.all_to_all_single(output, data, splits, sizes.tolist())
    assert output.reshape(-1, 2, {WIDTH // 2}).shape[0] == sum(splits)

    floats = torch.float16, torch.bfloat16, torch.float32, torch.float64
    integers = torch.int8, torch.uint8, torch.int32, torch.int64
    for dtype in floats + integers:
        assert reduced(rank % 3 + 1, dtype, dist.ReduceOp.SUM) == sum(r % 3 + 1 for r in range(size)), dtype
        assert reduced(rank + 1, dtype, dist.ReduceOp.MAX) == size
        assert reduced(rank + 1, dtype, dist.ReduceOp.MIN) == 1
        assert reduced(2 if rank < 5 else 1, dtype, dist.ReduceOp.PRODUCT) == 32
    for dtype in floats:
        assert reduced(rank, dtype, dist.ReduceOp.AVG) == (size - 1) / 2

    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
"""


def rows(source: int, target: int) -> int:
    return 1 + (3 * source + 5 * target) % 7


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("o3") / "train.py"
    path.write_text(PROGRAM)
    return path


def command(program: Path) -> tuple[str, ...]:
    return ("torchrun", "--nnodes=2", f"--nproc-per-node={RANKS // 2}", str(program))


@pytest.fixture(scope="module")
def job(program: Path) -> CapturedJob:
    return capture_command(command(program), program.parent / "traces", mode="linked")


@pytest.mark.slow
def test_sizes_arrive_and_give_the_bytes_of_the_exchange(job: CapturedJob) -> None:
    # The program itself checks the values of every rank.
    for rank in range(RANKS):
        exchanges = job.collectives(rank).query("op == 'all_to_all'")
        sent = sum(rows(rank, target) for target in range(RANKS))
        received = sum(rows(source, rank) for source in range(RANKS))
        # Of sends and receives the larger sum counts, with what stays on the rank itself.
        assert exchanges["bytes"].tolist() == [RANKS * 8, max(sent, received) * WIDTH * 4]


@pytest.mark.slow
def test_time_grows_with_the_largest_split(job: CapturedJob) -> None:
    gpu, cluster, _ = compose_target(["cluster=dgx_h100", "cluster.nodes=2"])
    annotations = annotate(job.job, load_estimator(ensure_estimator(gpu)), gpu, cluster)
    durations = {}
    for trace, annotation in zip(job.job.ranks, annotations, strict=True):
        exchange = job.collectives(trace.rank).query("op == 'all_to_all'").iloc[1]
        durations[trace.rank] = exchange["bytes"], annotation.duration_ns[exchange.name]
    sizes, times = zip(*sorted(durations.values()), strict=True)
    assert sizes[0] < sizes[-1]
    assert list(times) == sorted(times)


def test_a_rank_alone_says_that_it_needs_the_others(program: Path, tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as error:
        capture_command(command(program), tmp_path / "traces", mode="solo", ranks=(3,))
    text = " ".join(str(error.value).split())
    site = PROGRAM[: PROGRAM.index("received.tolist()")].count("\n") + 1
    assert "what absent ranks sent it in all_to_all of 1 x int64" in text
    assert f"train.py:{site} in <module>" in text
    assert "capture.mode=linked" in text
