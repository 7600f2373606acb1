"""The command that runs a job of the repository's own workloads, as one would type it on a cluster."""

from maya.config.schema import JobConfig
from maya.config.validate import world_size
from maya.paths import workloads_dir

SPARE_ITERATIONS = 3  # the capture ends the program; it must not end by itself before


def job_command(job: JobConfig) -> tuple[tuple[str, ...], int, int]:
    """The job's command with its world size and GPUs per node.

    Returns: (command, world size, GPUs per node); the command starts with ``torchrun``.
    """
    cluster = job.cluster
    launcher = ("torchrun", f"--nnodes={cluster.nodes}", f"--nproc-per-node={cluster.gpus_per_node}")
    script = str(workloads_dir() / job.framework.script)
    arguments = _vision_arguments(job) if job.model.family == "resnet" else _language_arguments(job)
    return (*launcher, script, *arguments, *_recipe_arguments(job)), world_size(job), cluster.gpus_per_node


def _language_arguments(job: JobConfig) -> tuple[str, ...]:
    model = job.model
    arguments: dict[str, str | int] = {
        "--family": model.family,
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden_size,
        "--ffn-hidden-size": model.ffn_hidden_size,
        "--num-attention-heads": model.num_attention_heads,
        "--num-query-groups": model.num_query_groups or model.num_attention_heads,
        "--vocab-size": model.vocab_size,
        "--seq-length": model.seq_length,
    }
    return _flatten(arguments)


def _vision_arguments(job: JobConfig) -> tuple[str, ...]:
    model = job.model
    arguments = _flatten(
        {"--depth": model.num_layers, "--image-size": model.image_size, "--num-classes": model.num_classes}
    )
    return (*arguments, "--channels-last") if job.framework.channels_last else arguments


def _recipe_arguments(job: JobConfig) -> tuple[str, ...]:
    framework = job.framework
    arguments: dict[str, str | int] = {
        "--micro-batch-size": framework.micro_batch_size,
        "--global-batch-size": framework.global_batch_size,
        "--precision": framework.precision,
        "--train-iters": job.capture.warmup_iterations + 1 + job.capture.iterations + SPARE_ITERATIONS,
    }
    if job.model.family in ("gpt", "llama"):
        arguments["--recompute"] = framework.recompute
    flags: list[str] = []
    if framework.name == "tensor_parallel":
        arguments["--tensor-parallel-size"] = framework.tp
    elif framework.name == "pipeline":
        arguments["--pipeline-parallel-size"] = framework.pp
    elif framework.name == "megatron":
        arguments |= {
            "--tensor-model-parallel-size": framework.tp,
            "--pipeline-model-parallel-size": framework.pp,
            "--virtual-pipeline-model-parallel-size": framework.vpp,
        }
        switches = {
            "--sequence-parallel": framework.sequence_parallel,
            "--use-distributed-optimizer": framework.distributed_optimizer,
            "--overlap-grad-reduce": framework.overlap_grad_reduce,
            "--overlap-param-gather": framework.overlap_param_gather,
        }
        flags += [switch for switch, is_on in switches.items() if is_on]
    for name, value in framework.options.items():
        option = name.replace("_", "-")
        if value.lower() in ("true", "false"):
            flags.append(f"--{option}" if value.lower() == "true" else f"--no-{option}")
        else:
            flags.append(f"--{option}={value}")
    return (*_flatten(arguments), *flags)


def _flatten(arguments: dict[str, str | int]) -> tuple[str, ...]:
    return tuple(str(part) for option, value in arguments.items() for part in (option, value))
