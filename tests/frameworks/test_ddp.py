"""DistributedDataParallel: which buckets are reduced, from the sizes of the parameters."""

from collections.abc import Callable, Iterable

import pytest
from captured_job import CapturedJob, capture_command

from maya.paths import workloads_dir

pytestmark = pytest.mark.emulator

LAYERS, HIDDEN, FFN, VOCAB, SEQ, BATCH, RANKS = 2, 256, 1024, 1024, 128, 2, 2
MIB = 1 << 20
# Bytes of fp32 parameters of a Llama, in the order in which they are used.
EMBEDDING = HEAD = 4 * VOCAB * HIDDEN
NORM = 4 * HIDDEN
BLOCK = [NORM, 4 * 3 * HIDDEN * HIDDEN, 4 * HIDDEN * HIDDEN, NORM, *[4 * HIDDEN * FFN] * 3]
PARAMETERS = [EMBEDDING, *BLOCK * LAYERS, NORM, HEAD]
LINEARS = 5 * LAYERS + 1
BUFFERS = 2 * 4 * SEQ * HIDDEN // 4  # cosines and sines of one head of four

Capture = Callable[..., CapturedJob]


def buckets(sizes: Iterable[int], first_cap: int, cap: int) -> list[int]:
    """Closes a bucket once it has reached its limit (torch/csrc/distributed/c10d/reducer.cpp,
    compute_bucket_assignment_by_size)."""
    closed, size, limit = [], 0, first_cap
    for parameter in sizes:
        size += parameter
        if size >= limit:
            closed.append(size)
            size, limit = 0, cap
    return [*closed, size] if size else closed


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """Captures the program with options, once."""
    jobs: dict[tuple[str, ...], CapturedJob] = {}

    def captured(*options: str) -> CapturedJob:
        if options not in jobs:
            command = (
                *("torchrun", f"--nproc-per-node={RANKS}", str(workloads_dir() / "lm_ddp.py")),
                *f"--family=llama --num-layers={LAYERS} --hidden-size={HIDDEN}".split(),
                *f"--ffn-hidden-size={FFN} --vocab-size={VOCAB} --seq-length={SEQ}".split(),
                *f"--micro-batch-size={BATCH} --num-attention-heads=4".split(),
                *options,
            )
            jobs[options] = capture_command(command, tmp_path_factory.mktemp("ddp") / "traces")
        return jobs[options]

    return captured


def all_reduces(job: CapturedJob) -> list[int]:
    collectives = job.collectives(0)
    assert set(collectives["ranks"]) == {tuple(range(RANKS))}
    return collectives.loc[collectives["op"] == "all_reduce", "bytes"].to_list()


def test_gradients_are_reduced_in_buckets_as_they_arrive(capture: Capture) -> None:
    """A first bucket of 1 MiB, then 25; after the first iteration in the order of the backward pass."""
    job = capture()
    assert all_reduces(job) == buckets(reversed(PARAMETERS), MIB, 25 * MIB)
    collectives = job.collectives(0)
    assert collectives.loc[collectives["op"] == "broadcast", "bytes"].to_list() == [BUFFERS]


def test_accumulation_reduces_in_the_last_micro_batch_only(capture: Capture) -> None:
    micro_batches = 3
    options = (f"--global-batch-size={micro_batches * BATCH * RANKS}", "--bucket-cap-mb=4")
    job = capture(*options)
    assert all_reduces(job) == buckets(reversed(PARAMETERS), 4 * MIB, 4 * MIB)
    assert len(job.details(0, "gemm")) == 3 * LINEARS * micro_batches


@pytest.mark.slow
def test_a_static_graph_is_reduced_like_any_other(capture: Capture) -> None:
    assert all_reduces(capture("--static-graph", "--bucket-cap-mb=4")) == (
        buckets(reversed(PARAMETERS), 4 * MIB, 4 * MIB)
    )


@pytest.mark.slow
def test_unused_parameters_are_looked_for_in_each_iteration(capture: Capture) -> None:
    """Buckets are laid out from the first parameter on, and stay; ranks sum a bitmap of what they used."""
    job = capture("--find-unused-parameters")
    expected = buckets(PARAMETERS, MIB, 25 * MIB)
    assert all_reduces(job) == [*reversed(expected), 4 * len(PARAMETERS)]


@pytest.mark.slow
def test_gradients_outside_of_buckets_are_copied_back_and_take_their_memory_again(capture: Capture) -> None:
    # Activations are small, and buckets are not laid out anew, which would need them twice for a moment.
    small = ("--find-unused-parameters", "--precision=fp32", "--micro-batch-size=1", "--seq-length=16")
    views, copies = capture(*small), capture(*small, "--no-gradient-as-bucket-view")
    assert all_reduces(copies) == all_reduces(views)

    def copied(job: CapturedJob) -> list[int]:
        of_all = job.details(0, "memcpy")
        return sorted(of_all.loc[(of_all["direction"] == 2) & of_all["bytes"].isin(PARAMETERS), "bytes"])

    assert copied(views) == []
    assert copied(copies) == sorted(PARAMETERS)
    more = copies.standing_for(0).peak_allocated_bytes - views.standing_for(0).peak_allocated_bytes
    # Where gradients lie in buckets, the peak comes earlier and has activations.
    assert more == pytest.approx(sum(PARAMETERS), rel=0.2)
