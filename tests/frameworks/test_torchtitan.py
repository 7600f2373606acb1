"""torchtitan's own training program on a two-layer Llama, with FlexAttention and full recomputation."""

import json
from pathlib import Path

import pytest
from captured_job import CapturedJob, capture_command
from tokenizers import Tokenizer, models, pre_tokenizers

from maya.paths import workloads_dir

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

HIDDEN, FFN, VOCAB, SEQ = 256, 768, 2048, 512  # torchtitan's debug model: 8/3 of the width, to 256
LAYER = 4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN


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
    return capture_command(tuple(command.split()), folder / "traces", mode="linked")


def test_fsdp_gathers_layers_for_both_passes(
    assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = train(assets, tmp_path, monkeypatch, 2, "")
    collectives = job.collectives(0)
    scattered = collectives[collectives["op"] == "reduce_scatter"]
    assert scattered["bytes"].sum() == 4 * (2 * LAYER + 2 * VOCAB * HIDDEN + HIDDEN)  # fp32
    assert set(scattered["ranks"]) == {(0, 1)}
    layers = collectives[(collectives["op"] == "all_gather") & (collectives["bytes"] == 2 * LAYER)]
    assert len(layers) == 2 * 2
