"""The models of the zoo.

`timm/<model>` is each model of timm, `transformers/<task>/<model type>` each architecture of Transformers,
`diffusion/<model>` one of zoo/diffusion.py. Those of Transformers have their default configuration, cut to a
few layers and experts and a small vocabulary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from diffusion import DiT, UNet
from torch import Tensor, nn

BATCH = 2
SEQ_LENGTH = 32
AUDIO_SAMPLES = 16000  # a second
FEATURE_FRAMES = 96  # of models that take spectrograms of any length
NUM_CLASSES = 10

DIFFUSION_MODELS: dict[str, type[nn.Module]] = {"unet": UNet, "dit": DiT}

TASKS = {
    "causal_lm": ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AutoModelForCausalLM"),
    "masked_lm": ("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "AutoModelForMaskedLM"),
    "seq2seq_lm": ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "AutoModelForSeq2SeqLM"),
    "image_classification": (
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        "AutoModelForImageClassification",
    ),
    "ctc": ("MODEL_FOR_CTC_MAPPING_NAMES", "AutoModelForCTC"),
    "speech_seq2seq": ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "AutoModelForSpeechSeq2Seq"),
    "audio_classification": (
        "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
        "AutoModelForAudioClassification",
    ),
    "image": ("MODEL_FOR_IMAGE_MAPPING_NAMES", "AutoModel"),
    "masked_image": ("MODEL_FOR_MASKED_IMAGE_MODELING_MAPPING_NAMES", "AutoModelForMaskedImageModeling"),
    "object_detection": ("MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES", "AutoModelForObjectDetection"),
    "semantic_segmentation": (
        "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
        "AutoModelForSemanticSegmentation",
    ),
    "universal_segmentation": (
        "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES",
        "AutoModelForUniversalSegmentation",
    ),
    "depth_estimation": ("MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES", "AutoModelForDepthEstimation"),
    "video_classification": (
        "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
        "AutoModelForVideoClassification",
    ),
}

# Keys of a configuration and the most that a tiny one has of them. Widths that others must fit to stay.
MOST = {
    **dict.fromkeys(
        (
            "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
            "num_encoder_layers", "num_decoder_layers", "speech_encoder_layers", "t2u_encoder_layers",
            "t2u_decoder_layers", "text_encoder_layers",
        ),
        4,  # one of each type where types take turns
    ),
    "num_kv_shared_layers": 1,
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
        16,  # two for each of the groups that a token chooses from
    ),
    **dict.fromkeys(
        (
            "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_dim",
            "d_ff", "ffn_hidden_size", "expert_ffn_hidden_size", "encoder_ffn_dim", "decoder_ffn_dim",
        ),
        512,
    ),
    "vocab_size": 2048,
}  # fmt: skip
FIRST_PLAIN_TOKEN = 100  # tokens below have a meaning

# What the default configuration leaves open, or what goes with the number of layers.
OVERRIDES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots3_note": {"per_layer_config": {}},
    "esm": {"vocab_size": 2048, "pad_token_id": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "xmod": {"default_language": "en_XX"},
    "wav2vec2-bert": {"vocab_size": 32},
    "wav2vec2-conformer": {"vocab_size": 32},
    "dots1": {"n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]]},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 48, "head_dim": 128},
}

Step = Callable[[nn.Module], Tensor]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model and the loss of one forward pass."""

    model: nn.Module
    loss: Step


def names() -> Iterator[str]:
    """All names, timm first."""
    import timm
    from transformers.models.auto import modeling_auto

    for model in timm.list_models():
        yield f"timm/{model}"
    for task, (mapping, _) in TASKS.items():
        for model_type in getattr(modeling_auto, mapping):
            yield f"transformers/{task}/{model_type}"
    for model in DIFFUSION_MODELS:
        yield f"diffusion/{model}"


def build(name: str, device: torch.device) -> Entry:
    """Makes the model on ``device`` with random weights, and its inputs."""
    family, _, rest = name.partition("/")
    return _BUILD[family](rest, device)


def _build_timm(name: str, device: torch.device) -> Entry:
    import timm

    with device:
        model = timm.create_model(name, num_classes=NUM_CLASSES)
    images = torch.randn(BATCH, *model.default_cfg["input_size"]).to(device)
    labels = torch.randint(NUM_CLASSES, (BATCH,)).to(device)

    def loss(model: nn.Module) -> Tensor:
        output = model(images)
        if isinstance(output, (tuple, list)):  # distilled models in training: one result for each head
            output = output[0]
        if output.ndim != 2:  # models without a classifier
            return output.float().mean()
        return nn.functional.cross_entropy(output, labels)

    return Entry(model, loss)


def _build_transformers(name: str, device: torch.device) -> Entry:
    import transformers

    task, _, model_type = name.partition("/")
    config = tiny_config(model_type)
    config.use_cache = False  # of keys and values, which only generation needs
    config.architectures = config.architectures or []  # asked for where a task has several
    if task in ("seq2seq_lm", "speech_seq2seq"):
        for token in ("decoder_start_token_id", "pad_token_id"):
            if getattr(config, token, None) is None:
                setattr(config, token, 0)
    with device:
        model = getattr(transformers, TASKS[task][1]).from_config(config)
    model = model.to(device)  # what was made without regard to the default device
    inputs = {key: value.to(device) for key, value in _INPUTS[task](model).items()}

    def loss(model: nn.Module) -> Tensor:
        output = model(**inputs)
        found = output.get("loss")
        return _mean(output.to_tuple()) if found is None else found

    return Entry(model, loss)


def _mean(output: Any) -> Tensor:
    """A loss for models that are asked for no labels: all that they return counts."""
    if isinstance(output, Tensor):
        return output.float().mean()
    return sum((_mean(part) for part in output if part is not None), start=torch.tensor(0.0))


