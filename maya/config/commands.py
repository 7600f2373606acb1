"""The command that runs a job of the repository's own workloads, as one would type it on a cluster."""

import tempfile

from maya.config.frameworks import FRAMEWORKS, VISION
from maya.config.schema import JobConfig
from maya.config.validate import num_micro_batches, world_size
from maya.paths import workloads_dir

SPARE_ITERATIONS = 3  # the capture ends the program; it must not end by itself before

Arguments = dict[str, str | int | bool]  # a flag is there where its value is true


def job_command(job: JobConfig) -> tuple[tuple[str, ...], int, int]:
    """The job's command with its world size and GPUs per node.

    Returns: (command, world size, GPUs per node); the command starts with ``torchrun``.
    """
    cluster = job.cluster
    launcher = ("torchrun", f"--nnodes={cluster.nodes}", f"--nproc-per-node={cluster.gpus_per_node}")
    script = str(workloads_dir() / job.framework.script)
    match job.framework.name:
        case "hf_trainer":
            arguments = _hf_trainer_arguments(job)
        case "timm":
            arguments = _timm_arguments(job)
        case _:
            model = _vision_arguments(job) if job.model.family in VISION else _language_arguments(job)
            arguments = model | _recipe_arguments(job)
    command = (*launcher, script, *_flatten(arguments), *_script_options(job))
    return command, world_size(job), cluster.gpus_per_node


def _num_steps(job: JobConfig) -> int:
    return job.capture.warmup_iterations + 1 + job.capture.iterations + SPARE_ITERATIONS


def _language_arguments(job: JobConfig) -> Arguments:
    model = job.model
    arguments: Arguments = {
        "--family": model.family,
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden_size,
        "--ffn-hidden-size": model.ffn_hidden_size,
        "--num-attention-heads": model.num_attention_heads,
        "--num-query-groups": model.num_query_groups or model.num_attention_heads,
        "--vocab-size": model.vocab_size,
        "--seq-length": model.seq_length,
    }
    if model.num_experts:
        arguments |= {"--num-experts": model.num_experts, "--moe-router-topk": model.moe_router_topk}
    return arguments


def _vision_arguments(job: JobConfig) -> Arguments:
    model = job.model
    return {
        "--depth": model.num_layers,
        "--image-size": model.image_size,
        "--num-classes": model.num_classes,
        "--channels-last": job.framework.channels_last,
    }


def _recipe_arguments(job: JobConfig) -> Arguments:
    framework = job.framework
    arguments: Arguments = {
        "--micro-batch-size": framework.micro_batch_size,
        "--global-batch-size": framework.global_batch_size,
        "--precision": framework.precision,
        "--train-iters": _num_steps(job),
    }
    if job.model.family in ("gpt", "llama"):
        arguments["--recompute"] = framework.recompute
    program = FRAMEWORKS[framework.name]
    for key, option in (program.degrees | program.switches).items():
        arguments[option] = getattr(framework, key)
    return arguments


def _hf_trainer_arguments(job: JobConfig) -> Arguments:
    model, framework = job.model, job.framework
    arguments: Arguments = {
        "--model_type": "mixtral" if model.num_experts else model.family,
        "--num_layers": model.num_layers,
        "--hidden_size": model.hidden_size,
        "--ffn_hidden_size": model.ffn_hidden_size,
        "--num_attention_heads": model.num_attention_heads,
        "--num_key_value_heads": model.num_query_groups or model.num_attention_heads,
        "--vocab_size": model.vocab_size,
        "--seq_length": model.seq_length,
        "--per_device_train_batch_size": framework.micro_batch_size,
        "--gradient_accumulation_steps": num_micro_batches(job),
        "--max_steps": _num_steps(job),
        "--report_to": "none",
        "--save_strategy": "no",
        "--output_dir": tempfile.gettempdir(),  # must exist; nothing is written
        "--bf16": framework.precision == "bf16",
        "--fp16": framework.precision == "fp16",
        "--gradient_checkpointing": framework.recompute == "full",
    }
    if model.num_experts:
        arguments |= {"--num_experts": model.num_experts, "--num_experts_per_token": model.moe_router_topk}
    return arguments


def _timm_arguments(job: JobConfig) -> Arguments:
    model, framework = job.model, job.framework
    arguments: Arguments = {
        "--model": f"resnet{model.num_layers}" if model.family == "resnet" else "vit_base_patch16_224",
        "--image-size": model.image_size,
        "--num-classes": model.num_classes,
        "--batch-size": framework.micro_batch_size,
        "--amp-dtype": {"bf16": "bfloat16", "fp16": "float16"}[framework.precision],
        "--train-iters": _num_steps(job),
    }
    if model.family == "vit":
        arguments |= {
            "--depth": model.num_layers,
            "--embed-dim": model.hidden_size,
            "--num-heads": model.num_attention_heads,
        }
    return arguments


def _script_options(job: JobConfig) -> tuple[str, ...]:
    """`framework.options`: what only this script has."""
    options = []
    for name, value in job.framework.options.items():
        option = name.replace("_", "-")
        if value.lower() in ("true", "false"):
            options.append(f"--{option}" if value.lower() == "true" else f"--no-{option}")
        else:
            options.append(f"--{option}={value}")
    return tuple(options)


def _flatten(arguments: Arguments) -> tuple[str, ...]:
    flat: list[str] = []
    for option, value in arguments.items():
        if value is True:
            flat.append(option)
        elif value is not False:
            flat += [option, str(value)]
    return tuple(flat)
