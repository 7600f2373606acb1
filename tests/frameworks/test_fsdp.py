"""Fully sharded data parallelism: what one iteration gathers and reduces, from the model's dimensions."""

from collections.abc import Callable

import pandas as pd
import pytest
from captured_job import CapturedJob, capture_command, device_operations, total_bytes

from maya.paths import workloads_dir
from maya.trace import read_trace

pytestmark = pytest.mark.emulator

LAYERS, HIDDEN, FFN, VOCAB, SEQ, BATCH, RANKS = 2, 256, 1024, 1024, 128, 2, 4
# Per block: two layer norms, attention and MLP with biases. Outside: embeddings (the head shares the
# token embedding's weight) and the last norm.
NORM = (HIDDEN, HIDDEN)
ATTENTION = (3 * HIDDEN * HIDDEN, 3 * HIDDEN, HIDDEN * HIDDEN, HIDDEN)
MLP = (HIDDEN * FFN, FFN, FFN * HIDDEN, HIDDEN)
BLOCK_TENSORS = (*NORM, *ATTENTION, *NORM, *MLP)
REST_TENSORS = (VOCAB * HIDDEN, SEQ * HIDDEN, *NORM)
BLOCK, REST = sum(BLOCK_TENSORS), sum(REST_TENSORS)
NUM_PARAMETERS = LAYERS * len(BLOCK_TENSORS) + len(REST_TENSORS)
LINEARS = 4 * LAYERS + 1

Capture = Callable[..., CapturedJob]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """Captures a program with options, once."""
    jobs: dict[tuple[str, ...], CapturedJob] = {}

    def captured(script: str, *options: str, mode: str = "auto") -> CapturedJob:
        key = (script, *options, mode)
        if key not in jobs:
            command = (
                *("torchrun", f"--nproc-per-node={RANKS}", str(workloads_dir() / script)),
                *f"--num-layers={LAYERS} --hidden-size={HIDDEN} --ffn-hidden-size={FFN}".split(),
                *f"--vocab-size={VOCAB} --seq-length={SEQ} --num-attention-heads=4".split(),
                *f"--micro-batch-size={BATCH}".split(),
                *options,
            )
            folder = tmp_path_factory.mktemp("fsdp") / "traces"
            jobs[key] = capture_command(command, folder, mode=mode)
        return jobs[key]

    return captured


def test_parameters_are_gathered_for_both_passes_and_gradients_reduced_once(capture: Capture) -> None:
    collectives = capture("gpt_fsdp2.py").collectives(0)
    # The root group is not resharded after the forward pass, so its parameters are gathered once.
    assert total_bytes(collectives, "all_gather") == 2 * (2 * LAYERS * BLOCK + REST)
    assert total_bytes(collectives, "reduce_scatter") == 4 * (LAYERS * BLOCK + REST)
    assert set(collectives["ranks"]) == {tuple(range(RANKS))}


def test_every_linear_layer_is_three_products(capture: Capture) -> None:
    assert len(capture("gpt_fsdp2.py").details(0, "gemm")) == 3 * LINEARS


def test_a_call_takes_few_bytes_of_the_trace(capture: Capture) -> None:
    trace = read_trace(capture("gpt_fsdp2.py").trace_dir / "rank00000.trace")
    assert trace.num_records > 1000
    assert trace.path.stat().st_size < 64 * trace.num_records


@pytest.mark.slow
def test_fsdp1_moves_what_fsdp2_moves(capture: Capture) -> None:
    for strategy, num_gathers in (("FULL_SHARD", 2), ("SHARD_GRAD_OP", 1)):
        collectives = capture("gpt_fsdp1.py", f"--sharding-strategy={strategy}").collectives(0)
        gathered = 2 * (num_gathers * LAYERS * BLOCK + REST)
        assert total_bytes(collectives, "all_gather") == gathered
        assert total_bytes(collectives, "reduce_scatter") == 4 * (LAYERS * BLOCK + REST)
        assert total_bytes(collectives, "all_reduce") == 4  # the norm of all gradients


@pytest.mark.slow
def test_kept_parameters_are_gathered_once(capture: Capture) -> None:
    kept = capture("gpt_fsdp2.py", "--no-reshard-after-forward")
    assert total_bytes(kept.collectives(0), "all_gather") == 2 * (LAYERS * BLOCK + REST)
    # They stay until the backward pass: at the end of the forward pass all blocks are there.
    more = (
        kept.standing_for(0).peak_allocated_bytes
        - capture("gpt_fsdp2.py").standing_for(0).peak_allocated_bytes
    )
    assert more > 0


