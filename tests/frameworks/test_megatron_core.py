"""megatron-core: what each kind of parallelism sends, computes and keeps, worked out from the dimensions.

Volumes: tensor and sequence parallelism after Korthikanti et al. 2022 (Reducing Activation Recomputation in
Large Transformer Models), FLOPs after Narayanan et al. 2021 (Efficient Large-Scale Language Model Training),
optimizer states after Rajbhandari et al. 2020 (ZeRO). In names: b micro-batch, s sequence, h hidden size.
"""

from pathlib import Path

import pandas as pd
import pytest
from captured_job import CapturedJob, capture_command, device_operations, total_bytes

from maya.paths import workloads_dir

pytestmark = pytest.mark.emulator

LAYERS, HIDDEN, FFN, HEADS, VOCAB, SEQ, MICRO_BATCH = 4, 256, 1024, 4, 1024, 128, 2
BF16, FP32 = 2, 4
ACTIVATION = MICRO_BATCH * SEQ * HIDDEN * BF16  # bytes between two layers
WORKSPACE = 32 << 20  # of cuBLAS on Hopper, by thread; docs.nvidia.com/cuda/cublas, cublasSetWorkspace


def command(ranks: int, options: str) -> tuple[str, ...]:
    script = str(workloads_dir() / "megatron_gpt.py")
    return ("torchrun", f"--nproc-per-node={ranks}", script, *options.split())


def layer_parameters(tp: int = 1, hidden: int = HIDDEN, ffn: int = FFN) -> int:
    """Of one GPT layer on one rank: column-parallel layers split their bias, row-parallel ones do not."""
    qkv = 3 * hidden * hidden // tp + 3 * hidden // tp
    projection = hidden * hidden // tp + hidden
    mlp = hidden * ffn // tp + ffn // tp + ffn * hidden // tp + hidden
    return qkv + projection + mlp + 2 * 2 * hidden


def count(collectives: pd.DataFrame, op: str, num_bytes: int, ranks: tuple[int, ...]) -> int:
    of_group = collectives["ranks"] == ranks
    return int((of_group & (collectives["op"] == op) & (collectives["bytes"] == num_bytes)).sum())


def gemm_flops(job: CapturedJob, rank: int) -> int:
    gemm = job.details(rank, "gemm")
    return int((2 * gemm["m"] * gemm["n"] * gemm["k"] * gemm["batch"]).sum())


def forward_flops(layers: int, tokens: int, seq: int, hidden: int = HIDDEN) -> int:
    """GEMMs of the layers' forward pass: 24 b s h^2 for weights (FFN of 4 h), 4 b s^2 h for attention."""
    return layers * (24 * tokens * hidden**2 + 4 * tokens * seq * hidden)


def job_options(job: CapturedJob) -> str:
    """What stands behind the script in the command of a capture."""
    script = next(i for i, part in enumerate(job.manifest.command) if part.endswith("megatron_gpt.py"))
    return " ".join(job.manifest.command[script + 1 :])


def assert_same_operations(alone: CapturedJob, together: CapturedJob) -> None:
    assert len(together.ranks) == together.manifest.world_size
    for rank in together.ranks:
        operations = device_operations(alone.standing_for(rank))
        assert len(operations) > 100
        pd.testing.assert_frame_equal(operations, device_operations(together.standing_for(rank)))


MICRO_BATCHES = 4
TP_GROUPS = ((0, 1), (0, 1), (2, 3), (2, 3))


@pytest.fixture(scope="module")
def tp_pp(tmp_path_factory: pytest.TempPathFactory) -> CapturedJob:
    """TP 2 x PP 2, four micro-batches, 1F1B: ranks 0 and 1 are the first stage, 2 and 3 the last."""
    options = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --global-batch-size 8"
    folder = tmp_path_factory.mktemp("tp_pp") / "traces"
    return capture_command(command(4, options), folder, mode="linked")


