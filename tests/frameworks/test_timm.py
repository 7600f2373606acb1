"""timm's loop on a ResNet-18: loader, augmentation, loss scaling, EMA and schedule of its factories."""

from pathlib import Path

import pytest
import timm
from captured_job import capture_command, total_bytes

from maya.paths import workloads_dir

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

BATCH, IMAGE, CLASSES, RANKS = 4, 64, 1000, 2


def test_training_loop(tmp_path: Path) -> None:
    script = str(workloads_dir() / "timm_ddp.py")
    options = f"--model resnet18 --batch-size {BATCH} --image-size {IMAGE} --num-classes {CLASSES}"
    command = ("torchrun", f"--nproc-per-node={RANKS}", script, *options.split())
    job = capture_command(command, tmp_path / "traces", mode="linked")
    model = timm.create_model("resnet18", num_classes=CLASSES)
    collectives = job.collectives(0)

    # fp32 gradients, and before each forward pass the running means, variances and counters of 20 norms.
    assert total_bytes(collectives, "all_reduce") == 4 * sum(p.numel() for p in model.parameters())
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    assert total_bytes(collectives, "broadcast") == buffers

    # 16 convolutions in blocks of two, the stem, and 3 shortcuts; images need no gradient.
    assert job.details(0, "conv")["direction"].value_counts().to_dict() == {0: 20, 1: 19, 2: 20}
    assert len(job.details(0, "gemm")) == 3

    # Images are uploaded as bytes, targets of mixup as fp32, on the loader's side stream.
    uploads = job.details(0, "memcpy")
    uploads = uploads[(uploads["direction"] == 0) & (uploads["bytes"] > 4)]
    assert sorted(uploads["bytes"]) == sorted([BATCH * 3 * IMAGE * IMAGE, BATCH * CLASSES * 4])
    assert set(uploads["host_pinned"]) == {1}
    compute = set(job.details(0, "conv")["stream"])
    assert compute.isdisjoint(job.details(0, "memcpy").loc[uploads.index, "stream"])

    # Loss scaling checks all gradients, the norm for clipping follows, and the optimizer steps.
    assert not job.kernels(0, "_amp_foreach_non_finite_check_and_unscale").empty
    assert not job.kernels(0, "LpNormFunctor").empty
    assert not job.kernels(0, "PointwiseOpScalarListFunctor").empty
    assert len(job.kernels(0, "amp_update_scale")) == 1
    # Moving averages: of the weights (EMA), and twice of moments in AdamW's foreach form.
    assert len(job.kernels(0, "LerpFunctor")) >= 2
