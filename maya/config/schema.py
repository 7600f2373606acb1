"""The typed configuration of one job: every group of `config/` has a dataclass here.

Decimal units are powers of ten; keys carry their unit. YAML files in `config/<group>/` fill these
classes; a misspelt key or a wrong type is refused when the configuration is composed.
"""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

DEVICE_PROPERTIES = (
    "device_name",
    "compute_capability",
    "num_sms",
    "memory_bytes",
    "l2_bytes",
    "shared_bytes_per_block",
    "shared_bytes_per_block_optin",
    "shared_bytes_per_sm",
    "max_threads_per_sm",
    "max_blocks_per_sm",
    "sm_clock_hz",
    "memory_clock_hz",
    "memory_bus_bits",
    "async_engines",
    "context_bytes",
    "nccl_channels",
    "nccl_channels_per_peer",
    "nccl_nvls_channels",
)
"""Fields of GpuConfig that the emulated device shows to a program."""


@dataclass
class GpuConfig:
    """One GPU model. Sources of the values stand as comments in `config/gpu/<name>.yaml`."""

    name: str = MISSING  # the group option, e.g. h100_sxm
    device_name: str = MISSING  # as cudaDeviceProp.name
    compute_capability: str = MISSING  # "9.0"
    num_sms: int = MISSING
    memory_bytes: int = MISSING  # cudaDeviceProp.totalGlobalMem
    l2_bytes: int = MISSING
    shared_bytes_per_block: int = 49152
    shared_bytes_per_block_optin: int = MISSING
    shared_bytes_per_sm: int = MISSING
    max_threads_per_sm: int = 2048
    max_blocks_per_sm: int = 32
    sm_clock_hz: float = MISSING  # boost
    memory_clock_hz: float = MISSING
    memory_bus_bits: int = MISSING
    async_engines: int = 3
    hbm_bytes_per_s: float = MISSING  # data sheet peak
    l2_bytes_per_s: float | None = None
    peak_flops: dict[str, float] = field(default_factory=dict)  # dense; keys fp64 fp32 tf32 fp16 bf16 fp8
    nvlink_bytes_per_s: float = 0.0  # per GPU and direction, 0 without NVLink
    pcie_bytes_per_s: float = MISSING  # per direction, x16
    context_bytes: int = MISSING  # device memory of a CUDA context with lazy loading
    # NCCL between GPUs of one node: channels of its rings, of messages between two ranks, of NVLink SHARP
    nccl_channels: int = MISSING
    nccl_channels_per_peer: int = MISSING
    nccl_nvls_channels: int = 0
    kernel_gap_us: float = 1.4  # between queued kernels of one stream
    launch_latency_us: float = 8.0  # launch call start to kernel start on an idle GPU
    min_kernel_us: float = 1.3


@dataclass
class ClusterConfig:
    """How GPUs are connected, and how fast the hosts are against the machine that captures."""

    name: str = MISSING
    nodes: int = 1
    gpus_per_node: int = 8
    intra_node: str = "nvlink"  # nvlink (switched) or pcie
    nics_per_node: int = 8
    nic_bytes_per_s: float = 50e9  # per direction and NIC
    nic_efficiency_ratio: float = 0.92  # achieved share of the line rate
    intra_node_latency_us: float = 1.0  # per ring step, see maya/estimators/network.py
    inter_node_latency_us: float = 5.0
    host_time_ratio: float = 1.0  # host time of the target over that of the capturing machine


@dataclass
class ModelConfig:
    """Dimensions of a model. `family` names the architecture: gpt, llama, bert, resnet or vit."""

    name: str = MISSING
    family: str = MISSING
    num_layers: int = MISSING  # resnet: the depth (50, 152)
    hidden_size: int = 0
    ffn_hidden_size: int = 0
    num_attention_heads: int = 0
    num_query_groups: int = 0  # key/value heads; 0 = as many as attention heads
    vocab_size: int = 0
    seq_length: int = 0
    num_experts: int = 0  # of each layer's mixture of experts; 0: one feed-forward network
    moe_router_topk: int = 2  # experts that a token goes to
    image_size: int = 0
    num_classes: int = 0


@dataclass
class FrameworkConfig:
    """A training recipe, with keys named as Megatron-LM names them."""

    name: str = MISSING  # the group option, e.g. fsdp2; maya/config/frameworks.py has all
    script: str = MISSING  # below workloads/
    tp: int = 1
    pp: int = 1
    vpp: int = 1  # virtual pipeline stages per rank
    cp: int = 1  # ranks that share each sequence
    ep: int = 1  # ranks that share the experts
    micro_batch_size: int = MISSING
    global_batch_size: int = MISSING
    recompute: str = "none"  # none, selective or full
    sequence_parallel: bool = False
    distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False  # megatron: gradient reduction behind the backward pass
    overlap_param_gather: bool = False  # megatron: parameter all-gather behind the forward pass
    precision: str = "bf16"  # bf16, fp16, fp32
    channels_last: bool = False
    options: dict[str, str] = field(default_factory=dict)  # that only this script has: name -> value


@dataclass
class ValueRule:
    """What operators of PyTorch give inside of certain functions; `docs/values.md` explains it."""

    name: str = ""
    sites: list[str] = MISSING  # path/of/file.py:Class.function, shell patterns
    operators: list[str] = field(default_factory=list)  # as PyTorch registers them: topk, nonzero, item
    mode: str = "any"  # of the capture for which it is: linked, solo or any
    answer: str = "zeros"  # zeros, ones, true, constant, fraction, balanced, uniform, normal
    value: float = 0.0  # of constant; the share of ones of fraction
    low: float = 0.0  # of uniform
    high: float = 1.0
    mean: float = 0.0  # of normal
    std: float = 1.0
    seed: int = 0
    min_bytes: int = 0  # of the tensor that is answered
    max_bytes: int | None = None


@dataclass
class ValuesConfig:
    """Rules for device values: the first that names an operator counts; ``rules`` come before ``builtin``."""

    rules: list[ValueRule] = field(default_factory=list)
    builtin: list[ValueRule] = field(default_factory=list)


@dataclass
class CaptureConfig:
    """How the program is run on the emulated GPUs."""

    mode: str = "auto"  # linked, solo or auto: linked up to max_linked_ranks, else solo by rank class
    max_linked_ranks: int = 2
    warmup_iterations: int = 2
    iterations: int = 3  # measured ones, after the warm-up and one that records operator shapes
    timeout_s: float = 1800.0
    strict: bool = False
    values: ValuesConfig = field(default_factory=ValuesConfig)  # config/job.yaml: the group `values`


@dataclass
class JobConfig:
    """One training run at one configuration."""

    gpu: GpuConfig = MISSING
    cluster: ClusterConfig = MISSING
    model: ModelConfig = MISSING
    framework: FrameworkConfig = MISSING
    values: ValuesConfig = field(default_factory=ValuesConfig)
    capture: CaptureConfig = field(default_factory=CaptureConfig)


@dataclass
class SweepConfig:
    """A study: several grids of jobs, each a list of Hydra overrides with sweep syntax."""

    name: str = MISSING
    description: str = ""
    grids: list[list[str]] = field(default_factory=list)  # each grid: overrides, `a=1,2` spans an axis
    constraints: list[str] = field(default_factory=list)  # expressions over gpu, cluster, model, framework


Builtin = dict[str, Any] | list[Any] | str | int | float | bool | None
