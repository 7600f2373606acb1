"""Settings of PyTorch's NCCL groups that people use: the same collectives, on the streams they ask for."""

from pathlib import Path

import pytest
from captured_job import capture_command

from maya.trace import read_trace

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

WIDTH = 256
GRADIENT_BYTES = 4 * (WIDTH * WIDTH + WIDTH)

PROGRAM = f"""
import os
import torch, torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=bool(os.environ.get("URGENT")))
dist.init_process_group("nccl", pg_options=options)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear({WIDTH}, {WIDTH}, device=device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    model(torch.ones(8, {WIDTH}, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "settings",
    [
        {
            "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
            "TORCH_NCCL_ENABLE_MONITORING": "1",
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_NCCL_CUDA_EVENT_CACHE": "0",
        },
        {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ENABLE_TIMING": "1"},
        {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1", "URGENT": "1"},
    ],
    ids=["monitoring", "blocking_wait", "nonblocking_communicators"],
)
def test_settings(settings: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    job = capture_command(("torchrun", "--nproc-per-node=2", str(script)), tmp_path / "traces", mode="linked")
    collectives = job.collectives(0)
    barrier_bytes = 4
    assert sorted(collectives["bytes"]) == [barrier_bytes, GRADIENT_BYTES]
    assert set(collectives["op"]) == {"all_reduce"}

    trace = read_trace(job.trace_dir / "rank00000.trace")
    priority = trace.table("stream_create").set_index("stream")["priority"]
    of_gradients = trace.table("collective").query(f"count == {GRADIENT_BYTES // 4}")["stream"]
    assert len(of_gradients) > 3
    assert (priority[of_gradients.unique()] < 0).all() == ("URGENT" in settings)
