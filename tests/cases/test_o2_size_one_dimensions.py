"""Case O2: a mesh with dimensions of size one (pytorch/torchtitan issues 2236 and 2275).

torchtitan itself is in test_o2_torchtitan.py.
"""

from pathlib import Path

import pytest
from captured_job import CapturedJob, capture_command

pytestmark = pytest.mark.emulator

NUM_ELEMENTS, RANKS = 4096, 4

PROGRAM = f"""
import os
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
mesh = init_device_mesh("cuda", (1, 2, 2), mesh_dim_names=("batch", "shard", "tensor"))
assert mesh["batch"].size() == 1
model = torch.nn.Linear(64, 64, device=device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
groups = [mesh.get_group(name) for name in mesh.mesh_dim_names]
payload = torch.ones({NUM_ELEMENTS}, device=device)
before = [group._get_sequence_number_for_group() for group in groups]
for step in range(12):
    model(torch.ones(8, 64, device=device)).sum().backward()
    for group in groups:
        size = group.size()
        dist.all_reduce(payload, group=group)
        whole = torch.empty({NUM_ELEMENTS} * size, device=device)
        dist.all_gather_into_tensor(whole, payload, group=group)
        dist.reduce_scatter_tensor(payload, whole, group=group)
    if step == 0:
        after = [group._get_sequence_number_for_group() for group in groups]
        print("calls", [b - a for a, b in zip(before, after)], flush=True)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CapturedJob:
    folder = tmp_path_factory.mktemp("o2")
    script = folder / "train.py"
    script.write_text(PROGRAM)
    command = ("torchrun", f"--nproc-per-node={RANKS}", str(script))
    return capture_command(command, folder / "traces", mode="linked")


@pytest.mark.parametrize("rank", range(RANKS))
def test_every_collective_is_there_with_its_group(job: CapturedJob, rank: int) -> None:
    shard, tensor = (rank % 2, rank % 2 + 2), (rank // 2 * 2, rank // 2 * 2 + 1)
    expected = [
        (op, ranks, 4 * NUM_ELEMENTS * factor)
        for ranks in ((rank,), shard, tensor)
        for op, factor in (("all_reduce", 1), ("all_gather", len(ranks)), ("reduce_scatter", len(ranks)))
        if (op, len(ranks)) != ("reduce_scatter", 1)  # PyTorch's own copy on the device
    ]
    collectives = job.collectives(rank)
    assert list(zip(collectives["op"], collectives["ranks"], collectives["bytes"], strict=True)) == expected
    copies = job.details(rank, "memcpy")
    assert copies.loc[copies["direction"] == 2, "bytes"].to_list() == [4 * NUM_ELEMENTS]


def test_groups_count_their_calls(job: CapturedJob) -> None:
    log = next(Path(job.trace_dir).rglob("*rank00000.log")).read_text()
    assert "calls [3, 3, 3]" in log
