"""Programs as users write them, captured on emulated GPUs."""

import json
import re
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

from maya.capture import CaptureSpec, Manifest, capture, read_manifest
from maya.config.schema import CaptureConfig, GpuConfig
from maya.errors import CaptureError, ConfigError

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

GPU = GpuConfig(
    name="toy_h100",
    device_name="NVIDIA H100 80GB HBM3",
    compute_capability="9.0",
    num_sms=132,
    memory_bytes=4 << 30,
    l2_bytes=50 << 20,
    shared_bytes_per_block_optin=232448,
    shared_bytes_per_sm=233472,
    sm_clock_hz=1.98e9,
    memory_clock_hz=2.619e9,
    memory_bus_bits=5120,
    hbm_bytes_per_s=3.35e12,
    pcie_bytes_per_s=63e9,
    context_bytes=400 << 20,
    nccl_channels=2,
    nccl_channels_per_peer=2,
)

MIN_ITERATIONS = 6
"""Two to warm up, one with operator ranges, three to measure; repeats for host gaps follow."""

ONE_GPU = """
    import argparse
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Model(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(32, width), torch.nn.GELU(), torch.nn.Linear(width, 10)
            )

        def forward(self, x):
            return self.layers(x)

    def main():
        parser = argparse.ArgumentParser()
        parser.add_argument("--width", type=int, default=64)
        parser.add_argument("--epochs", type=int, default=100)
        parser.add_argument("--workers", type=int, default=0)
        options = parser.parse_args()
        data = TensorDataset(torch.randn(64, 32), torch.randint(10, (64,)))
        loader = DataLoader(data, batch_size=16, num_workers=options.workers, shuffle=True, pin_memory=True)
        model = Model(options.width).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        for epoch in range(options.epochs):
            for x, y in loader:
                loss = torch.nn.functional.cross_entropy(model(x.cuda(non_blocking=True)), y.cuda())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
            print("loss", loss.item())

    if __name__ == "__main__":
        main()
"""

DDP = """
    import os
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, f"rank {dist.get_rank()}")
    print(names)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

FSDP = """
    import os
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("shard",))
    layers = [torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(2)]
    model = torch.nn.Sequential(*layers).cuda()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100):
        model(torch.randn(4, 16, 64, device="cuda")).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
"""

EAGER_SUBGROUPS = """
    import os
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    pair = dist.new_group([0, 3])
    x = torch.ones(8, device=device)
    weight = torch.nn.Parameter(torch.ones(8, device=device))
    optimizer = torch.optim.SGD([weight])
    dist.barrier()
    while True:
        weight.grad = x.clone()
        dist.all_reduce(weight.grad, group=mesh["dp"].get_group())
        dist.all_reduce(weight.grad, group=mesh["tp"].get_group())
        optimizer.step()
"""

NO_OPTIMIZER = """
    import torch

    weight = torch.randn(64, 64, device="cuda", requires_grad=True)
    for step in range(10**9):
        (torch.randn(8, 64, device="cuda") @ weight).relu().sum().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
            weight.grad = None
"""

OUT_OF_MEMORY = """
    import os
    import torch

    held = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2)]
    if os.environ.get("RANK", "0") == "0":
        held.append(torch.empty(3 << 30, dtype=torch.uint8, device="cuda"))
    else:
        import time
        time.sleep(1000)
