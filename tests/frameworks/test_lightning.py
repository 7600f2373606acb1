"""Lightning's Trainer: DDP and FSDP (1) with mixed precision, by the model's dimensions."""

from pathlib import Path

import pytest
from captured_job import CapturedJob, capture_command, total_bytes

from maya.paths import workloads_dir

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

LAYERS, HIDDEN, FFN, VOCAB, SEQ, RANKS = 2, 256, 1024, 1024, 128, 2
BLOCK = 4 * HIDDEN + 4 * HIDDEN * HIDDEN + 4 * HIDDEN + 2 * HIDDEN * FFN + FFN + HIDDEN
REST = VOCAB * HIDDEN + SEQ * HIDDEN + 2 * HIDDEN  # embeddings, which the head shares, and the last norm


def capture(strategy: str, folder: Path) -> CapturedJob:
    script = str(workloads_dir() / "lightning_gpt.py")
    options = f"--num-layers {LAYERS} --strategy {strategy}"
    command = ("torchrun", f"--nproc-per-node={RANKS}", script, *options.split())
    return capture_command(command, folder / "traces", mode="linked")


def test_ddp_reduces_fp32_gradients(tmp_path: Path) -> None:
    job = capture("ddp", tmp_path)
    for rank in range(RANKS):
        collectives = job.collectives(rank)
        assert total_bytes(collectives, "all_reduce") == 4 * (LAYERS * BLOCK + REST)
        assert set(collectives.loc[collectives["op"] == "all_reduce", "dtype"]) == {"float32"}
    # Autocast casts weights once an iteration for each use: forward and backward GEMMs of the linear layers.
    gemm = job.details(0, "gemm")
    assert len(gemm) == 3 * (4 * LAYERS + 1)


def test_fsdp_gathers_bf16_weights_and_scatters_bf16_gradients(tmp_path: Path) -> None:
    job = capture("fsdp", tmp_path)
    collectives = job.collectives(0)
    # FULL_SHARD frees a block after its forward pass, the root stays. Flat parameters are padded to whole
    # shards, which these are. Lightning's bf16-mixed reduces in bf16 as well.
    assert total_bytes(collectives, "all_gather") == 2 * (2 * LAYERS * BLOCK + REST)
    assert total_bytes(collectives, "reduce_scatter") == 2 * (LAYERS * BLOCK + REST)
    assert set(collectives["ranks"]) == {tuple(range(RANKS))}
