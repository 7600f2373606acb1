"""Mixture of experts: with balanced routing every expert gets its share of the tokens."""

from pathlib import Path

import pytest
from captured_job import CapturedJob, capture_command, total_bytes

pytestmark = pytest.mark.emulator

PROGRAMS = Path(__file__).parent / "programs"
BF16_BYTES = 2
TOKENS, HIDDEN, FFN, EXPERTS, TOPK, RANKS = 128, 64, 96, 4, 2, 2  # of each rank
LOCAL_EXPERTS = EXPERTS // RANKS


def capture_layer(folder: Path, dispatcher: str, mode: str, tokens: int = TOKENS) -> CapturedJob:
    return capture_command(
        (
            *("torchrun", f"--nproc-per-node={RANKS}", str(PROGRAMS / "megatron_moe_layer.py")),
            *(f"--dispatcher={dispatcher}", f"--num-tokens={tokens}", f"--num-experts={EXPERTS}"),
            *(f"--topk={TOPK}", f"--hidden-size={HIDDEN}", f"--ffn-hidden-size={FFN}"),
        ),
        folder / "traces",
        mode=mode,
    )


def tokens_of_experts(job: CapturedJob, rank: int) -> list[int]:
    """Tokens in each forward GEMM from hidden size to FFN size: in column-major terms weight^T x input."""
    gemms = job.details(rank, "gemm")
    forward = gemms[(gemms.m == FFN) & (gemms.k == HIDDEN) & (gemms.trans_a == 1)]
    return forward.n.tolist()


@pytest.mark.parametrize("mode", ["linked", "solo"])
def test_megatron_trades_tokens_in_equal_parts(tmp_path: Path, mode: str) -> None:
    job = capture_layer(tmp_path, "alltoall", mode)
    share = RANKS * TOKENS * TOPK // EXPERTS
    # Each token goes to top-k experts; the half of them is on either rank. There and back, in both passes;
    # the probabilities go with the tokens once in each pass.
    traded = TOKENS * TOPK * HIDDEN * BF16_BYTES
    probabilities = TOKENS * TOPK * BF16_BYTES
    for rank in range(RANKS):
        assert tokens_of_experts(job, rank) == [share] * LOCAL_EXPERTS
        assert total_bytes(job.collectives(rank), "all_to_all") == 4 * traded + 2 * probabilities


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["linked", "solo"])
def test_megatron_gathers_tokens_of_all_ranks(tmp_path: Path, mode: str) -> None:
    # The routing map has more bytes than other payloads may have to move.
    tokens = 32 << 10
    job = capture_layer(tmp_path, "allgather", mode, tokens)
    share = RANKS * tokens * TOPK // EXPERTS
    for rank in range(RANKS):
        assert tokens_of_experts(job, rank) == [share] * LOCAL_EXPERTS


@pytest.mark.slow
def test_a_remainder_goes_to_the_first_experts(tmp_path: Path) -> None:
    # 3 x 2 choices of 4 experts on each of 2 ranks: 2, 2, 1, 1 from each.
    job = capture_layer(tmp_path, "alltoall", "linked", tokens=3)
    assert [tokens_of_experts(job, rank) for rank in range(RANKS)] == [[4, 4], [2, 2]]


@pytest.mark.parametrize("model", ["mixtral", pytest.param("deepseek", marks=pytest.mark.slow)])
def test_transformers_gives_each_expert_its_share(tmp_path: Path, model: str) -> None:
    job = capture_command(
        ("python", str(PROGRAMS / "transformers_moe.py"), f"--model={model}"), tmp_path / "t"
    )
    gemms = job.details(0, "gemm")
    # gate and up projection in one, for 2 x 33 tokens with 2 of 8 experts each
    forward = gemms[(gemms.m == 2 * 96) & (gemms.k == 64) & (gemms.trans_a == 1)]
    assert forward.n.tolist() == [17] * 4 + [16] * 4


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
def test_experts_implementations_of_transformers(tmp_path: Path, implementation: str) -> None:
    job = capture_command(
        ("python", str(PROGRAMS / "transformers_moe.py"), f"--experts-implementation={implementation}"),
        tmp_path / "t",
    )
    gemms = job.details(0, "gemm")
    if implementation == "batched_mm":  # one row for each choice of a token
        up = gemms[(gemms.m == 2 * 96) & (gemms.n == 1) & (gemms.k == 64)]
        assert up.batch.tolist() == [2 * 33 * 2]
    else:  # forward up and down, and two for each backward
        assert len(job.kernels(0, "GroupProblemShape")) == 6
