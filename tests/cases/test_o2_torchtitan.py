"""Case O2: torchtitan on meshes with dimensions of size one (pytorch/torchtitan issues 2236 and 2275).

Its own training program on a two-layer Llama with full recomputation, sequences of 512 and micro-batches
of 1. torchtitan gives dimensions of size one a backend that does nothing: no collective is on one rank.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from captured_job import CapturedJob, capture_command
from tokenizers import Tokenizer, models, pre_tokenizers

from maya.paths import workloads_dir

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

LAYERS, HIDDEN, FFN, VOCAB, SEQ = 2, 256, 768, 2048, 512  # FFN: 8/3 of the width, to 256
LAYER = 4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN
LAYER_TENSORS = 7  # wqkv, wo, w1, w2, w3, two norms
EMBEDDING, HEAD = VOCAB * HIDDEN, VOCAB * HIDDEN
ACTIVATION = 2 * SEQ * HIDDEN  # bytes in bf16
LOSS_CHUNKS = 8
PIPELINE = (
    "--parallelism.pipeline_parallel_degree 2 --training.local_batch_size 2 "  # two micro-batches
    "--training.disable_cuda_graphs"  # which torchtitan does not have with pipelines
)


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of words and a text for it."""
    folder = tmp_path_factory.mktemp("assets")
    begin, end = "<|begin_of_text|>", "<|end_of_text|>"
    words = {f"w{number}": number + 2 for number in range(VOCAB - 2)}
    tokenizer = Tokenizer(models.WordLevel({begin: 0, end: 1, **words}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (folder / "tokenizer").mkdir()
    tokenizer.save(str(folder / "tokenizer/tokenizer.json"))
    special = {"bos_token": begin, "eos_token": end}
    (folder / "tokenizer/tokenizer_config.json").write_text(json.dumps(special))
    (folder / "text").mkdir()
    line = json.dumps({"text": " ".join(f"w{number % (VOCAB - 2)}" for number in range(1000))})
    (folder / "text/data.jsonl").write_text("\n".join(500 * [line]))
    return folder


def train(
    assets: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, options: str
) -> CapturedJob:
    monkeypatch.setenv("PYTHONPATH", str(workloads_dir()))
    monkeypatch.chdir(folder)
    command = (
        f"torchrun --nproc-per-node={ranks} -m torchtitan.train --module torchtitan_llama "
        f"--config llama3_2layers --hf_assets_path {assets / 'tokenizer'} "
        f"--dataloader.dataset_path {assets / 'text'} {options}"
    )
    job = capture_command(tuple(command.split()), folder / "traces", mode="linked")
    assert all(rank.status == "ok" and rank.iterations >= 2 for rank in job.manifest.ranks)
    return job


def calls(job: CapturedJob, rank: int, *ops: str) -> Counter[tuple[str, int, tuple[int, ...]]]:
    """How often a rank called each kind of collective: by name, bytes and ranks."""
    rows = job.collectives(rank)
    rows = rows[rows["op"].isin(ops)]
    return Counter(zip(rows["op"], rows["bytes"], rows["ranks"], strict=True))


def reduced_bytes(job: CapturedJob, rank: int) -> dict[tuple[int, ...], int]:
    """Bytes of gradients that FSDP scatters, by group."""
    rows = job.collectives(rank)
    rows = rows[(rows["op"] == "reduce_scatter") & (rows["dtype"] == "float32")]
    return rows.groupby("ranks")["bytes"].sum().to_dict()


def test_fsdp_8(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = train(assets, tmp_path, monkeypatch, 8, "")
    world = tuple(range(8))
    tensors = LAYERS * LAYER_TENSORS + 3  # embedding, last norm, head
    for rank in world:
        assert {*job.collectives(rank)["ranks"]} == {world}
        assert reduced_bytes(job, rank) == {world: 4 * (LAYERS * LAYER + EMBEDDING + HIDDEN + HEAD)}
        assert calls(job, rank, "all_gather")["all_gather", 2 * LAYER, world] == LAYERS * 2  # both passes
        assert calls(job, rank, "all_reduce")["all_reduce", 4 * tensors, world] == 1  # norms, to clip


def test_fsdp_2_with_two_stages(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = train(assets, tmp_path, monkeypatch, 4, PIPELINE)
    for rank in range(4):
        stage = rank // 2
        shards, stages = (2 * stage, 2 * stage + 1), (rank % 2, rank % 2 + 2)
        assert {*job.collectives(rank)["ranks"]} == {shards, stages}
        # 1F1B of two micro-batches: one message alone, one each way together, one alone.
        assert calls(job, rank, "send", "recv") == {
            ("send", ACTIVATION, stages): 2,
            ("recv", ACTIVATION, stages): 1,
        }
        # A layer stays gathered over the step.
        assert calls(job, rank, "all_gather")["all_gather", 2 * LAYER, shards] == 1
    assert reduced_bytes(job, 0) == {(0, 1): 4 * (LAYER + EMBEDDING)}
    # The gradients of the last norm and the head are scattered for each micro-batch.
    assert reduced_bytes(job, 2) == {(2, 3): 4 * (LAYER + 2 * (HIDDEN + HEAD))}


def test_tensor_parallelism_alone(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = train(assets, tmp_path, monkeypatch, 2, "--parallelism.tensor_parallel_degree 2")
    for rank in (0, 1):
        assert {*job.collectives(rank)["ranks"]} == {(0, 1)}
        assert tensor_parallel_calls(job, rank, (0, 1)) == 2 * [2 * 3 * LAYERS + 2]  # with embedding and head
        reduced = calls(job, rank, "all_reduce")
        assert reduced["all_reduce", 2 * HIDDEN, (0, 1)] == 2 * LAYERS + 1  # norms' gradients
        # Loss on shards of the vocabulary: maximum, sum and the target's logit.
        assert reduced["all_reduce", 4 * SEQ // LOSS_CHUNKS, (0, 1)] == 3 * LOSS_CHUNKS


def tensor_parallel_calls(job: CapturedJob, rank: int, group: tuple[int, ...]) -> list[int]:
    """Gathers and scatters of activations on shards of the sequence.

    Of attention and feed-forward: one each forward, once more to recompute, and the other way backward.
    """
    found = calls(job, rank, "all_gather", "reduce_scatter")
    return [found[op, ACTIVATION, group] for op in ("all_gather", "reduce_scatter")]


def test_two_stages_alone(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = train(assets, tmp_path, monkeypatch, 2, PIPELINE)
    for rank in (0, 1):
        expected = {
            ("send", ACTIVATION, (0, 1)): 2,
            ("recv", ACTIVATION, (0, 1)): 1,
            ("all_reduce", 4, (0, 1)): 1,  # the gradients' norm
        }
        assert calls(job, rank, *{*job.collectives(rank)["op"]}) == expected


def test_all_three(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = train(assets, tmp_path, monkeypatch, 8, PIPELINE + " --parallelism.tensor_parallel_degree 2")
    for rank in range(8):
        stage, half = rank // 4, rank % 2
        halves, stages = (rank - half, rank - half + 1), (rank % 4, rank % 4 + 4)
        shards = (4 * stage + half, 4 * stage + half + 2)
        assert {*job.collectives(rank)["ranks"]} == {halves, shards, stages}
        # Stages hand on their part of the sequence.
        assert calls(job, rank, "send", "recv") == {
            ("send", ACTIVATION // 2, stages): 2,
            ("recv", ACTIVATION // 2, stages): 1,
        }
        # A layer, and the embedding or the head, for each of two micro-batches.
        assert tensor_parallel_calls(job, rank, halves) == 2 * [2 * (2 * 3 + 1)]
    # Half of each matrix, and norms that both halves hold.
    layer = (LAYER - 2 * HIDDEN) // 2 + 2 * HIDDEN
    assert reduced_bytes(job, 0) == {(0, 2): 4 * (layer + EMBEDDING // 2)}
    assert reduced_bytes(job, 7) == {(5, 7): 4 * (layer + 2 * (HIDDEN + HEAD // 2))}
