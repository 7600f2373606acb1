"""torch.distributed.pipelining: what the schedules send, and which stage holds what."""

from collections.abc import Callable

import pandas as pd
import pytest
from captured_job import CapturedJob, capture_command, device_operations, total_bytes

from maya.collate.captured import read_capture
from maya.paths import workloads_dir
from maya.trace import COLLECTIVE_OPS

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

LAYERS, HIDDEN, FFN, VOCAB, SEQ, BATCH = 4, 256, 1024, 1024, 128, 2
MICRO_BATCHES = 4
ACTIVATION_BYTES = 2 * BATCH * SEQ * HIDDEN
NORM = HIDDEN
BLOCK = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * NORM


Capture = Callable[..., CapturedJob]


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """Captures a schedule once."""
    jobs: dict[tuple[str, str], CapturedJob] = {}

    def captured(schedule: str, mode: str = "auto") -> CapturedJob:
        if (schedule, mode) not in jobs:
            command = (
                *("torchrun", "--nproc-per-node=4", str(workloads_dir() / "gpt_pipeline.py")),
                *f"--schedule={schedule} --global-batch-size={MICRO_BATCHES * BATCH * 2}".split(),
                *f"--pipeline-parallel-size=2 --num-layers={LAYERS} --hidden-size={HIDDEN}".split(),
                *f"--ffn-hidden-size={FFN} --vocab-size={VOCAB} --seq-length={SEQ}".split(),
                *f"--micro-batch-size={BATCH} --num-attention-heads=4".split(),
            )
            trace_dir = tmp_path_factory.mktemp(schedule) / "traces"
            jobs[schedule, mode] = capture_command(command, trace_dir, mode=mode)
        return jobs[schedule, mode]

    return captured


def messages(job: CapturedJob, rank: int) -> tuple[int, int, set[int]]:
    """Numbers of sends and receives in one iteration, and their sizes."""
    captured = read_capture(job.trace_dir).ranks[rank]
    calls = captured.calls[captured.ops["iteration"].to_numpy()[captured.calls["row"]] == 0]
    messages = calls[calls["is_point_to_point"]]
    is_send = messages["op"] == COLLECTIVE_OPS.index("send")
    return int(is_send.sum()), int((~is_send).sum()), set(messages["bytes"])


@pytest.mark.parametrize(
    ("schedule", "boundaries"),
    [
        # Two stages of two ranks: one boundary. Four stages, every second on the other rank: three of them.
        ("GPipe", 1),
        ("1F1B", 1),
        ("Interleaved1F1B", 3),
        ("InterleavedZeroBubble", 3),
        # A V: stages 0 and 3 on rank 0, 1 and 2 on rank 1, which hand over within the rank.
        ("ZBVZeroBubble", 2),
    ],
)
def test_stages_exchange_activations_at_their_boundaries(
    schedule: str, boundaries: int, capture: Capture
) -> None:
    job = capture(schedule)
    # Two pipelines side by side: ranks of one stage are of one class.
    assert [rank.members for rank in job.job.ranks] == [(0, 2), (1, 3)]
    crossings = boundaries * MICRO_BATCHES  # forward as many as backward
    sends = [messages(job, rank)[0] for rank in (0, 1)]
    receives = [messages(job, rank)[1] for rank in (0, 1)]
    assert sum(sends) == sum(receives) == 2 * crossings
    assert sends[0] == receives[1]
    assert messages(job, 0)[2] == {ACTIVATION_BYTES}
    # Every linear layer of a stage is three products for each micro-batch; the last stage has the head.
    holds_head = 0 if schedule == "ZBVZeroBubble" else 1
    for rank in (0, 1):
        linears = 5 * LAYERS // 2 + (rank == holds_head)
        assert len(job.details(rank, "gemm")) == 3 * linears * MICRO_BATCHES
        # Weights stay from the first micro-batch on; gradients are reduced after the last.
        collectives = job.collectives(rank)
        of_data = collectives[[ranks == (rank, rank + 2) for ranks in collectives["ranks"]]]
        norm_and_head = NORM + VOCAB * HIDDEN if rank == holds_head else 0
        held = LAYERS // 2 * BLOCK + norm_and_head + (VOCAB * HIDDEN if rank == 0 else 0)
        assert total_bytes(of_data, "all_gather") == 2 * held
        assert total_bytes(of_data, "reduce_scatter") == 4 * held


def test_1f1b_keeps_fewer_activations_than_gpipe(capture: Capture) -> None:
    """At most as many micro-batches as there are stages are under way, instead of all of them."""
    peaks = [capture(name).ranks[0].peak_allocated_bytes for name in ("1F1B", "GPipe")]
    assert peaks[0] < peaks[1]


def test_linked_and_solo_captures_agree(capture: Capture) -> None:
    alone, together = capture("1F1B"), capture("1F1B", mode="linked")
    assert len(together.manifest.ranks) == 4
    for rank, operations in alone.ranks.items():  # one of each class; of the others only the peers differ
        pd.testing.assert_frame_equal(
            device_operations(operations), device_operations(together.standing_for(rank))
        )