def _build_diffusion(name: str, device: torch.device) -> Entry:
    with device:
        model = DIFFUSION_MODELS[name]()
    timesteps = torch.randint(1000, (BATCH,)).to(device)
    if isinstance(model, DiT):
        conditions = (timesteps, torch.randint(NUM_CLASSES, (BATCH,)).to(device))
        noise = torch.randn(BATCH, 4, 32, 32).to(device)
    else:
        conditions = (timesteps,)
        noise = torch.randn(BATCH, 3, 32, 32).to(device)
    return Entry(model, lambda model: nn.functional.mse_loss(model(noise, *conditions), noise))


def tiny_config(model_type: str) -> Any:
    """The default configuration of a model type, with less of what does not change the kind of work."""
    from transformers import AutoConfig

    changes = _reductions(AutoConfig.for_model(model_type)) | OVERRIDES.get(model_type, {})
    return AutoConfig.for_model(model_type, **changes)


def _reductions(config: Any) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    special_tokens = [key for key, value in vars(config).items() if _is_large_token(key, value)]
    for key, value in vars(config).items():
        if key in special_tokens:
            changes[key] = 3 + special_tokens.index(key)
        elif key in MOST and isinstance(value, int):
            changes[key] = min(value, MOST[key])
        elif hasattr(value, "to_diff_dict"):
            nested = _reductions(value)
            if nested:
                changes[key] = {"model_type": value.model_type, **nested}
    return changes


def _is_large_token(key: str, value: Any) -> bool:
    is_token = key.endswith(("token_id", "token_index"))
    return is_token and isinstance(value, int) and value >= FIRST_PLAIN_TOKEN


def _text_config(model: Any) -> Any:
    return model.config.get_text_config()


def _tokens(model: Any, length: int = SEQ_LENGTH) -> Tensor:
    vocabulary = _text_config(model).vocab_size
    return torch.randint(min(FIRST_PLAIN_TOKEN, vocabulary // 2), vocabulary, (BATCH, length))


def _language_inputs(model: Any) -> dict[str, Tensor]:
    tokens = _tokens(model)
    return {"input_ids": tokens, "labels": tokens.clone()}


def _image_inputs(model: Any) -> dict[str, Tensor]:
    config = getattr(model.config, "vision_config", model.config)
    height, width = _pair(getattr(config, "image_size", None) or 224)
    return {"pixel_values": torch.randn(BATCH, getattr(config, "num_channels", 3), height, width)}


def _pair(size: Any) -> Any:
    return size if isinstance(size, (tuple, list)) else (size, size)


def _image_class_inputs(model: Any) -> dict[str, Tensor]:
    return {**_image_inputs(model), "labels": torch.randint(model.config.num_labels, (BATCH,))}


def _masked_image_inputs(model: Any) -> dict[str, Tensor]:
    images = _image_inputs(model)["pixel_values"]
    num_patches = (images.shape[-1] // model.config.patch_size) ** 2
    return {"pixel_values": images, "bool_masked_pos": torch.arange(num_patches).repeat(BATCH, 1) % 2 == 0}


def _video_class_inputs(model: Any) -> dict[str, Tensor]:
    config = model.config
    height, width = _pair(getattr(config, "image_size", None) or getattr(config, "crop_size", 224))
    frames = getattr(config, "num_frames", None) or getattr(config, "frames_per_clip", 16)
    name = model.main_input_name
    videos = torch.randn(BATCH, frames, getattr(config, "num_channels", 3), height, width)
    return {name: videos, "labels": torch.randint(config.num_labels, (BATCH,))}


def _audio(model: Any) -> dict[str, Tensor]:
    name = model.main_input_name
    config = getattr(model.config, "encoder_config", model.config)
    if name == "input_values" and not hasattr(config, "num_mel_bins"):
        return {name: torch.randn(BATCH, AUDIO_SAMPLES)}
    widths = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
    bins = next((getattr(config, key) for key in widths if getattr(config, key, None)), 80)
    if hasattr(config, "max_source_positions") and hasattr(config, "num_mel_bins"):  # Whisper: 30 seconds
        return {name: torch.randn(BATCH, bins, 2 * config.max_source_positions)}
    return {name: torch.randn(BATCH, getattr(config, "max_length", FEATURE_FRAMES), bins)}


def _ctc_inputs(model: Any) -> dict[str, Tensor]:
    return {**_audio(model), "labels": torch.randint(1, 20, (BATCH, 8))}


def _speech_inputs(model: Any) -> dict[str, Tensor]:
    return {**_audio(model), "labels": _tokens(model, 8)}


def _audio_class_inputs(model: Any) -> dict[str, Tensor]:
    return {**_audio(model), "labels": torch.randint(model.config.num_labels, (BATCH,))}


_INPUTS: dict[str, Callable[[Any], dict[str, Tensor]]] = {
    "causal_lm": _language_inputs,
    "masked_lm": _language_inputs,
    "seq2seq_lm": _language_inputs,
    "image_classification": _image_class_inputs,
    "ctc": _ctc_inputs,
    "speech_seq2seq": _speech_inputs,
    "audio_classification": _audio_class_inputs,
    "image": _image_inputs,
    "masked_image": _masked_image_inputs,
    "object_detection": _image_inputs,
    "semantic_segmentation": _image_inputs,
    "universal_segmentation": _image_inputs,
    "depth_estimation": _image_inputs,
    "video_classification": _video_class_inputs,
}

_BUILD: dict[str, Callable[[str, torch.device], Entry]] = {
    "timm": _build_timm,
    "transformers": _build_transformers,
    "diffusion": _build_diffusion,
}
