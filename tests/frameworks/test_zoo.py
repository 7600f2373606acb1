"""One training step of models of the zoo: convolutions, matrix products, attention, worked out by hand."""

from pathlib import Path

import pandas as pd
import pytest
from native.emulated import run_checked

from maya.trace import Trace, read_trace

pytestmark = pytest.mark.emulator

BATCH, SEQ = 2, 32
BF16 = 14  # cudaDataType
FORWARD, DATA_GRADIENT, FILTER_GRADIENT = 0, 1, 2
VOCAB, FFN, LAYERS = 2048, 512, 4  # of tiny configurations: zoo/models.py

FAST = ["timm/resnet18", "timm/vit_tiny_patch16_224", "transformers/masked_lm/bert", "diffusion/dit"]
SLOW = [
    *("timm/vgg11", "timm/densenet121", "timm/mobilenetv2_100", "timm/efficientnet_b0"),
    *("timm/convnext_atto", "timm/swin_tiny_patch4_window7_224", "diffusion/unet"),
    *("transformers/causal_lm/gpt2", "transformers/causal_lm/llama", "transformers/causal_lm/mixtral"),
    *("transformers/seq2seq_lm/t5", "transformers/speech_seq2seq/whisper"),
]

# One process imports the packages and forks a child for each model.
PROGRAM = """
    import os, pathlib, sys
    sys.path.insert(0, {zoo!r})
    import torch, timm, transformers
    from train_step import train
    for i, name in enumerate({names!r}):
        child = os.fork()
        if child == 0:
            os.environ["MAYA_TRACE_DIR"] += f"/{{i}}"
            pathlib.Path(os.environ["MAYA_TRACE_DIR"]).mkdir()
            train(name, torch.device("cuda"))
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0, name
"""


