"""Tensor and sequence parallelism through DTensor, with FSDP2 over the other ranks."""

import pandas as pd
import pytest
from captured_job import CapturedJob, capture_command

from maya.paths import workloads_dir

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

LAYERS, HIDDEN, FFN, VOCAB, SEQ, BATCH, TP = 2, 256, 1024, 1024, 128, 2, 2
TENSOR, DATA = (0, 1), (0, 2)  # groups of rank 0


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> CapturedJob:
    command = (
        *("torchrun", "--nproc-per-node=4", str(workloads_dir() / "gpt_tensor_parallel.py")),
        *f"--tensor-parallel-size={TP} --num-layers={LAYERS} --hidden-size={HIDDEN}".split(),
        *f"--ffn-hidden-size={FFN} --vocab-size={VOCAB} --seq-length={SEQ}".split(),
        *f"--micro-batch-size={BATCH} --num-attention-heads=4".split(),
    )
    return capture_command(command, tmp_path_factory.mktemp("tp") / "traces")


def of(collectives: pd.DataFrame, ranks: tuple[int, ...], op: str) -> list[int]:
    return collectives.loc[(collectives["ranks"] == ranks) & (collectives["op"] == op), "bytes"].to_list()


def test_activations_are_gathered_and_scattered_along_the_sequence(job: CapturedJob) -> None:
    """Korthikanti et al. 2022, section 4.2.2: in each pass a gather and a scatter around attention and MLP.

    The embedding ends in a scatter (gather in the backward pass), the head begins with a gather.
    """
    collectives = job.collectives(0)
    activation_bytes = 2 * BATCH * SEQ * HIDDEN
    num_each = 2 * 2 * LAYERS + 2
    assert of(collectives, TENSOR, "all_gather") == [activation_bytes] * num_each
    assert of(collectives, TENSOR, "reduce_scatter") == [activation_bytes] * num_each


def test_norms_and_the_loss_are_summed_over_the_tensor_group(job: CapturedJob) -> None:
    sums = of(job.collectives(0), TENSOR, "all_reduce")
    norms = [2 * HIDDEN] * (2 * LAYERS + 1)  # gradients of weights that every rank has
    # Vocabulary-parallel cross entropy: maximum and sum of exponentials in fp32, the target's logit in bf16.
    loss = [4 * BATCH * SEQ, 4 * BATCH * SEQ, 2 * BATCH * SEQ]
    assert sorted(sums) == sorted(norms + loss)


def test_shards_of_the_weights_are_gathered_over_the_data_group(job: CapturedJob) -> None:
    collectives = job.collectives(0)
    block = (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN) // TP + 2 * HIDDEN
    rest = 2 * VOCAB * HIDDEN // TP + HIDDEN
    assert sum(of(collectives, DATA, "all_gather")) == 2 * (2 * LAYERS * block + rest)
    assert sum(of(collectives, DATA, "reduce_scatter")) == 4 * (LAYERS * block + rest)


def test_products_have_the_size_of_a_shard(job: CapturedJob) -> None:
    gemms = job.details(0, "gemm")
    flops = (2 * gemms["m"] * gemms["n"] * gemms["k"]).sum()
    weights = (LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN) + VOCAB * HIDDEN) // TP
    assert flops == 3 * 2 * BATCH * SEQ * weights


def test_all_ranks_are_of_one_class(job: CapturedJob) -> None:
    assert job.standing_for(0).members == (0, 1, 2, 3)
