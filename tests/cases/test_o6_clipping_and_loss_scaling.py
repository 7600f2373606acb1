"""Case O6: clipping, loss scaling and finite checks stay on (QDelta/Phantora's README, pytorch 126738).

Kernels compute nothing, so what these read must not skip the optimizer, raise or lower the loss scale.
"""

import re
from pathlib import Path

import pytest
from captured_job import CapturedJob, capture_command

from maya.paths import workloads_dir

pytestmark = pytest.mark.emulator

STEPS = 10

FSDP2 = f"""
import math, os
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(device)
fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cuda", init_scale=4096.0)
for step in range({STEPS}):
    x = torch.randn(32, 256, device=device, dtype=torch.float16)
    loss = (model(x) - x).float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if not math.isfinite(loss.item()):
        raise SystemExit(f"step {{step}}: loss is {{loss.item()}}")
    print("step", step, "scale", scaler.get_scale(), flush=True)
"""


def logged_scales(job: CapturedJob, pattern: str) -> list[float]:
    """What rank 0 printed as its loss scale."""
    log = next(job.trace_dir.rglob("*rank00000.log")).read_text()
    return [float(value) for value in re.findall(pattern, log)]


def test_fsdp2_scales_clips_and_checks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FSDP2)
    command = ("torchrun", "--nproc-per-node=2", str(script))
    job = capture_command(command, tmp_path / "traces", mode="linked")

    scales = logged_scales(job, r"scale ([\d.]+)")
    assert len(scales) >= 6  # warm-up, shapes and steady iterations
    assert set(scales) == {4096.0}
    reduced = job.collectives(0)
    reduced = reduced[reduced["op"] == "all_reduce"]
    assert reduced["bytes"].tolist() == [4, 16]  # found_inf of the shards, then norms of four parameters
    assert set(reduced["ranks"]) == {(0, 1)}
    # Four parameters: one launch of the fused optimizer, one that unscales and checks, one norm.
    assert len(job.kernels(0, "FusedAdamMathFunctor")) == 1
    assert len(job.kernels(0, "_amp_non_finite_check_and_unscale|amp_foreach_non_finite")) == 1
    assert len(job.kernels(0, "LpNormFunctor")) == 1
    assert len(job.kernels(0, "amp_update_scale")) == 1


@pytest.mark.slow
def test_megatron_scales_clips_and_checks(tmp_path: Path) -> None:
    options = "--precision fp16 --clip-grad 1.0 --check-for-nan-in-loss-and-grad --log-interval 1"
    script = str(workloads_dir() / "megatron_gpt.py")
    command = ("torchrun", "--nproc-per-node=2", script, *options.split())
    job = capture_command(command, tmp_path / "traces", mode="linked")

    scales = logged_scales(job, r"loss scale ([\d.e+]+)")
    assert len(scales) >= 6
    assert set(scales) == {float(f"{2**32:g}")}  # megatron-core's initial_loss_scale
    scalars = job.collectives(0)
    scalars = scalars[(scalars["op"] == "all_reduce") & (scalars["bytes"] == 4)]
    assert len(scalars) == 2  # found_inf and the norm
    # AdamW in its foreach form divides by the root of the second moment last.
    assert len(job.kernels(0, "PointwiseOpScalarListFunctor")) >= 1
