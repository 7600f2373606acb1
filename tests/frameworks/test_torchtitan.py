"""torchtitan's trainer on a small Llama, with FlexAttention and full recomputation."""

from pathlib import Path

import pytest
from captured_job import capture_command

from maya.paths import workloads_dir

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

LAYERS, HIDDEN, FFN, VOCAB = 2, 256, 1024, 1024
LAYER = 4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN


def test_fsdp_gathers_layers_for_both_passes(tmp_path: Path) -> None:
    command = (
        f"torchrun --nproc-per-node=2 {workloads_dir() / 'torchtitan_llama.py'} --num-layers {LAYERS} "
        f"--hidden-size {HIDDEN} --ffn-hidden-size {FFN} --vocab-size {VOCAB} --recompute full"
    )
    job = capture_command(tuple(command.split()), tmp_path / "traces", mode="linked")
    collectives = job.collectives(0)
    scattered = collectives[collectives["op"] == "reduce_scatter"]
    assert scattered["bytes"].sum() == 4 * (LAYERS * LAYER + 2 * VOCAB * HIDDEN + HIDDEN)  # fp32
    assert set(scattered["ranks"]) == {(0, 1)}
    layers = collectives[(collectives["op"] == "all_gather") & (collectives["bytes"] == 2 * LAYER)]
    assert len(layers) == 2 * LAYERS