def test_activations_are_reduced_twice_a_layer_and_pass(tp_pp: CapturedJob) -> None:
    for rank, group in enumerate(TP_GROUPS):
        # f and g of both halves of a layer, and once for the embedding (first stage, forward) or the
        # output layer (last stage, backward).
        expected = MICRO_BATCHES * (4 * LAYERS // 2 + 1)
        assert count(tp_pp.collectives(rank), "all_reduce", ACTIVATION, group) == expected


def test_cross_entropy_reduces_max_target_and_sum(tp_pp: CapturedJob) -> None:
    token_values = MICRO_BATCH * SEQ * FP32
    for rank, group in enumerate(TP_GROUPS):
        expected = 3 * MICRO_BATCHES if rank >= 2 else 0
        assert count(tp_pp.collectives(rank), "all_reduce", token_values, group) == expected


def test_a_stage_sends_activations_forward_and_gradients_back(tp_pp: CapturedJob) -> None:
    for rank, peer in enumerate((2, 3, 0, 1)):
        collectives = tp_pp.collectives(rank)
        # 1F1B posts a send and a receive as one batch where it has both: all but the first forward and
        # the last backward pass, of which the last stage has none but its own.
        sends = collectives[collectives["op"] == "send"]
        receives = collectives[collectives["op"] == "recv"]
        assert len(sends) == MICRO_BATCHES
        assert len(receives) == 1
        assert {*sends["bytes"], *receives["bytes"]} == {ACTIVATION}
        assert {*sends["peer"], *receives["peer"]} == {peer}


def test_embedding_gradients_are_summed_between_first_and_last_stage(tp_pp: CapturedJob) -> None:
    shard = VOCAB // 2 * HIDDEN * FP32
    for rank, group in enumerate(((0, 2), (1, 3), (0, 2), (1, 3))):
        assert count(tp_pp.collectives(rank), "all_reduce", shard, group) == 1


def test_gradient_norm_is_summed_over_all(tp_pp: CapturedJob) -> None:
    for rank in range(4):
        assert count(tp_pp.collectives(rank), "all_reduce", FP32, (0, 1, 2, 3)) == 1


def test_gemms_are_a_fourth_of_the_model(tp_pp: CapturedJob) -> None:
    tokens = MICRO_BATCHES * MICRO_BATCH * SEQ
    layers = forward_flops(LAYERS // 2, tokens, SEQ) // 2
    head = 2 * tokens * HIDDEN * VOCAB // 2
    assert gemm_flops(tp_pp, 0) == 3 * layers
    assert gemm_flops(tp_pp, 2) == 3 * (layers + head)


@pytest.mark.slow
def test_ranks_alone_do_what_they_do_together(tp_pp: CapturedJob, tmp_path: Path) -> None:
    alone = capture_command(command(4, job_options(tp_pp)), tmp_path / "traces", mode="solo")
    assert_same_operations(alone, tp_pp)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["linked", "solo"])
def test_interleaved_stages_send_between_all_their_layers(mode: str, tmp_path: Path) -> None:
    """PP 2 with two stages a rank: of three boundaries between stages, each is crossed both ways."""
    options = (
        "--pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2 --global-batch-size 8"
    )
    job = capture_command(command(2, options), tmp_path / "traces", mode=mode)
    for rank in (0, 1):
        collectives = job.collectives(rank)
        for op in ("send", "recv"):
            assert count(collectives, op, ACTIVATION, (0, 1)) == 4 * 3
    assert gemm_flops(job, 0) == 3 * forward_flops(LAYERS // 2, 4 * MICRO_BATCH * SEQ, SEQ)
    if mode == "solo":
        linked = capture_command(command(2, options), tmp_path / "linked", mode="linked")
        assert_same_operations(job, linked)


@pytest.mark.slow
def test_sequence_parallelism_gathers_and_scatters(tmp_path: Path) -> None:
    """A Llama with TP 2: all-reduces become reduce-scatters and all-gathers, and the backward pass gathers
    the inputs of column-parallel layers again (Korthikanti et al., section 4.2.2)."""
    layers, micro_batches = 2, 2
    options = "--tensor-model-parallel-size 2 --sequence-parallel --family llama --num-layers 2"
    job = capture_command(command(2, f"{options} --global-batch-size 4"), tmp_path / "traces")
    collectives = job.collectives(0)
    # A layer: forward 2 gathers and 2 scatters; backward 2 gathers of inputs, 2 of gradients, 2 scatters.
    # The embedding scatters and its gradient is gathered; the output layer gathers twice and scatters once.
    assert count(collectives, "all_gather", ACTIVATION, (0, 1)) == micro_batches * (6 * layers + 3)
    assert count(collectives, "reduce_scatter", ACTIVATION, (0, 1)) == micro_batches * (4 * layers + 2)
    assert count(collectives, "all_reduce", ACTIVATION, (0, 1)) == 0
    # The norms see half of a sequence each: their gradients are summed, in one piece.
    assert count(collectives, "all_reduce", (2 * layers + 1) * HIDDEN * FP32, (0, 1)) == 1


@pytest.mark.slow
def test_context_parallelism_gathers_keys_and_values(tmp_path: Path) -> None:
    layers, heads, groups = 2, HEADS, 2
    options = f"--context-parallel-size 2 --family llama --num-layers {layers} --num-query-groups {groups}"
    job = capture_command(command(2, options), tmp_path / "traces", mode="linked")
    collectives = job.collectives(0)
    keys = MICRO_BATCH * SEQ * HIDDEN * groups // heads * BF16
    assert count(collectives, "all_gather", keys, (0, 1)) == 2 * layers
    assert count(collectives, "reduce_scatter", keys, (0, 1)) == 2 * layers
    qkv = HIDDEN * HIDDEN * (heads + 2 * groups) // heads
    layer = qkv + HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN
    # Ranks that share a sequence are replicas as well: gradients of all parameters are summed over them.
    parameters = layers * layer + 2 * VOCAB * HIDDEN + HIDDEN
    assert count(collectives, "all_reduce", parameters * FP32, (0, 1)) == 1
    # Of four chunks rank 0 has the first and the last: the one sees itself, the other all, which PyTorch
    # gives to flash attention, as cuDNN's causal mask begins in the other corner.
    attention = job.details(0, "attention")
    assert len(attention) == 2 * layers
    assert {*attention["seq_q"], *attention["seq_kv"]} == {SEQ // 4}
    assert len(job.kernels(0, "flash_fwd_kernel")) == layers


# Three buckets of at least 40 million parameters, beside which activations are nothing.
LARGE = (
    "--num-layers 8 --hidden-size 1024 --ffn-hidden-size 4096 --seq-length 16 --micro-batch-size 1 "
    "--global-batch-size 4"
)
LARGE_PARAMETERS = 8 * layer_parameters(1, 1024, 4096) + (VOCAB + 16 + 2) * 1024


@pytest.mark.slow
def test_replicated_optimizer_keeps_18_bytes_a_parameter(tmp_path: Path) -> None:
    job = capture_command(command(2, LARGE), tmp_path / "traces", mode="linked")
    assert total_bytes(job.collectives(0), "all_reduce") >= LARGE_PARAMETERS * FP32
    assert count(job.collectives(0), "all_reduce", LARGE_PARAMETERS * FP32, (0, 1)) == 1
    # bf16 weight, fp32 gradient, master weight and two moments; AdamW's foreach form takes one more fp32.
    expected = (2 + 4 + 12 + 4) * LARGE_PARAMETERS + 2 * WORKSPACE
    assert job.ranks[0].peak_allocated_bytes == pytest.approx(expected, rel=0.005)


@pytest.mark.slow
def test_distributed_optimizer_overlaps_and_shards_states(tmp_path: Path) -> None:
    options = f"{LARGE} --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
    job = capture_command(command(2, options), tmp_path / "traces", mode="linked")
    collectives = job.collectives(0)
    # Once a step, however many micro-batches: fp32 gradients scattered, bf16 weights gathered. Buckets are
    # padded so that each rank's part begins at a multiple of 128 bytes or more.
    scattered, gathered = (total_bytes(collectives, op) for op in ("reduce_scatter", "all_gather"))
    num_buckets = int((collectives["op"] == "reduce_scatter").sum())
    assert num_buckets == int((collectives["op"] == "all_gather").sum())
    assert FP32 * LARGE_PARAMETERS <= scattered <= FP32 * (LARGE_PARAMETERS + num_buckets * 2**16)
    assert gathered == scattered // 2
    expected = (2 + 4 + (12 + 4) / 2) * LARGE_PARAMETERS + 2 * WORKSPACE
    assert job.ranks[0].peak_allocated_bytes == pytest.approx(expected, rel=0.005)
    # Overlap: they are issued between the GEMMs of the iteration, not behind the last one.
    gemms = job.details(0, "gemm").index
    assert num_buckets == 3
    assert collectives.index[collectives["op"] == "reduce_scatter"][0] < gemms[-1]
    assert collectives.index[collectives["op"] == "all_gather"][-1] > gemms[0]


@pytest.mark.slow
def test_recomputation_trades_flops_for_activations(tmp_path: Path) -> None:
    seq = 1024
    jobs = {
        recompute: capture_command(
            command(1, f"--seq-length {seq} --recompute {recompute}"), tmp_path / recompute
        )
        for recompute in ("none", "selective", "full")
    }
    tokens = MICRO_BATCH * seq
    layers, head = forward_flops(LAYERS, tokens, seq), 2 * tokens * HIDDEN * VOCAB
    attention = LAYERS * 4 * tokens * seq * HIDDEN
    flops = {recompute: gemm_flops(job, 0) for recompute, job in jobs.items()}
    assert flops == {
        "none": 3 * (layers + head),
        "selective": 3 * (layers + head) + attention,
        "full": 3 * (layers + head) + layers,
    }
    # Kept for attention without dropout: softmax in fp32, and in bf16 for the product with the values. For
    # the rest of a layer 32 sbh of the paper's 34, which has two dropout masks; its input is always kept.
    # While one layer is recomputed its own activations exist.
    softmax = (FP32 + BF16) * HEADS * seq * seq * MICRO_BATCH
    rest = 30 * tokens * HIDDEN
    peak = {recompute: job.ranks[0].peak_allocated_bytes for recompute, job in jobs.items()}
    assert peak["none"] - peak["selective"] == pytest.approx((LAYERS - 1) * softmax, rel=0.02)
    assert peak["none"] - peak["full"] == pytest.approx((LAYERS - 1) * (softmax + rest), rel=0.02)


@pytest.mark.slow
def test_expert_parallelism_exchanges_balanced_tokens(tmp_path: Path) -> None:
    """Four experts on two ranks, two for a token: the rules for values balance them (docs/values.md)."""
    layers, experts, top_k = 2, 4, 2
    options = f"--num-layers {layers} --num-experts {experts} --expert-model-parallel-size 2"
    job = capture_command(
        command(2, f"{options} --moe-router-topk {top_k}"), tmp_path / "traces", mode="linked"
    )
    collectives = job.collectives(0)
    copies = MICRO_BATCH * SEQ * top_k
    # Tokens go to their experts and come back, in both passes; probabilities go there, gradients back.
    assert count(collectives, "all_to_all", copies * HIDDEN * BF16, (0, 1)) == 4 * layers
    assert count(collectives, "all_to_all", copies * BF16, (0, 1)) == 2 * layers
    # How many tokens each rank has for each expert.
    assert count(collectives, "all_gather", 2 * experts * 8, (0, 1)) == layers
    # Experts are not replicated: their gradients stay, those of the rest are summed.
    expert = 2 * HIDDEN * FFN + FFN + HIDDEN
    assert count(collectives, "all_reduce", layers * experts // 2 * expert * FP32, (0,)) == 1
    router = experts * HIDDEN + experts
    dense = layer_parameters() - expert + router  # in place of the MLP
    rest = (VOCAB + SEQ + 2) * HIDDEN
    assert count(collectives, "all_reduce", (layers * dense + rest) * FP32, (0, 1)) == 1
