"""FSDP2: what one iteration gathers and reduces, worked out from the model's dimensions."""

import pytest
from captured_job import CapturedJob, capture_command, total_bytes

from maya.paths import workloads_dir

pytestmark = pytest.mark.emulator

LAYERS, HIDDEN, FFN, VOCAB, SEQ, RANKS = 2, 256, 1024, 1024, 128, 4
# Per block: two layer norms, attention and MLP with biases. Outside: embeddings (the head shares the
# token embedding's weight) and the last norm.
BLOCK = 4 * HIDDEN + 4 * HIDDEN * HIDDEN + 4 * HIDDEN + 2 * HIDDEN * FFN + FFN + HIDDEN
REST = VOCAB * HIDDEN + SEQ * HIDDEN + 2 * HIDDEN


@pytest.fixture(scope="module")
def fsdp2(tmp_path_factory: pytest.TempPathFactory) -> CapturedJob:
    command = (
        "torchrun",
        f"--nproc-per-node={RANKS}",
        str(workloads_dir() / "gpt_fsdp2.py"),
        *f"--num-layers={LAYERS} --hidden-size={HIDDEN} --ffn-hidden-size={FFN}".split(),
        *f"--vocab-size={VOCAB} --seq-length={SEQ} --num-attention-heads=4".split(),
    )
    return capture_command(command, tmp_path_factory.mktemp("fsdp2") / "traces")


def test_parameters_are_gathered_for_both_passes_and_gradients_reduced_once(fsdp2: CapturedJob) -> None:
    collectives = fsdp2.collectives(0)
    # The root group is not resharded after the forward pass, so its parameters are gathered once.
    assert total_bytes(collectives, "all_gather") == 2 * (2 * LAYERS * BLOCK + REST)
    assert total_bytes(collectives, "reduce_scatter") == 4 * (LAYERS * BLOCK + REST)
    assert set(collectives["ranks"]) == {tuple(range(RANKS))}
