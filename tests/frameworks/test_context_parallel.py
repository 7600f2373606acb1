"""Context parallelism: keys and values are gathered, their gradients go back to their owners."""

import pytest
from captured_job import capture_command, total_bytes

from maya.paths import workloads_dir

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

LAYERS, HIDDEN, SEQ, BATCH, RANKS = 2, 256, 128, 2, 4


def test_keys_and_values_travel(tmp_path_factory: pytest.TempPathFactory) -> None:
    command = (
        *("torchrun", f"--nproc-per-node={RANKS}", str(workloads_dir() / "gpt_context_parallel.py")),
        *f"--num-layers={LAYERS} --hidden-size={HIDDEN} --ffn-hidden-size=1024 --vocab-size=1024".split(),
        *f"--seq-length={SEQ} --micro-batch-size={BATCH} --num-attention-heads=4".split(),
    )
    job = capture_command(command, tmp_path_factory.mktemp("cp") / "traces", mode="linked")
    collectives = job.collectives(0)
    key_value_bytes = 2 * 2 * BATCH * SEQ * HIDDEN  # keys and values in bf16
    block_bytes = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * 1024 + 2 * HIDDEN)
    rest_bytes = 2 * (2 * 1024 * HIDDEN + HIDDEN)
    # FSDP2 gathers parameters over the same ranks; each pass gathers keys and values once a layer.
    assert total_bytes(collectives, "all_gather") == (
        2 * LAYERS * block_bytes + rest_bytes + 2 * LAYERS * key_value_bytes
    )
    # Gradients of keys and values, in fp32, visit all ranks in a ring.
    exchanged = collectives.loc[collectives["op"] == "all_to_all", "bytes"].to_list()
    assert exchanged == [4 * 2 * BATCH * SEQ // RANKS * HIDDEN] * (LAYERS * RANKS)
    # Attention works on the rank's part of the queries against the parts of the keys it may see.
    flops = job.details(0, "gemm").eval("2.0 * m * n * k").sum()
    weights = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * 1024) + 1024 * HIDDEN
    assert flops == 3 * 2 * BATCH * SEQ // RANKS * weights