"""

CRASH = """
    import torch

    torch.zeros(4, device="cuda")
    print("about to fail")
    raise KeyError("no such layer")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Captures a program; its text is written to ``train.py`` first."""
    monkeypatch.chdir(tmp_path)

    def run(program: str, command: str, **changes: object) -> Manifest:
        Path("train.py").write_text(textwrap.dedent(program))
        values = {
            "world_size": 1,
            "gpus_per_node": 8,
            "mode": "linked",
            "output_dir": tmp_path / "capture",
            "capture": CaptureConfig(timeout_s=120.0),
        }
        return capture(CaptureSpec(command=tuple(command.split()), gpu=GPU, **(values | changes)))

    return run


def read_marks(folder: Path, rank: int) -> list[tuple[str, int]]:
    from maya.trace import read_trace

    marks = read_trace(folder / f"rank{rank:05d}.trace").table("mark")
    return list(zip(marks["name"], marks["value"], strict=True))


def count_kinds(folder: Path, rank: int) -> Counter[str]:
    from maya.trace import KINDS, read_trace

    names = {number: name for name, number in KINDS.items()}
    return Counter(names[kind] for kind in read_trace(folder / f"rank{rank:05d}.trace").kind)


def read_groups(folder: Path, rank: int) -> list[tuple[list[int], str]]:
    lines = (folder / f"rank{rank:05d}.events.jsonl").read_text().splitlines()
    return [(e["ranks"], e["description"]) for e in map(json.loads, lines) if e["type"] == "group"]


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "python -m train",
        "python -X dev train.py --width 96",
        "torchrun train.py --workers 2",
    ],
)
def test_one_gpu(run, tmp_path, command):
    manifest = run(ONE_GPU, command)
    (rank,) = manifest.ranks
    assert (rank.status, rank.exit_code) == ("ok", 0)
    assert rank.iterations >= MIN_ITERATIONS
    assert rank.unemulated == {}
    assert rank.calls["cudaLaunchKernel"] > 100
    assert read_manifest(tmp_path / "capture") == manifest
    marks = read_marks(tmp_path / "capture", 0)
    assert [value for name, value in marks if name == "iteration"] == list(range(1, rank.iterations + 1))
    assert [value for name, value in marks if name == "shapes"] == [1, 0]
    peaks = [value for name, value in marks if name == "peak_allocated_bytes"]
    assert len(peaks) == rank.iterations and 0 < peaks[-1] < 100 << 20
    kinds = count_kinds(tmp_path / "capture", 0)
    assert kinds["range_push"] == kinds["range_pop"] > 20
    assert kinds["gemm"] >= rank.iterations * 4
    assert kinds["end"] == 1


def test_program_that_ends_early_is_taken_as_far_as_it_went(run):
    (rank,) = run(ONE_GPU, "python train.py --epochs 1").ranks
    assert (rank.status, rank.iterations) == ("ok", 4)


def test_nothing_is_left_of_a_capture_but_its_folder(run, tmp_path):
    before = set(Path("/dev/shm").iterdir())
    run(DDP, "torchrun --nproc-per-node 2 train.py", world_size=2)
    assert {path.name for path in tmp_path.iterdir()} == {"capture", "train.py"}
    assert {path.suffix for path in (tmp_path / "capture").iterdir()} == {"", ".trace", ".jsonl", ".json"}
    assert not [path for path in set(Path("/dev/shm").iterdir()) - before if "maya" in path.name]


def test_linked_ranks_exchange_data(run, tmp_path):
    manifest = run(DDP, "torchrun --nproc-per-node 2 train.py", world_size=2)
    assert all(rank.iterations >= MIN_ITERATIONS for rank in manifest.ranks)
    for rank in range(2):
        log = (tmp_path / "capture" / "logs" / f"rank{rank:05d}.log").read_text()
        assert "['rank 0', 'rank 1']" in log
        assert read_groups(tmp_path / "capture", rank) == [([0, 1], "default_pg")]
    kinds = [count_kinds(tmp_path / "capture", rank) for rank in range(2)]
    assert kinds[0]["collective"] == kinds[1]["collective"] >= 6


def test_linked_and_solo_ranks_issue_the_same_operations(run, tmp_path):
    command = "torchrun --nproc-per-node 2 train.py"
    run(FSDP, command, world_size=2, output_dir=tmp_path / "linked")
    run(FSDP, command, world_size=2, mode="solo", ranks=(0, 1), output_dir=tmp_path / "solo")
    for rank in range(2):
        linked, solo = (count_kinds(tmp_path / mode, rank) for mode in ("linked", "solo"))
        for kind in ("kernel", "gemm", "attention", "collective", "memcpy", "malloc", "comm_init"):
            assert linked[kind] == solo[kind], kind


def test_solo_ranks_of_a_larger_world(run, tmp_path):
    manifest = run(FSDP, "torchrun --nproc-per-node 8 train.py", world_size=8, mode="solo", ranks=(0, 5))
    assert [(rank.rank, rank.status) for rank in manifest.ranks] == [(0, "ok"), (5, "ok")]
    assert all(rank.iterations >= MIN_ITERATIONS for rank in manifest.ranks)
    ids = []
    for rank in (0, 5):
        assert (list(range(8)), "default_pg") in read_groups(tmp_path / "capture", rank)
        lines = (tmp_path / "capture" / f"rank{rank:05d}.events.jsonl").read_text().splitlines()
        ids.append([e["key"] for e in map(json.loads, lines) if e["type"] == "unique_id"])
    assert ids[0] == ids[1] != []


@pytest.mark.parametrize("mode", ["linked", "solo"])
def test_communicators_made_by_splits(run, tmp_path, mode):
    ranks = (3,) if mode == "solo" else ()
    run(EAGER_SUBGROUPS, "torchrun --nproc-per-node 4 train.py", world_size=4, mode=mode, ranks=ranks)
    from maya.trace import read_trace

    made = read_trace(tmp_path / "capture" / "rank00003.trace").table("comm_init")
    assert sorted(zip(made["num_ranks"], made["rank"], strict=True)) == [(2, 1), (2, 1), (2, 1), (4, 3)]
    groups = read_groups(tmp_path / "capture", 3)
    assert ([0, 3], "undefined") in groups
    assert ([2, 3], "mesh_tp") in groups and ([1, 3], "mesh_dp") in groups


def test_program_without_optimizer_is_stopped_when_it_repeats(run, tmp_path):
    (rank,) = run(NO_OPTIMIZER, "python train.py").ranks
    assert (rank.status, rank.iterations) == ("ok", 0)
    marks = read_marks(tmp_path / "capture", 0)
    assert marks[-1] == ("stop", 0)
    assert dict(marks)["peak_allocated_bytes"] > 0


def test_out_of_memory_completes_the_capture(run):
    manifest = run(OUT_OF_MEMORY, "torchrun --nproc-per-node 2 train.py", world_size=2)
    first, second = manifest.ranks
    assert (first.status, second.status) == ("oom", "stopped")
    assert first.error.startswith("torch.OutOfMemoryError: CUDA out of memory")
    assert first.oom.bytes_requested == 3 << 30
    assert first.oom.used_bytes >= 2 << 30
    assert first.oom.used_bytes + first.oom.bytes_requested > first.oom.capacity_bytes


def test_crash_names_rank_and_log(run, tmp_path):
    with pytest.raises(CaptureError) as failure:
        run(CRASH, "torchrun --nproc-per-node 2 train.py", world_size=2)
    text = str(failure.value)
    assert "Rank 0 ended with exit code 1: KeyError: 'no such layer'" in text or "Rank 1" in text
    assert "about to fail" in text
    kept = next(Path(word.rstrip(".")) for word in text.split() if word.startswith(str(tmp_path)))
    assert "about to fail" in kept.read_text()
    assert not (tmp_path / "capture").exists()


def test_rank_that_calls_another_collective_is_the_one_named(run):
    program = """
        import torch
        import torch.distributed as dist
        dist.init_process_group("nccl")
        x = torch.ones(4, device=f"cuda:{dist.get_rank()}")
        if dist.get_rank() == 2:
            dist.broadcast(x, 2)
        else:
            dist.all_reduce(x)
        x.tolist()
    """
    with pytest.raises(
        CaptureError, match=r"does not meet its peers(.|\n)* disagree on a collective"
    ) as error:
        run(program, "torchrun --nproc-per-node 3 train.py", world_size=3)
    text = " ".join(str(error.value).split())
    assert re.search(r"rank 2 calls broadcast of 4 x float32 with root 2 at train\.py:7 in <module>", text)
    assert re.search(r"rank [01] calls all_reduce of 4 x float32 \(sum\) at train\.py:9 in <module>", text)


def test_rank_that_never_arrives_is_named_with_what_it_did_last(run):
    program = """
        import time
        import torch
        import torch.distributed as dist
        dist.init_process_group("nccl")
        x = torch.ones(4, device=f"cuda:{dist.get_rank()}")
        dist.all_reduce(x)
        if dist.get_rank() == 1:
            time.sleep(60)
        dist.all_reduce(x)
        x.tolist()
    """
    with pytest.raises(CaptureError) as error:
        run(
            program,
            "torchrun --nproc-per-node 2 train.py",
            world_size=2,
            capture=CaptureConfig(timeout_s=30.0),
        )
    text = " ".join(str(error.value).split())
    assert "number 1 on communicator 0 (2 ranks) at train.py:10 in <module> for rank 1," in text
    assert re.search(r"newest call of rank 1 is all_reduce .*number 0 .* at train\.py:7 in <module>", text)


def test_cpu_group_of_a_rank_alone_carries_ddp_s_construction(run):
    program = """
        import torch
        torch.distributed.init_process_group("gloo")
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
        torch.zeros(4, device="cuda")
    """
    run(program, "torchrun --nproc-per-node 4 train.py", world_size=4, mode="solo", ranks=(0,))


def test_timeout_names_the_rank_that_is_stuck(run):
    program = """
        import os, time, torch
        torch.zeros(4, device="cuda")
        if os.environ["RANK"] == "1":
            print("stuck here")
            time.sleep(1000)
    """
    begin = time.monotonic()
    with pytest.raises(CaptureError, match=r"Rank 1 did not end within 15 s(.|\n)*stuck here"):
        run(
            program,
            "torchrun --nproc-per-node 2 train.py",
            world_size=2,
            capture=CaptureConfig(timeout_s=15.0),
        )
    assert time.monotonic() - begin < 30


def test_program_without_gpu_use_is_no_capture(run):
    with pytest.raises(CaptureError, match="without using a GPU"):
        run("print('hello')", "python train.py")


def test_missing_script_and_foreign_folder(run, tmp_path):
    with pytest.raises(ConfigError, match=r"no file 'absent\.py'"):
        run(CRASH, "python absent.py")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    with pytest.raises(ConfigError, match="not overwritten"):
        run(CRASH, "python train.py", output_dir=tmp_path / "precious")


def test_other_launchers_start_the_ranks_themselves(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    manifest = run(DDP, "nice torchrun --nproc-per-node 2 train.py", world_size=2)
    assert all(rank.iterations >= MIN_ITERATIONS for rank in manifest.ranks)
    with pytest.raises(ConfigError, match="solo"):
        run(DDP, "nice torchrun train.py", world_size=2, mode="solo", ranks=(0,))


def test_launcher_of_fewer_ranks_than_said_ends(run):
    with pytest.raises(CaptureError, match=r"of 3 ranks these used no GPU: \[1, 2\]"):
        run(ONE_GPU, "nice python train.py --width 8", world_size=3)


SPAWN = """
    import os
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def train(rank, world_size):
        torch.cuda.set_device(rank)
        os.environ["MASTER_ADDR"] = "localhost"
        os.environ["MASTER_PORT"] = os.environ["TEST_PORT"]
        dist.init_process_group("nccl", rank=rank, world_size=world_size)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).to(rank), device_ids=[rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(100):
            model(torch.randn(4, 8).to(rank)).sum().backward()
            optimizer.step()

    if __name__ == "__main__":
        mp.spawn(train, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"""


def test_script_that_spawns_its_ranks(run):
    from maya.capture.launcher import _free_port

    manifest = run(
        SPAWN, "python train.py", world_size=2, gpus_per_node=2, env={"TEST_PORT": str(_free_port())}
    )
    assert all(rank.iterations >= MIN_ITERATIONS for rank in manifest.ranks)