@pytest.mark.slow
def test_hybrid_sharding_reduces_between_replicas(capture: Capture) -> None:
    collectives = capture("gpt_fsdp2.py", "--num-replicas=2").collectives(0)
    shards, replicas = (0, 1), (0, 2)
    within = collectives[collectives["ranks"] == shards]
    assert total_bytes(within, "all_gather") == 2 * (2 * LAYERS * BLOCK + REST)
    assert total_bytes(within, "reduce_scatter") == 4 * (LAYERS * BLOCK + REST)
    assert total_bytes(within, "all_reduce") == 4 * NUM_PARAMETERS  # norms of gradients, for clipping
    between = collectives[collectives["ranks"] == replicas]
    assert set(between["op"]) == {"all_reduce"}
    assert total_bytes(between, "all_reduce") == 4 * (LAYERS * BLOCK + REST) // 2  # of the own shard
    assert len(collectives) == len(within) + len(between)


@pytest.mark.slow
def test_offloaded_parameters_and_gradients_cross_the_bus(capture: Capture) -> None:
    copies = capture("gpt_fsdp2.py", "--cpu-offload").details(0, "memcpy")
    shards = [4 * size // RANKS for size in (*BLOCK_TENSORS, *REST_TENSORS)]
    copies = copies[(copies["host_pinned"] == 1) & copies["bytes"].isin(shards)]
    # Each gather copies the shard to the device first; blocks are gathered twice, gradients come back once.
    assert copies.loc[copies["direction"] == 0, "bytes"].sum() == 4 * (2 * LAYERS * BLOCK + REST) // RANKS
    assert copies.loc[copies["direction"] == 1, "bytes"].sum() == 4 * (LAYERS * BLOCK + REST) // RANKS


@pytest.mark.slow
def test_recomputed_blocks_run_their_forward_twice(capture: Capture) -> None:
    # The recomputation stops once it has what the backward pass needs, before a block's last product.
    for recompute, num_blocks in (("selective", LAYERS // 2), ("full", LAYERS)):
        job = capture("gpt_fsdp2.py", f"--recompute={recompute}")
        assert len(job.details(0, "gemm")) == 3 * LINEARS + 3 * num_blocks
    peaks = [
        capture("gpt_fsdp2.py", *options).standing_for(0).peak_allocated_bytes
        for options in ((), ("--recompute=selective",), ("--recompute=full",))
    ]
    assert peaks == sorted(peaks, reverse=True) and peaks[2] < peaks[0]


@pytest.mark.slow
def test_offloaded_activations_come_back_as_they_went(capture: Capture) -> None:
    copies = capture("gpt_fsdp2.py", "--offload-activations").details(0, "memcpy")
    pinned = copies[copies["host_pinned"] == 1]
    went = pinned.loc[pinned["direction"] == 1, "bytes"]
    came = pinned.loc[pinned["direction"] == 0, "bytes"]
    assert sorted(came[came.isin(went)]) == sorted(went)
    # At least each block's input and the hidden layer of its MLP, in bf16 or more.
    assert went.sum() >= 2 * LAYERS * BATCH * SEQ * (HIDDEN + FFN)


@pytest.mark.slow
def test_compiled_blocks_launch_fused_kernels(capture: Capture) -> None:
    eager, compiled = capture("gpt_fsdp2.py"), capture("gpt_fsdp2.py", "--compile")
    assert len(compiled.kernels(0, "triton_")) >= 2 * LAYERS  # some in each pass
    assert len(eager.kernels(0, "Gelu")) == 2 * LAYERS
    assert len(compiled.kernels(0, "Gelu")) == 0
    assert len(compiled.details(0, "gemm")) == len(eager.details(0, "gemm"))
    assert compiled.collectives(0)[["op", "bytes"]].values.tolist() == (
        eager.collectives(0)[["op", "bytes"]].values.tolist()
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--num-replicas=2",)], ids=["fsdp2", "hsdp"])
def test_linked_and_solo_captures_agree(capture: Capture, options: tuple[str, ...]) -> None:
    solo, linked = capture("gpt_fsdp2.py", *options), capture("gpt_fsdp2.py", *options, mode="linked")
    assert len(linked.manifest.ranks) == RANKS
    for rank in range(RANKS):
        alone, together = solo.standing_for(rank), linked.standing_for(rank)
        pd.testing.assert_frame_equal(device_operations(alone), device_operations(together))
