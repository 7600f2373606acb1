"""Whether the values of a job fit together. Types are checked before, when the job is composed."""

from maya.config.frameworks import FAMILIES, FRAMEWORKS, VISION
from maya.config.schema import CaptureConfig, JobConfig
from maya.errors import ConfigError

MODES = ("auto", "linked", "solo")
RULE_MODES = ("any", "linked", "solo")
ANSWERS = ("zeros", "ones", "true", "constant", "fraction", "balanced", "uniform", "normal")
# maya/capture/startup/maya_startup/value_rules.py
BALANCED_OPERATORS = ("topk", "sort", "argmax", "argmin", "bincount", "histc")


def world_size(job: JobConfig) -> int:
    """Number of ranks, one per GPU."""
    return job.cluster.nodes * job.cluster.gpus_per_node


def data_parallel_size(job: JobConfig) -> int:
    """Number of replicas that share the global batch."""
    return world_size(job) // (job.framework.tp * job.framework.pp * job.framework.cp)


def num_micro_batches(job: JobConfig) -> int:
    """Micro-batches a rank computes per iteration."""
    return job.framework.global_batch_size // (job.framework.micro_batch_size * data_parallel_size(job))


def validate_job(job: JobConfig) -> None:
    """Raises: ConfigError that names the keys and values that do not fit together."""
    _validate_choices(job)
    _validate_parallelism(job)
    validate_values(job.capture)
    if job.model.family not in VISION:
        _validate_transformer(job)
        _validate_experts(job)
    elif job.model.image_size < 32:
        raise ConfigError(
            f"model.image_size={job.model.image_size}: a {job.model.family} needs 32 pixels or more."
        )


def validate_values(capture: CaptureConfig) -> None:
    """Raises: ConfigError that names the rule for values that cannot be followed."""
    values = capture.values
    for number, rule in enumerate((*values.rules, *values.builtin)):
        key = f"rule {rule.name or number} of `values`: "
        if rule.mode not in RULE_MODES:
            raise ConfigError(f"{key}mode={rule.mode}: it can be {', '.join(RULE_MODES)}.")
        if rule.answer not in ANSWERS:
            raise ConfigError(f"{key}answer={rule.answer}: it can be {', '.join(ANSWERS)}.")
        others = [operator for operator in rule.operators if operator not in BALANCED_OPERATORS]
        if rule.answer == "balanced" and others:
            raise ConfigError(
                f"{key}answer=balanced answers {', '.join(BALANCED_OPERATORS)}, and not {', '.join(others)}."
            )
        if rule.answer == "fraction" and not 0 <= rule.value <= 1:
            raise ConfigError(f"{key}value={rule.value}: a fraction is from 0 to 1.")


def _validate_choices(job: JobConfig) -> None:
    framework = job.framework
    if framework.name not in FRAMEWORKS:
        raise ConfigError(f"framework.name={framework.name}: known are {', '.join(FRAMEWORKS)}.")
    program = FRAMEWORKS[framework.name]
    if job.model.family not in program.families:
        able = [name for name, other in FRAMEWORKS.items() if job.model.family in other.families]
        raise ConfigError(
            f"framework={framework.name} does not train {job.model.family} models (model={job.model.name}). "
            f"Choose {_any_framework(able)}."
            if able
            else f"model.family={job.model.family}: it can be {', '.join(FAMILIES)}."
        )
    choices = {
        "framework.precision": (framework.precision, program.precisions),
        "framework.recompute": (framework.recompute, program.recompute),
        "capture.mode": (job.capture.mode, MODES),
    }
    for key, (value, allowed) in choices.items():
        if value not in allowed:
            raise ConfigError(
                f"{key}={value} with framework={framework.name}: it can be {', '.join(allowed)}."
            )
    if framework.recompute != "none" and job.model.family in ("bert", "resnet"):
        raise ConfigError(
            f"framework.recompute={framework.recompute}: the {job.model.family} workload keeps all "
            "activations; set framework.recompute=none."
        )


def _any_framework(names: list[str]) -> str:
    return f"framework={' or framework='.join(names)}"


