"""What the programs in `workloads/` can do: one entry for each option of the group `framework`."""

from dataclasses import dataclass, field

RECOMPUTE = ("none", "selective", "full")
PRECISIONS = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, kw_only=True)
class Framework:
    """A way of training, by the choices that its program leaves."""

    families: tuple[str, ...]
    precisions: tuple[str, ...] = PRECISIONS
    recompute: tuple[str, ...] = RECOMPUTE
    # Keys of FrameworkConfig, and the option of the program that each stands for.
    degrees: dict[str, str] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)
    has_experts: bool = False
    accumulates: bool = True  # several micro-batches in one step


FRAMEWORKS = {
    "ddp": Framework(families=("gpt", "llama", "bert", "resnet")),
    "fsdp1": Framework(families=("gpt", "llama"), precisions=("bf16", "fp32")),
    "fsdp2": Framework(families=("gpt", "llama"), precisions=("bf16", "fp32")),
    "tensor_parallel": Framework(
        families=("llama",),
        precisions=("bf16",),
        recompute=("none",),
        degrees={"tp": "--tensor-parallel-size"},
    ),
    "pipeline": Framework(
        families=("llama",),
        precisions=("bf16",),
        recompute=("none",),
        degrees={"pp": "--pipeline-parallel-size"},
    ),
    "context_parallel": Framework(
        families=("llama",), precisions=("bf16",), degrees={"cp": "--context-parallel-size"}
    ),
    "megatron": Framework(
        families=("gpt", "llama"),
        degrees={
            "tp": "--tensor-model-parallel-size",
            "pp": "--pipeline-model-parallel-size",
            "vpp": "--virtual-pipeline-model-parallel-size",
            "cp": "--context-parallel-size",
            "ep": "--expert-model-parallel-size",
        },
        switches={
            "sequence_parallel": "--sequence-parallel",
            "distributed_optimizer": "--use-distributed-optimizer",
            "overlap_grad_reduce": "--overlap-grad-reduce",
            "overlap_param_gather": "--overlap-param-gather",
        },
        has_experts=True,
    ),
    "deepspeed": Framework(
        families=("gpt", "llama"),
        precisions=("bf16", "fp16"),
        recompute=("none", "full"),
        degrees={"pp": "--pipeline-parallel-size"},
    ),
    "torchtitan": Framework(
        families=("llama",),
        precisions=("bf16",),
        degrees={
            "tp": "--tensor-parallel-size",
            "pp": "--pipeline-parallel-size",
            "cp": "--context-parallel-size",
        },
    ),
    "lightning": Framework(families=("gpt", "llama")),
    "hf_trainer": Framework(families=("llama",), recompute=("none", "full"), has_experts=True),
    "timm": Framework(
        families=("resnet", "vit"), precisions=("bf16", "fp16"), recompute=("none",), accumulates=False
    ),
}
VISION = ("resnet", "vit")  # families of models that look at images
FAMILIES = ("gpt", "llama", "bert", *VISION)
