"""Megatron-LM's own pretrain_gpt.py, unmodified, on 8 emulated GPUs; needs a checkout of Megatron-LM.

    git clone --branch core_v0.16.1 https://github.com/NVIDIA/Megatron-LM
    MAYA_MEGATRON_LM_CHECKOUT=Megatron-LM make test-frameworks

with the tag of the installed megatron-core, and the package `six`, which Megatron-LM imports.
"""

import importlib.util
import os
import re
import shutil
import sysconfig
from pathlib import Path

import pandas as pd
import pytest
from captured_job import CapturedJob, capture_command, device_operations

CHECKOUT = os.environ.get("MAYA_MEGATRON_LM_CHECKOUT", "")

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.slow,
    pytest.mark.skipif(not CHECKOUT, reason="MAYA_MEGATRON_LM_CHECKOUT names no checkout of Megatron-LM"),
    pytest.mark.skipif(
        not importlib.util.find_spec("six"), reason="Megatron-LM imports six: pip install six"
    ),
]

LAYERS, HIDDEN, SEQ, MICRO_BATCH, MICRO_BATCHES, VOCAB = 4, 256, 128, 2, 4, 1024
TP, PP, DP = 2, 2, 2
OPTIONS = (
    f"--tensor-model-parallel-size {TP} --pipeline-model-parallel-size {PP} --num-layers {LAYERS} "
    f"--hidden-size {HIDDEN} --num-attention-heads 4 --seq-length {SEQ} --max-position-embeddings {SEQ} "
    f"--micro-batch-size {MICRO_BATCH} --global-batch-size {DP * MICRO_BATCH * MICRO_BATCHES} "
    f"--train-iters 5 --lr 1e-4 --bf16 --mock-data --tokenizer-type NullTokenizer --vocab-size {VOCAB - 1} "
    # Neither Transformer Engine nor Apex.
    "--transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion "
    "--no-masked-softmax-fusion --eval-interval 1000 --eval-iters 0 --log-interval 1"
)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The command on a copy of the checkout that has the compiled helpers of the installed megatron-core.

    Megatron-LM compiles them at its start, for the Python that `python3-config` belongs to.
    """
    folder = tmp_path_factory.mktemp("megatron_lm")
    checkout = folder / "Megatron-LM"
    shutil.copytree(CHECKOUT, checkout, ignore=shutil.ignore_patterns(".git", "tests", "docs"))
    installed = importlib.util.find_spec("megatron.core")
    assert installed is not None and installed.origin is not None
    for helper in Path(installed.origin).parent.glob("datasets/helpers_cpp*.so"):
        shutil.copy(helper, checkout / "megatron/core/datasets")
    config = folder / "bin/python3-config"
    config.parent.mkdir()
    config.write_text(f"#!/bin/sh\necho {sysconfig.get_config_var('EXT_SUFFIX')}\n")
    config.chmod(0o755)
    return (
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
        f"PATH={config.parent}{os.pathsep}{os.environ['PATH']}",
        "torchrun",
        "--nproc-per-node=8",
        str(checkout / "pretrain_gpt.py"),
        *OPTIONS.split(),
    )


@pytest.fixture(scope="module")
def linked(command: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> CapturedJob:
    return capture_command(command, tmp_path_factory.mktemp("linked") / "traces", mode="linked")


def iterations(job: CapturedJob, rank: int) -> list[str]:
    """The lines that a rank logged, one an iteration."""
    log = next(job.trace_dir.rglob(f"*rank{rank:05d}.log")).read_text()
    return re.findall(r"iteration +\d+/ +5 .*", log)


def test_iterations_pass_all_checks(linked: CapturedJob) -> None:
    lines = iterations(linked, 7)
    assert len(lines) >= 4  # the capture ends the program when it has what it needs
    for line in lines:
        assert "number of skipped iterations:   0 | number of nan iterations:   0" in line


def test_stages_do_the_work_of_their_layers(linked: CapturedJob) -> None:
    tokens = MICRO_BATCHES * MICRO_BATCH * SEQ
    layers = LAYERS // PP * (24 * tokens * HIDDEN**2 + 4 * tokens * SEQ * HIDDEN) // TP
    head = 2 * tokens * HIDDEN * VOCAB // TP
    activation = MICRO_BATCH * SEQ * HIDDEN * 2
    for rank, expected in enumerate(4 * [3 * layers] + 4 * [3 * (layers + head)]):
        gemm = linked.details(rank, "gemm")
        assert int((2 * gemm["m"] * gemm["n"] * gemm["k"] * gemm["batch"]).sum()) == expected
        collectives = linked.collectives(rank)
        reduced = collectives[(collectives["op"] == "all_reduce") & (collectives["bytes"] == activation)]
        assert len(reduced) == MICRO_BATCHES * (4 * LAYERS // PP + 1)
        assert len(collectives[collectives["op"] == "send"]) == MICRO_BATCHES
        assert {*collectives.loc[collectives["op"] == "send", "bytes"]} == {activation}


def test_each_rank_alone_does_what_it_does_together(
    command: tuple[str, ...], linked: CapturedJob, tmp_path: Path
) -> None:
    alone = capture_command(command, tmp_path / "traces", mode="solo", ranks=tuple(range(8)))
    for rank in range(8):
        operations = device_operations(alone.standing_for(rank))
        assert len(operations) > 100
        pd.testing.assert_frame_equal(operations, device_operations(linked.standing_for(rank)))
