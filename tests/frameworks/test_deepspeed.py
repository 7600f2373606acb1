"""DeepSpeed: volumes and memory of ZeRO (Rajbhandari et al. 2020) and PipelineModule, by the dimensions."""

from pathlib import Path

import pandas as pd
import pytest
from captured_job import CapturedJob, capture_command, device_operations, total_bytes

from maya.paths import workloads_dir

pytestmark = pytest.mark.emulator

LAYERS, HIDDEN, FFN, VOCAB, SEQ, RANKS = 4, 1024, 4096, 1024, 16, 2
BUCKET = 2_000_000
# A Llama: weights of attention and MLP; norms; embedding and head. Activations are nothing beside them.
ATTENTION, MLP = 4 * HIDDEN**2, 3 * HIDDEN * FFN
NORMS = (2 * LAYERS + 1) * HIDDEN
PARAMETERS = LAYERS * (ATTENTION + MLP) + NORMS + 2 * VOCAB * HIDDEN
DIMENSIONS = (
    f"--family llama --num-layers {LAYERS} --hidden-size {HIDDEN} --ffn-hidden-size {FFN} "
    f"--vocab-size {VOCAB} --seq-length {SEQ} --num-attention-heads 8 --num-query-groups 8 "
    f"--micro-batch-size 1 --reduce-bucket-size {BUCKET}"
)
# Workspaces of cuBLAS on Hopper, of the thread that goes forward and the one that goes back, and the bucket.
BUFFERS = 2 * (32 << 20) + 2 * BUCKET
TO_DEVICE, TO_HOST = 0, 1  # memcpy directions of native/trace/format.h


def capture(options: str, folder: Path, mode: str = "linked") -> CapturedJob:
    script = str(workloads_dir() / "gpt_deepspeed.py")
    command = ("torchrun", f"--nproc-per-node={RANKS}", script, *DIMENSIONS.split(), *options.split())
    return capture_command(command, folder, mode=mode)


def copied_bytes(job: CapturedJob, direction: int) -> int:
    """Bytes of one iteration that cross the bus, without flags and lists of addresses."""
    copies = job.details(0, "memcpy")
    return int(copies.loc[(copies["direction"] == direction) & (copies["bytes"] >= 1024), "bytes"].sum())


@pytest.fixture(scope="module")
def zero3(tmp_path_factory: pytest.TempPathFactory) -> CapturedJob:
    """No parameter is kept between forward and backward pass."""
    return capture("--zero-stage 3 --max-live-parameters 1", tmp_path_factory.mktemp("zero3") / "traces")


def zero3_gathered_parameters() -> int:
    """Weights are gathered for both passes. Exceptions: the head, which the backward pass begins with where
    the forward pass ends, and norms, which are below stage3_param_persistence_threshold: those stay on every
    rank and are gathered once, after the step."""
    return 2 * (PARAMETERS - NORMS) - VOCAB * HIDDEN + NORMS


def test_zero3_gathers_for_both_passes_and_scatters_gradients(zero3: CapturedJob) -> None:
    collectives = zero3.collectives(0)
    assert total_bytes(collectives, "all_gather") == 2 * zero3_gathered_parameters()
    assert total_bytes(collectives, "reduce_scatter") == 2 * PARAMETERS
    norm = collectives[collectives["op"] == "all_reduce"]
    assert norm["bytes"].tolist() == [8]
    assert set(collectives["ranks"]) == {tuple(range(RANKS))}


def test_zero3_shards_parameters_gradients_and_states(zero3: CapturedJob) -> None:
    # By shard: bf16 weight and gradient, fp32 master weight and two moments; in the step besides a fp32
    # gradient, and a temporary of AdamW's foreach form. Norms stay whole.
    expected = (2 + 2 + 12 + 4 + 4) * PARAMETERS / RANKS + BUFFERS
    assert zero3.ranks[0].peak_allocated_bytes == pytest.approx(expected, rel=0.005)


