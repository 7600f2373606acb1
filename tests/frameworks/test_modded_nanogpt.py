"""Record programs of modded-nanogpt, as their logs hold them, on 8 emulated GPUs; needs a checkout.

    git clone https://github.com/KellerJordan/modded-nanogpt
    MAYA_MODDED_NANOGPT_CHECKOUT=modded-nanogpt make test-frameworks

One rank of each class is captured, and compiles for minutes. Records from July 2025 on compile an optimizer
that PyTorch 2.14 refuses (a view made without gradients, written with them); from September on they take
FlashAttention 3 from a package of compiled kernels.
"""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from captured_job import CapturedJob, capture_command, total_bytes

CHECKOUT = os.environ.get("MAYA_MODDED_NANOGPT_CHECKOUT", "")
BEGIN_OF_TEXT = 50256
LAYERS, WIDTH = 12, 768
VOCAB, PADDED_VOCAB = 50257, 50304
MATRIX = WIDTH**2
BF16, FP32 = 2, 4
E4M3, E5M2 = 28, 29  # cudaDataType
ATTENTION_BACKWARD = "^triton_tem.*flex_attention_backward"

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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_tokens(folder / "fineweb10B/fineweb_train_000001.bin", 60_000_000)
    write_tokens(folder / "fineweb10B/fineweb_val_000000.bin", 10_600_000)
    return folder


def run_record(
    name: str, data: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *environment: str
) -> CapturedJob:
    """The program that a record's log begins with, on 8 GPUs."""
    log = next(Path(CHECKOUT).glob(f"records/track_1_short/{name}/*.txt"))
    program = log.read_text().removeprefix(100 * "=").split(100 * "=")[0]
    (folder / "train_gpt.py").write_text(program.strip("\n") + "\n")
    (folder / "data").symlink_to(data)
    monkeypatch.chdir(folder)
    command = (*environment, "torchrun", "--standalone", "--nproc_per_node=8", "train_gpt.py")
    job = capture_command(command, folder / "traces", mode="solo", timeout_s=1800)
    assert sum(len(rank.members) for rank in job.job.ranks) == 8
    for rank in job.manifest.ranks:
        assert rank.iterations >= 4
        assert not rank.unemulated
    return job


def test_muon_with_ddp(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """October 2024: DDP around a compiled model; each rank orthogonalises all updates."""
    job = run_record("2024-10-10_Muon", data, tmp_path, monkeypatch)
    for trace in job.job.ranks:
        # The embedding is the head too; a layer has 4 + 8 squares in attention and MLP. All in fp32.
        parameters = VOCAB * WIDTH + LAYERS * 12 * MATRIX
        assert total_bytes(job.collectives(trace.rank), "all_reduce") == FP32 * parameters


def test_flex_attention(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """November 2024: FlexAttention on documents; the ranks share out Muon's work and sum its results."""
    job = run_record("2024-11-19_FlexAttention", data, tmp_path, monkeypatch)
    matrices = LAYERS * 12 * MATRIX
    scalars = LAYERS * 3 + LAYERS // 2  # mixes of values and residuals, weights of skips
    gradients = BF16 * (PADDED_VOCAB * WIDTH + scalars) + FP32 * (PADDED_VOCAB * WIDTH + matrices)
    for trace in job.job.ranks:
        collectives = job.collectives(trace.rank)
        assert total_bytes(collectives, "all_reduce") == gradients + BF16 * matrices
        # Gradients in buckets, and once all updates together.
        assert (collectives["bytes"] == BF16 * matrices).sum() == 1
        assert len(job.kernels(trace.rank, ATTENTION_BACKWARD)) == LAYERS


def test_fp8_head(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """February 2025: no DDP, FP8 products in the head, Muon's updates gathered.

    What the program declares of its FP8 operators has other strides than they return. Its PyTorch let that
    pass, 2.14 asserts it, on any device.
    """
    size_asserts = "TORCHINDUCTOR_SIZE_ASSERTS=0"
    job = run_record("2025-02-01_RuleTweak", data, tmp_path, monkeypatch, size_asserts)
    attentions = LAYERS - 1  # the eighth layer has none
    reduced = {
        BF16 * VOCAB * WIDTH: 4,  # embedding and three of values
        FP32 * PADDED_VOCAB * WIDTH: 1,
        FP32 * 3 * MATRIX: attentions,
        FP32 * MATRIX: attentions,
        FP32 * 4 * MATRIX: 2 * LAYERS,
        FP32 * 2: LAYERS + attentions,  # mixes of residuals, and of values
        FP32 * LAYERS // 2: 1,
    }
    gathered = {  # eight matrices of a size at a time, one from each rank
        8 * BF16 * MATRIX: -(-attentions // 8),
        8 * BF16 * 3 * MATRIX: -(-attentions // 8),
        8 * BF16 * 4 * MATRIX: 2 * LAYERS // 8,
    }
    for trace in job.job.ranks:
        for op, expected in (("all_reduce", reduced), ("all_gather", gathered)):
            collectives = job.collectives(trace.rank)
            assert Counter(collectives.loc[collectives["op"] == op, "bytes"]) == expected
        assert len(job.kernels(trace.rank, ATTENTION_BACKWARD)) == attentions
        # The head's product, and both of its gradients.
        gemm = job.details(trace.rank, "gemm")
        fp8 = gemm[gemm["type_a"].isin((E4M3, E5M2))]
        assert {*(fp8["m"] * fp8["n"] * fp8["k"])} == {48 * 1024 * WIDTH * PADDED_VOCAB}
        assert len(fp8) == 3
