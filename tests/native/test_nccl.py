"""Real `torch.distributed` programs on emulated GPUs: values of collectives, and programs that need them.

Each test starts this file once a rank under the emulator, with the names of cases. Kernels compute nothing
there, so inputs come from the host and results go straight back to it; expected values are worked out in the
cases.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.emulator

CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


def device() -> Any:
    import torch

    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def tensor(values: Any, dtype: Any = None) -> Any:
    import torch

    return torch.tensor(values, dtype=dtype, device=device())


def rank_and_size() -> tuple[int, int]:
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@case
def reductions() -> None:
    import torch
    import torch.distributed as dist

    rank, n = rank_and_size()
    total, product = sum(range(1, n + 1)), 2**n
    for dtype in (torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for op, expected in [
            (dist.ReduceOp.SUM, [total, 2 * n]),
            (dist.ReduceOp.MAX, [n, 2]),
            (dist.ReduceOp.MIN, [1, 2]),
            (dist.ReduceOp.PRODUCT, [None, product]),
            (dist.ReduceOp.AVG, [None if dtype in (torch.int32, torch.int64) else total / n, 2]),
        ]:
            x = tensor([rank + 1, 2], dtype)
            dist.all_reduce(x, op)
            for value, wanted in zip(x.tolist(), expected, strict=True):
                assert wanted is None or value == wanted, (dtype, op, x)
    flag = tensor([rank == 0, False])
    dist.all_reduce(flag)  # of booleans: logical or
    assert flag.tolist() == [True, False]
    x = tensor([1.0, 3.0])
    dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
    assert x.tolist() == [0.5 * n, 1.5 * n]
    x = tensor([float(rank)])
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    assert x.tolist() == [sum(range(n))]
    x = tensor([float(rank + 1)])
    dist.reduce(x, dst=n - 1)
    assert rank != n - 1 or x.tolist() == [total]


@case
def objects() -> None:
    import torch.distributed as dist

    rank, n = rank_and_size()
    gathered: list[Any] = [None] * n
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (10 + 100 * rank)})
    assert gathered == [{"rank": k, "text": "x" * (10 + 100 * k)} for k in range(n)]
    things = ["seed", 17, {"a": (1, 2)}] if rank == n - 1 else [None] * 3
    dist.broadcast_object_list(things, src=n - 1)
    assert things == ["seed", 17, {"a": (1, 2)}]
    own: list[Any] = [None]
    dist.scatter_object_list(own, [f"for {k}" for k in range(n)] if rank == 0 else None, src=0)
    assert own == [f"for {rank}"]
    at_root = [None] * n if rank == 0 else None
    dist.gather_object((rank, "thing"), at_root, dst=0)
    assert rank != 0 or at_root == [(k, "thing") for k in range(n)]


@case
def gathers_and_scatters() -> None:
    import torch
    import torch.distributed as dist

    rank, n = rank_and_size()
    own = tensor([10 * rank, 10 * rank + 1])
    flat = tensor([0] * (2 * n))
    dist.all_gather_into_tensor(flat, own)
    assert flat.tolist() == [10 * k + i for k in range(n) for i in range(2)]
    parts = [torch.zeros_like(own) for _ in range(n)]
    dist.all_gather(parts, own)
    assert [part.tolist() for part in parts] == [[10 * k, 10 * k + 1] for k in range(n)]
    uneven = [tensor([0] * (k + 1)) for k in range(n)]
    dist.all_gather(uneven, tensor([rank] * (rank + 1)))
    assert [part.tolist() for part in uneven] == [[k] * (k + 1) for k in range(n)]

    reduced = tensor([0])
    dist.reduce_scatter_tensor(reduced, tensor([rank + 100 * k for k in range(n)]))
    assert reduced.tolist() == [sum(range(n)) + 100 * rank * n]
    dist.reduce_scatter(reduced, [tensor([rank * k]) for k in range(n)])
    assert reduced.tolist() == [sum(range(n)) * rank]

    chunk = tensor([0.0])
    dist.scatter(chunk, [tensor([float(k) + 0.5]) for k in range(n)] if rank == 1 else None, src=1)
    assert chunk.tolist() == [rank + 0.5]
    at_root = [tensor([0.0]) for _ in range(n)] if rank == 0 else None
    dist.gather(chunk, at_root, dst=0)
    assert at_root is None or [part.item() for part in at_root] == [k + 0.5 for k in range(n)]


@case
def all_to_alls() -> None:
    """As a mixture of experts does: the sizes first, then what has these sizes."""
    import torch
    import torch.distributed as dist

    rank, n = rank_and_size()
    sizes = tensor([(rank + k) % 3 for k in range(n)])  # with zeros
    received_sizes = torch.zeros_like(sizes)
    dist.all_to_all_single(received_sizes, sizes)
    assert received_sizes.tolist() == [(k + rank) % 3 for k in range(n)]
    tokens = tensor([1000 * rank + k for k in range(n) for _ in range((rank + k) % 3)])
    received = tensor([-1] * sum(received_sizes.tolist()))
    dist.all_to_all_single(received, tokens, received_sizes.tolist(), sizes.tolist())
    assert received.tolist() == [1000 * k + rank for k in range(n) for _ in range((k + rank) % 3)]


@case
def messages() -> None:
    import torch.distributed as dist

    rank, n = rank_and_size()
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(3):
        received = tensor([-1.0])
        sent = tensor([10.0 * step + rank])
        operations = [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, received, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert received.tolist() == [10.0 * step + left]
    received = tensor([0, 0])
    if rank == 0:
        dist.send(tensor([5, 6]), dst=n - 1)
        dist.recv(received, src=n - 1)
        assert received.tolist() == [7, 8]
    if rank == n - 1:
        dist.recv(received, src=0)
        assert received.tolist() == [5, 6]
        dist.send(tensor([7, 8]), dst=0)
    dist.barrier()


@case
def coalesced() -> None:
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _coalescing_manager

    rank, n = rank_and_size()
    tensors = [tensor([float(rank + i)]) for i in range(3)]
    with _coalescing_manager(async_ops=True) as manager:
        for x in tensors:
            dist.all_reduce(x)
    manager.wait()
    assert [x.item() for x in tensors] == [sum(range(n)) + i * n for i in range(3)]
    outputs = [tensor([0] * n) for _ in range(2)]
    with _coalescing_manager():
        for i, x in enumerate(outputs):
            dist.all_gather_into_tensor(x, tensor([rank + 10 * i]))
    assert [x.tolist() for x in outputs] == [[k + 10 * i for k in range(n)] for i in range(2)]


@case
def groups() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    rank, n = rank_and_size()
    pair = dist.new_group([0, 1])
    last = dist.new_group([n - 1])
    x = tensor([rank + 1])
    if rank < 2:
        dist.all_reduce(x, group=pair)
        assert x.tolist() == [3]
    if rank == n - 1:
        y = tensor([4])
        dist.all_reduce(y, group=last)
        assert y.tolist() == [4]
    if n == 4:
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        for axis, members in [("dp", [rank % 2, rank % 2 + 2]), ("tp", [rank // 2 * 2, rank // 2 * 2 + 1])]:
            gathered: list[Any] = [None, None]
            dist.all_gather_object(gathered, rank, group=mesh[axis].get_group())
            assert gathered == members
    dist.barrier()


@case
def ddp() -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
    model = torch.nn.parallel.DistributedDataParallel(model.to(device()), device_ids=[device().index])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(8, 16, device=device())).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


@case
def fsdp2() -> None:
    import torch
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(device())
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(8, 64, device=device())).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        float(norm.full_tensor())  # a collective whose result the host reads
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()


@case
def barrier() -> None:
    import time

    import torch.distributed as dist

    rank, n = rank_and_size()
    folder = Path(os.environ["MAYA_TEST_DIR"])
    for step in range(2):
        time.sleep(0.1 * ((rank + step) % n))
        (folder / f"{step}-{rank}").touch()
        dist.barrier()
        assert all((folder / f"{step}-{k}").exists() for k in range(n))


@case
def solo() -> None:
    """Rank 1 of four without the others, whose data are taken to be its own."""
    import torch
    import torch.distributed as dist

    x = tensor([3, 5])
    dist.all_reduce(x)
    assert x.tolist() == [12, 20]
    x = tensor([3.0, 5.0])
    dist.all_reduce(x, dist.ReduceOp.AVG)
    assert x.tolist() == [3.0, 5.0]
    x = tensor([True, False])
    dist.all_reduce(x)
    assert x.tolist() == [True, False]
    gathered: list[Any] = [None] * 4
    dist.all_gather_object(gathered, ("own", 1))
    assert gathered == [("own", 1)] * 4
    seed = tensor([1234])
    dist.broadcast(seed, src=0)
    assert seed.tolist() == [1234]
    sizes, received_sizes = tensor([3, 3, 3, 3]), tensor([0, 0, 0, 0])
    dist.all_to_all_single(received_sizes, sizes)
    assert received_sizes.tolist() == [3, 3, 3, 3]
    part = tensor([0])
    dist.reduce_scatter_tensor(part, tensor([1, 20, 300, 4000]))
    assert part.tolist() == [80]
    # Neighbours in a pipeline tell each other shapes that are alike.
    shape = torch.zeros(3, dtype=torch.int64, device=device())
    operations = [
        dist.P2POp(dist.irecv, shape, 0),
        dist.P2POp(dist.isend, tensor([2, 1024, 64]), 2),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert shape.tolist() == [2, 1024, 64]
    dist.barrier()


def main(setup: str, names: list[str]) -> None:
    import torch
    import torch.distributed as dist

    from maya.capture.startup.maya_startup.object_values import compute_object_sizes

    compute_object_sizes(dist.distributed_c10d)  # as the start-up hook of a capture does
    torch.cuda.set_device(device())
    if setup == "solo":
        store = one_sided_store()  # kept: C++ holds only its own half
        dist.init_process_group("nccl", store=store, rank=1, world_size=4)
    elif setup == "eager":  # communicators of groups are split from the first one
        dist.init_process_group("nccl", device_id=device())
    else:
        dist.init_process_group("nccl")
    for name in names:
        CASES[name]()
    dist.destroy_process_group()
    print("done")


def one_sided_store() -> Any:
    """A rendezvous store that answers at once for keys that absent ranks would set."""
    import torch.distributed as dist

    class OneSidedStore(dist.Store):
        def __init__(self) -> None:
            super().__init__()
            self.values: dict[str, bytes] = {}

        def set(self, key: str, value: bytes) -> None:
            self.values[key] = value

        def get(self, key: str) -> bytes:
            return self.values.get(key, b"\0" * 128)

        def add(self, key: str, number: int) -> int:
            total = int(self.values.get(key, b"0")) + number
            self.values[key] = str(total).encode()
            return total

        def check(self, keys: list[str]) -> bool:
            return all(key in self.values for key in keys)

        def wait(self, keys: list[str], timeout: Any = None) -> None:
            pass

    return OneSidedStore()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def emulator_env(mode: str, folder: Path) -> dict[str, str]:
    from emulated import GPU, preload_list

    from maya.capture.build_emulator import emulator_dir

    library_dir = emulator_dir()
    return {
        "LD_PRELOAD": preload_list(library_dir / "libmaya_emulator.so"),
        "LD_LIBRARY_PATH": str(library_dir),
        "MAYA_GPU": ";".join(f"{key}={value}" for key, value in GPU.items()),
        "MAYA_NUM_DEVICES": "4",
        "MAYA_MODE": mode,
        "MAYA_EXCHANGE": str(folder / "exchange"),
        "MAYA_EXCHANGE_TIMEOUT_S": "60",
        "MAYA_TEST_DIR": str(folder),
        "OMP_NUM_THREADS": "1",
    }


def run_ranks(setup: str, names: list[str], ranks: list[int], world_size: int, folder: Path) -> None:
    env = os.environ | emulator_env("solo" if setup == "solo" else "linked", folder)
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, setup, *names],
            env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in ranks
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0 and "done" in output, output


VALUES = ["reductions", "objects", "gathers_and_scatters", "all_to_alls", "messages", "coalesced"]
PROGRAMS = ["groups", "ddp", "fsdp2", "barrier"]


@pytest.mark.slow
@pytest.mark.parametrize("setup", ["lazy", "eager"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_programs(world_size: int, setup: str, tmp_path: Path) -> None:
    run_ranks(setup, VALUES + PROGRAMS, list(range(world_size)), world_size, tmp_path)


@pytest.mark.slow
def test_solo(tmp_path: Path) -> None:
    run_ranks("solo", ["solo"], [1], 4, tmp_path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