def train(names: list[str], folder: Path) -> dict[str, Trace]:
    zoo = Path(__file__).parents[2] / "zoo"
    run_checked(
        PROGRAM.format(zoo=str(zoo), names=names), folder, preload=True, MAYA_STRICT="1", HF_HUB_OFFLINE="1"
    )
    return {name: read_trace(folder / str(i) / "rank00000.trace") for i, name in enumerate(names)}


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    return train(FAST, tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    return train(SLOW, tmp_path_factory.mktemp("zoo"))


def convolutions(trace: Trace) -> tuple[int, int, int]:
    """Numbers of convolutions forward, of gradients of their filters and of their inputs.

    PyTorch has kernels of its own for some depthwise ones.
    """
    directions = trace.table("conv")["direction"]
    kernels = trace.table("kernel")["name"]
    forward, filters, data = (
        int((directions == direction).sum() + kernels.str.contains(f"conv_depthwise2d_{name}_kernel").sum())
        for direction, name in (
            (FORWARD, "forward"),
            (FILTER_GRADIENT, "grad_weight"),
            (DATA_GRADIENT, "backward"),
        )
    )
    return forward, filters, data


def products(trace: Trace) -> pd.DataFrame:
    """Matrix products under autocast."""
    gemms = trace.table("gemm")
    return gemms[gemms["type_a"] == BF16]


def flops(gemms: pd.DataFrame) -> int:
    return int((2 * gemms["m"] * gemms["n"] * gemms["k"] * gemms["batch"]).sum())


def attentions(trace: Trace) -> tuple[int, int]:
    """Numbers of fused attentions forward and backward: cuDNN's, and PyTorch's own where there is dropout."""
    directions = trace.table("attention")["direction"]
    kernels = trace.table("kernel")["name"]
    forward, backward = (
        int((directions == direction).sum() + kernels.str.contains(name).sum())
        for direction, name in ((FORWARD, "flash_fwd_kernel"), (DATA_GRADIENT, "flash_bwd_dq_dk_dv_loop"))
    )
    return forward, backward


def test_resnet_has_a_gradient_for_all_but_the_images(fast: dict[str, Trace]) -> None:
    trace = fast["timm/resnet18"]
    # Stem, four stages of two blocks of two, a shortcut at the head of the last three.
    layers = 1 + 4 * 2 * 2 + 3
    assert convolutions(trace) == (layers, layers, layers - 1)
    assert len(products(trace)) == 3  # the classifier
    conv = trace.table("conv")
    forward = conv[conv["direction"] == FORWARD]
    positions = forward["batch"] * forward["out_h"] * forward["out_w"] * forward["channels_out"]
    window = forward["channels_in"] / forward["groups"] * forward["kernel_h"] * forward["kernel_w"]
    stem = 112**2 * 64 * 3 * 49
    stages = [(56, 64, 64), (28, 128, 64), (14, 256, 128), (7, 512, 256)]  # side, channels, channels before
    blocks = sum(
        side**2 * width * (9 * before + 3 * 9 * width + (before if before != width else 0))
        for side, width, before in stages
    )
    assert (positions * window).sum() == BATCH * (stem + blocks)


def test_vision_transformer_attends_once_a_layer(fast: dict[str, Trace]) -> None:
    trace = fast["timm/vit_tiny_patch16_224"]
    layers, width, patches = 12, 192, 14**2
    assert convolutions(trace) == (1, 1, 0)  # the patches
    assert attentions(trace) == (layers, layers)
    assert len(products(trace)) == 3 * (4 * layers + 1)
    blocks = layers * BATCH * (patches + 1) * 12 * width**2
    head = BATCH * width * 10  # of the class token
    assert flops(products(trace)) == 3 * 2 * (blocks + head)


def test_bert_multiplies_what_its_dimensions_say(fast: dict[str, Trace]) -> None:
    trace = fast["transformers/masked_lm/bert"]
    hidden = 768
    # Queries, keys, values and output; the MLP; then transform and decoder of the head.
    weights = LAYERS * (4 * hidden**2 + 2 * hidden * FFN) + hidden**2 + hidden * VOCAB
    assert flops(products(trace)) == 3 * 2 * BATCH * SEQ * weights
    assert attentions(trace) == (LAYERS, LAYERS)


def test_dit_conditions_each_block(fast: dict[str, Trace]) -> None:
    trace = fast["diffusion/dit"]
    depth = 12
    assert convolutions(trace) == (1, 1, 0)
    # In a block: QKV, projection, MLP of two, modulation. Outside: timestep MLP, modulation, head.
    layers = depth * 5 + 2 + 1 + 1
    assert len(products(trace)) == 3 * layers - 1  # the timesteps need no gradient
    assert attentions(trace) == (depth, depth)


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, layers",
    [
        ("timm/vgg11", 8 + 2),  # timm has the first two dense layers as convolutions
        ("timm/densenet121", 121 - 1),
        # Stem, head, a first block without expansion and 16 with it.
        ("timm/mobilenetv2_100", 1 + 1 + 2 + 16 * 3),
        # The same with 15, and a squeeze-and-excitation of two in each.
        ("timm/efficientnet_b0", 1 + 1 + 4 + 15 * 5),
        # Stem, three between stages, 12 blocks whose MLP is of convolutions.
        ("timm/convnext_atto", 1 + 3 + 12 * 3),
        ("timm/swin_tiny_patch4_window7_224", 1),
        ("transformers/speech_seq2seq/whisper", 2),
    ],
)
def test_convolutions(slow: dict[str, Trace], model: str, layers: int) -> None:
    assert convolutions(slow[model]) == (layers, layers, layers - 1)


@pytest.mark.slow
def test_transposed_convolutions_of_the_unet_run_as_gradients(slow: dict[str, Trace]) -> None:
    # Stem and head; three blocks down with two shortcuts (64 to 64 has none), each before one that halves;
    # the middle; three blocks up with shortcuts.
    layers, transposed = 2 + (3 * 2 + 2) + 3 + 2 + 3 * 3, 3
    expected = (layers + transposed, layers + transposed, layers - 1 + transposed)
    assert convolutions(slow["diffusion/unet"]) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "model, weights",
    [
        ("causal_lm/gpt2", LAYERS * 12 * 768**2 + 768 * VOCAB),
        ("causal_lm/llama", LAYERS * (4 * 4096**2 + 3 * 4096 * FFN) + 4096 * VOCAB),
        # 8 of 32 heads for keys and values, a router of 8 experts; the experts are grouped products.
        ("causal_lm/mixtral", LAYERS * (2.5 * 4096**2 + 4096 * 8) + 4096 * VOCAB),
        # Encoder, and decoder with two attentions.
        ("seq2seq_lm/t5", LAYERS * (12 * 512**2 + 2 * 2 * 512 * FFN) + 512 * VOCAB),
    ],
)
def test_matrix_products_of_language_models(slow: dict[str, Trace], model: str, weights: float) -> None:
    gemms = products(slow[f"transformers/{model}"])
    dense = gemms[gemms["batch"] == 1]  # others are of attention
    assert flops(dense) == 3 * 2 * BATCH * SEQ * weights
