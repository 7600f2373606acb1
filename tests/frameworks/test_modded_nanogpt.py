"""A record program of modded-nanogpt, as its log holds it, on 8 emulated GPUs; needs a checkout.

    git clone https://github.com/KellerJordan/modded-nanogpt
    MAYA_MODDED_NANOGPT_CHECKOUT=modded-nanogpt make test-frameworks

Later records take FlashAttention 3 from a package of compiled kernels.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from captured_job import capture_command

CHECKOUT = os.environ.get("MAYA_MODDED_NANOGPT_CHECKOUT", "")
BEGIN_OF_TEXT = 50256

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHECKOUT, reason="MAYA_MODDED_NANOGPT_CHECKOUT names no checkout of modded-nanogpt"
    ),
]


def write_tokens(path: Path, count: int) -> None:
    """Random tokens in documents of 600, in the format of the project's data files."""
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, count
    tokens = np.random.default_rng(0).integers(0, BEGIN_OF_TEXT, count, dtype=np.uint16)
    tokens[::600] = BEGIN_OF_TEXT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.tobytes() + tokens.tobytes())


def test_flex_attention_and_fp8_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of February 2025: FlexAttention, FP8 products, Muon, all compiled."""
    log = next(Path(CHECKOUT).glob("records/track_1_short/2025-02-01_RuleTweak/*.txt"))
    (tmp_path / "train_gpt.py").write_text(log.read_text().split("\n" + 100 * "=")[0] + "\n")
    data = tmp_path / "data/fineweb10B"
    write_tokens(data / "fineweb_train_000001.bin", 60_000_000)
    write_tokens(data / "fineweb_val_000000.bin", 10_600_000)
    monkeypatch.chdir(tmp_path)
    # What the program declares of its FP8 operators has other strides than they return, which its PyTorch let
    # pass and 2.14 asserts.
    environment = ("TORCHINDUCTOR_SIZE_ASSERTS=0",)
    command = (*environment, "torchrun", "--standalone", "--nproc_per_node=8", "train_gpt.py")
    job = capture_command(command, tmp_path / "traces", mode="solo", ranks=(0,))
    (rank,) = job.manifest.ranks
    assert (rank.rank, rank.status) == (0, "ok")
    assert rank.iterations >= 4
    assert not rank.unemulated