@pytest.mark.slow
def test_zero3_alone_does_what_it_does_together(zero3: CapturedJob, tmp_path: Path) -> None:
    alone = capture("--zero-stage 3 --max-live-parameters 1", tmp_path / "traces", mode="solo")
    for rank in range(RANKS):
        operations = device_operations(alone.standing_for(rank))
        assert len(operations) > 100
        pd.testing.assert_frame_equal(operations, device_operations(zero3.standing_for(rank)))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_zero_1_and_2_reduce_gradients_and_gather_weights(stage: int, tmp_path: Path) -> None:
    micro_batches = 2
    options = f"--zero-stage {stage} --global-batch-size {RANKS * micro_batches}"
    job = capture(options, tmp_path / "traces")
    collectives = job.collectives(0)
    # use_multi_rank_bucket_allreduce, the default, reduces the parts of all ranks at once; ZeRO 2 keeps no
    # whole gradients, so it reduces each micro-batch.
    reduced = collectives[(collectives["op"] == "all_reduce") & (collectives["dtype"] == "bfloat16")]
    assert reduced["bytes"].sum() == 2 * PARAMETERS * (micro_batches if stage == 2 else 1)
    assert total_bytes(collectives, "all_gather") == 2 * PARAMETERS
    assert collectives.loc[collectives["dtype"] == "uint8", "bytes"].tolist() == [1]  # overflow of any rank?
    largest = max(MLP // 3, BUCKET) * 2
    assert reduced["bytes"].max() <= 2 * largest


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2])
def test_zero_1_and_2_shard_the_optimizer(stage: int, tmp_path: Path) -> None:
    job = capture(f"--zero-stage {stage}", tmp_path / "traces")
    # At the step: bf16 weights; by shard fp32 master weight, two moments, gradient and AdamW's temporary.
    expected = 2 * PARAMETERS + (12 + 4 + 4) * PARAMETERS / RANKS + BUFFERS
    assert job.ranks[0].peak_allocated_bytes == pytest.approx(expected, rel=0.01)


@pytest.mark.slow
def test_optimizer_offload_moves_a_shard_each_way(tmp_path: Path) -> None:
    job = capture("--zero-stage 2 --offload-optimizer", tmp_path / "traces")
    assert copied_bytes(job, TO_HOST) == 4 * PARAMETERS // RANKS  # gradients, as fp32
    assert copied_bytes(job, TO_DEVICE) == 2 * PARAMETERS // RANKS
    assert job.kernels(0, "multi_tensor_apply.*[Aa]dam").empty
    # On the device: weights, the shard of gradients.
    expected = (2 + 2 / RANKS) * PARAMETERS + BUFFERS
    assert job.ranks[0].peak_allocated_bytes == pytest.approx(expected, rel=0.02)


@pytest.mark.slow
def test_parameter_offload_uploads_shards_to_gather_them(tmp_path: Path) -> None:
    options = "--zero-stage 3 --max-live-parameters 1 --offload-optimizer --offload-param"
    job = capture(options, tmp_path / "traces")
    collectives = job.collectives(0)
    assert total_bytes(collectives, "all_gather") == 2 * zero3_gathered_parameters()
    assert total_bytes(collectives, "reduce_scatter") == 2 * PARAMETERS
    # A shard for every gather, and the shards that the optimizer updated.
    uploaded = 2 * zero3_gathered_parameters() + 2 * PARAMETERS
    assert copied_bytes(job, TO_DEVICE) == uploaded // RANKS
    assert copied_bytes(job, TO_HOST) >= 2 * PARAMETERS // RANKS
    # The device holds less than a byte for each of the 24 / RANKS that ZeRO 3 takes alone.
    assert job.ranks[0].peak_allocated_bytes < 1.0 * PARAMETERS + BUFFERS


@pytest.mark.slow
def test_pipeline_module_sends_activations_and_recomputes(tmp_path: Path) -> None:
    micro_batches = 4
    options = f"--pipeline-parallel-size 2 --global-batch-size {micro_batches} --recompute full --family gpt"
    job = capture(options, tmp_path / "traces")
    block = 4 * HIDDEN**2 + 4 * HIDDEN + 2 * HIDDEN * FFN + FFN + HIDDEN + 4 * HIDDEN
    head = 2 * micro_batches * SEQ * HIDDEN * VOCAB
    layers = LAYERS // 2 * micro_batches * SEQ * 2 * (4 * HIDDEN**2 + 2 * HIDDEN * FFN)
    for rank in (0, 1):
        collectives = job.collectives(rank)
        for op in ("send", "recv"):
            rows = collectives[collectives["op"] == op]
            assert rows["bytes"].tolist() == micro_batches * [SEQ * HIDDEN * 2]
            assert set(rows["peer"]) == {1 - rank}
        # The token embedding is on both stages: its gradients are summed.
        tied = collectives[(collectives["op"] == "all_reduce") & (collectives["bytes"] == 2 * VOCAB * HIDDEN)]
        assert len(tied) == 1
        # Replicas are one each here; their group has the stage's gradients.
        alone = collectives[(collectives["ranks"] == (rank,)) & (collectives["op"] == "all_reduce")]
        embeddings = (VOCAB + SEQ) * HIDDEN
        last_norm = 2 * HIDDEN if rank == 1 else 0
        assert alone["bytes"].max() == 2 * (LAYERS // 2 * block + embeddings + last_norm)
        gemm = job.details(rank, "gemm")
        flops = int((2 * gemm["m"] * gemm["n"] * gemm["k"] * gemm["batch"]).sum())
        # Forward, forward again, and the backward pass of twice that.
        assert flops == 4 * layers + (3 * head if rank == 1 else 0)