def _validate_parallelism(job: JobConfig) -> None:
    framework, ranks = job.framework, world_size(job)
    for key, value in {
        "cluster.nodes": job.cluster.nodes,
        "cluster.gpus_per_node": job.cluster.gpus_per_node,
        "framework.tp": framework.tp,
        "framework.pp": framework.pp,
        "framework.vpp": framework.vpp,
        "framework.cp": framework.cp,
        "framework.ep": framework.ep,
        "framework.micro_batch_size": framework.micro_batch_size,
        "framework.global_batch_size": framework.global_batch_size,
        "capture.iterations": job.capture.iterations,
        "capture.warmup_iterations": job.capture.warmup_iterations,
    }.items():
        if value < 1:
            raise ConfigError(f"{key}={value}: it must be at least 1.")
    own = FRAMEWORKS[framework.name]
    for key in ("tp", "pp", "vpp", "cp", "ep"):
        if getattr(framework, key) > 1 and key not in own.degrees:
            able = [name for name, other in FRAMEWORKS.items() if key in other.degrees]
            raise ConfigError(
                f"framework.{key}={getattr(framework, key)}: framework={framework.name} does not have it; "
                f"choose {_any_framework(able)}."
            )
    for key in FRAMEWORKS["megatron"].switches:
        if getattr(framework, key) and key not in own.switches:
            raise ConfigError(
                f"framework.{key}=true: framework={framework.name} does not have it; choose "
                "framework=megatron."
            )
    if ranks % (framework.tp * framework.pp * framework.cp):
        raise ConfigError(
            f"framework.tp={framework.tp} x framework.pp={framework.pp} x framework.cp={framework.cp} does "
            f"not divide the world size {ranks} (cluster.nodes={job.cluster.nodes} x "
            f"cluster.gpus_per_node={job.cluster.gpus_per_node})."
        )
    if framework.overlap_param_gather and not (
        framework.distributed_optimizer and framework.overlap_grad_reduce
    ):
        raise ConfigError(
            "framework.overlap_param_gather=true needs framework.distributed_optimizer=true and "
            "framework.overlap_grad_reduce=true."
        )
    replicas = data_parallel_size(job)
    step = framework.micro_batch_size * replicas
    if framework.global_batch_size % step:
        nearest = max(step, round(framework.global_batch_size / step) * step)
        raise ConfigError(
            f"framework.global_batch_size={framework.global_batch_size} is not a multiple of "
            f"framework.micro_batch_size={framework.micro_batch_size} x {replicas} data-parallel replicas. "
            f"The nearest that is: {nearest}."
        )
    if num_micro_batches(job) > 1 and not own.accumulates:
        raise ConfigError(
            f"framework.global_batch_size={framework.global_batch_size}: framework={framework.name} computes "
            f"one micro-batch in a step, {step} samples together."
        )
    if framework.vpp > 1 and framework.pp < 2:
        raise ConfigError(
            f"framework.vpp={framework.vpp} needs a pipeline: set framework.pp to 2 or more, or vpp to 1."
        )
    if framework.vpp > 1 and num_micro_batches(job) % framework.pp:
        raise ConfigError(
            f"framework.vpp={framework.vpp}: the interleaved schedule needs micro-batches in multiples of "
            f"framework.pp={framework.pp}; there are {num_micro_batches(job)} "
            f"(framework.global_batch_size={framework.global_batch_size})."
        )


def _validate_transformer(job: JobConfig) -> None:
    model, framework = job.model, job.framework
    for key in ("hidden_size", "ffn_hidden_size", "num_attention_heads", "vocab_size", "seq_length"):
        if getattr(model, key) < 1:
            raise ConfigError(f"model.{key}={getattr(model, key)}: a {model.family} model needs it.")
    if model.hidden_size % model.num_attention_heads:
        raise ConfigError(
            f"model.num_attention_heads={model.num_attention_heads} does not divide "
            f"model.hidden_size={model.hidden_size}."
        )
    query_groups = model.num_query_groups or model.num_attention_heads
    if model.num_attention_heads % query_groups:
        raise ConfigError(
            f"model.num_query_groups={query_groups} does not divide "
            f"model.num_attention_heads={model.num_attention_heads}."
        )
    for key, value in {
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": query_groups,
        "ffn_hidden_size": model.ffn_hidden_size,
        "vocab_size": model.vocab_size,
        **({"seq_length": model.seq_length} if framework.sequence_parallel else {}),
    }.items():
        if value % framework.tp:
            raise ConfigError(f"framework.tp={framework.tp} does not divide model.{key}={value}.")
    if framework.sequence_parallel and framework.tp == 1:
        raise ConfigError("framework.sequence_parallel=true needs framework.tp of 2 or more.")
    stages = framework.pp * framework.vpp
    if model.num_layers % stages:
        raise ConfigError(
            f"model.num_layers={model.num_layers} is not a multiple of framework.pp={framework.pp} x "
            f"framework.vpp={framework.vpp} pipeline stages."
        )


def _validate_experts(job: JobConfig) -> None:
    model, framework = job.model, job.framework
    if not model.num_experts:
        if framework.ep > 1:
            raise ConfigError(f"framework.ep={framework.ep} needs a model with experts: model.num_experts.")
        return
    if not FRAMEWORKS[framework.name].has_experts:
        able = [name for name, other in FRAMEWORKS.items() if other.has_experts]
        raise ConfigError(
            f"model.num_experts={model.num_experts} (model={model.name}): framework={framework.name} has no "
            f"experts; choose {_any_framework(able)}."
        )
    if not 1 <= model.moe_router_topk <= model.num_experts:
        raise ConfigError(
            f"model.moe_router_topk={model.moe_router_topk}: it can be 1 to "
            f"model.num_experts={model.num_experts}."
        )
    if model.num_experts % framework.ep:
        raise ConfigError(
            f"framework.ep={framework.ep} does not divide model.num_experts={model.num_experts}."
        )
    if world_size(job) % (framework.tp * framework.pp * framework.ep):
        raise ConfigError(
            f"framework.tp={framework.tp} x framework.pp={framework.pp} x framework.ep={framework.ep} does "
            f"not divide the world size {world_size(job)}."
        )
    if framework.tp > 1 and not framework.sequence_parallel:
        raise ConfigError("model.num_experts with framework.tp > 1 needs framework.sequence_parallel=true.")
