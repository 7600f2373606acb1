"""Composition of jobs: types, groups, and what a wrong override is answered."""

import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from maya.config import available_options, cluster_config, compose_job, gpu_config, job_command, world_size
from maya.config.frameworks import FRAMEWORKS
from maya.config.schema import ClusterConfig, GpuConfig, JobConfig
from maya.errors import ConfigError


def test_default_job_is_typed():
    job = compose_job([])
    assert isinstance(job, JobConfig) and isinstance(job.gpu, GpuConfig)
    assert isinstance(job.cluster, ClusterConfig)
    assert job.framework.global_batch_size == job.framework.micro_batch_size * 8


@pytest.mark.parametrize("group", ["gpu", "cluster"])
def test_every_option_composes_and_carries_its_own_name(group):
    options = available_options(group)
    assert options
    for name in options:
        assert getattr(compose_job([f"{group}={name}"]), group).name == name


@pytest.mark.parametrize("name", available_options("framework"))
def test_every_framework_trains_its_families(name):
    models = {
        "gpt": "gpt3_1_3b",
        "llama": "llama3_8b",
        "bert": "bert_large",
        "resnet": "resnet50",
        "vit": "vit_base",
    }
    for family in FRAMEWORKS[name].families:
        job = compose_job([f"framework={name}", f"model={models[family]}"])
        assert (job.framework.name, job.model.family) == (name, family)
        command, _, _ = job_command(job)
        assert Path(command[3]).is_file()


@pytest.mark.parametrize(
    ("model", "framework", "num_parameters"),
    [  # from the papers and model cards that config/model names, in parameters
        ("gpt3_1_3b", "fsdp2", 1.3e9),
        ("gpt3_2_7b", "fsdp2", 2.7e9),
        ("gpt3_18b", "megatron", 18.4e9),
        ("gpt3_146b", "megatron", 145.6e9),
        ("gpt3_175b", "megatron", 174.6e9),
    ],
)
def test_gpt_dimensions_give_the_published_size(model, framework, num_parameters):
    job = compose_job([f"model={model}", f"framework={framework}"])
    m = job.model
    # Narayanan et al. 2021, equation 2: P = 12 l h^2 (1 + 13 / (12 h) + (V + s) / (12 l h))
    computed = (
        12
        * m.num_layers
        * m.hidden_size**2
        * (
            1
            + 13 / (12 * m.hidden_size)
            + (m.vocab_size + m.seq_length) / (12 * m.num_layers * m.hidden_size)
        )
    )
    assert computed == pytest.approx(num_parameters, rel=0.02)


@pytest.mark.parametrize("model", ["llama2_7b", "llama3_8b"])
def test_llama_dimensions_give_the_published_size(model):
    m = compose_job([f"model={model}"]).model
    kv_size = m.hidden_size // m.num_attention_heads * m.num_query_groups
    layer = 2 * m.hidden_size**2 + 2 * m.hidden_size * kv_size + 3 * m.hidden_size * m.ffn_hidden_size
    computed = m.num_layers * layer + 2 * m.vocab_size * m.hidden_size
    assert computed == pytest.approx({"llama2_7b": 6.74e9, "llama3_8b": 8.03e9}[model], rel=0.005)


def test_mixtral_dimensions_give_the_published_size():
    m = compose_job(["model=mixtral_8x7b", "framework=megatron"]).model
    kv_size = m.hidden_size // m.num_attention_heads * m.num_query_groups
    attention = 2 * m.hidden_size**2 + 2 * m.hidden_size * kv_size
    expert = 3 * m.hidden_size * m.ffn_hidden_size

    def parameters(num_experts):
        return m.num_layers * (attention + num_experts * expert) + 2 * m.vocab_size * m.hidden_size

    assert parameters(m.num_experts) == pytest.approx(46.7e9, rel=0.005)  # Jiang et al. 2024: 47B
    assert parameters(m.moe_router_topk) == pytest.approx(12.9e9, rel=0.005)  # active: 13B


def test_a_cluster_implies_its_gpu_unless_one_is_given():
    assert compose_job(["cluster=dgx_a100"]).gpu.name == "a100_sxm_80gb"
    assert compose_job(["cluster=dgx_a100", "gpu=a40"]).gpu.name == "a40"
    assert compose_job(["gpu=a40", "cluster=dgx_a100"]).gpu.name == "a40"
    gpu, cluster = cluster_config("dgx_h100", ["cluster.nodes=4"])
    assert (gpu.name, cluster.nodes) == ("h100_sxm", 4)
    assert gpu_config("v100_sxm_32gb").compute_capability == "7.0"


def test_readme_example_of_predict():
    job = compose_job(
        shlex.split(
            "model=gpt3_18b framework=megatron cluster=dgx_h100 cluster.nodes=8 framework.tp=4 "
            "framework.pp=2 framework.micro_batch_size=2 framework.global_batch_size=512 "
            "framework.recompute=full"
        )
    )
    command, ranks, gpus_per_node = job_command(job)
    assert (ranks, gpus_per_node) == (64, 8)
    assert command[:3] == ("torchrun", "--nnodes=8", "--nproc-per-node=8")
    assert Path(command[3]).is_file()
    options = dict(pairwise(command[4:]))
    assert options["--tensor-model-parallel-size"] == "4"
    assert options["--recompute"] == "full"


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        (
            "framework=fsdp1 framework.options.sharding_strategy=SHARD_GRAD_OP",
            ["--sharding-strategy=SHARD_GRAD_OP"],
        ),
        (
            "framework=fsdp2 framework.options.reshard_after_forward=false framework.options.compile=true",
            ["--num-replicas=1", "--no-reshard-after-forward", "--no-cpu-offload", "--compile"],
        ),
        ("framework=tensor_parallel model=llama3_8b framework.tp=4", ["--tensor-parallel-size", "4"]),
        (
            "framework=pipeline model=llama3_8b framework.pp=4 framework.options.schedule=GPipe",
            ["--pipeline-parallel-size", "4", "--schedule=GPipe", "--global-batch-size", "64"],
        ),
        (
            "framework=context_parallel model=llama3_8b framework.cp=8 framework.global_batch_size=2",
            ["--context-parallel-size", "8", "--global-batch-size", "2"],
        ),
        (
            "framework=megatron model=mixtral_8x7b framework.ep=4 framework.cp=2",
            ["--num-experts", "--moe-router-topk", "--expert-model-parallel-size", "4", "2"],
        ),
        (
            "framework=deepspeed framework.options.zero_stage=3 framework.recompute=full",
            ["--zero-stage=3", "--recompute", "full"],
        ),
        ("framework=deepspeed +framework.options.offload_optimizer=true", ["--offload-optimizer"]),
        (
            "framework=torchtitan model=llama3_8b framework.tp=2 framework.pp=4",
            ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "4", "--cuda-graphs"],
        ),
        ("framework=lightning framework.options.strategy=fsdp", ["--strategy=fsdp"]),
        (
            "framework=hf_trainer model=mixtral_8x7b framework.global_batch_size=32",
            ["mixtral", "--num_experts", "8", "--gradient_accumulation_steps", "4", "--bf16"],
        ),
        ("framework=timm model=resnet50 framework.precision=fp16", ["resnet50", "float16", "--batch-size"]),
        ("framework=timm model=vit_base model.num_layers=6", ["vit_base_patch16_224", "--depth", "6"]),
    ],
)
def test_options_of_one_script_reach_it(overrides, options):
    command, _, _ = job_command(compose_job(overrides.split()))
    assert Path(command[3]).is_file()
    assert set(options) <= set(command[4:])


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["gpu=h100_sxn"], ["gpu=h100_sxn", "Did you mean h100_sxm?", "Available: a100"]),
        (["cluster.nods=3"], ["cluster.nods", "Did you mean cluster.nodes?"]),
        (["foo=1"], ["no key foo", "gpu, cluster, model, framework"]),
        (["cluster.nodes=x"], ["cluster.nodes=x", "Integer"]),
        (["cluster.nodes=0"], ["cluster.nodes=0", "at least 1"]),
        (["+cluster.x=1"], ["+cluster.x=1", "cannot be added"]),
        (["gpu=a40,l40s"], ["several jobs", "config/sweep"]),
        (["no override"], ["'no override'", "key=value"]),
        (["model=resnet50"], ["framework=fsdp2", "resnet", "framework=ddp"]),
        (["framework.precision=fp16"], ["framework.precision=fp16", "bf16, fp32"]),
        (["framework.recompute=some"], ["framework.recompute=some", "selective"]),
        (["framework.tp=2"], ["framework.tp=2", "framework=tensor_parallel or framework=megatron"]),
        (["framework.sequence_parallel=true"], ["sequence_parallel=true", "framework=megatron"]),
        (["framework=megatron", "framework.ep=2"], ["framework.ep=2", "model.num_experts"]),
        (["model=mixtral_8x7b"], ["num_experts=8", "framework=megatron or framework=hf_trainer"]),
        (["model=mixtral_8x7b", "framework=megatron", "framework.ep=3"], ["framework.ep=3", "num_experts=8"]),
        (
            ["model=resnet50", "framework=timm", "framework.global_batch_size=2048"],
            ["global_batch_size=2048", "one micro-batch"],
        ),
        (["framework=megatron", "framework.tp=3"], ["framework.tp=3", "world size 8"]),
        (["framework=megatron", "framework.tp=8", "model.num_attention_heads=4"], ["num_attention_heads=4"]),
        (
            ["framework=megatron", "framework.pp=8", "model.num_layers=20"],
            ["num_layers=20", "framework.pp=8"],
        ),
        (["framework=megatron", "framework.vpp=2"], ["framework.vpp=2", "framework.pp"]),
        (
            [
                "framework=megatron",
                "framework.pp=4",
                "framework.vpp=2",
                "framework.micro_batch_size=1",
                "framework.global_batch_size=6",
            ],
            ["framework.vpp=2", "there are 3"],
        ),
        (["framework=megatron", "framework.sequence_parallel=true"], ["sequence_parallel", "framework.tp"]),
        (["framework.micro_batch_size=3", "framework.global_batch_size=64"], ["64", "3 x 8", "72"]),
        (["framework=megatron", "framework.distributed_optimizer=false"], ["overlap_param_gather"]),
        (["capture.mode=fast"], ["capture.mode=fast", "linked, solo"]),
    ],
)
def test_wrong_overrides_give_one_text(overrides, parts):
    with pytest.raises(ConfigError) as caught:
        compose_job(overrides)
    for part in parts:
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hydra_of_an_application_is_left_alone():
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    from maya.paths import config_dir

    with initialize_config_dir(str(config_dir()), version_base="1.3", job_name="outer"):
        before = GlobalHydra.instance().hydra
        compose_job([])
        assert GlobalHydra.instance().hydra is before


def test_configuration_imports_nothing_heavy():
    heavy = ("torch", "pandas", "pyarrow", "xgboost", "matplotlib", "numpy", "snakemake")
    code = f"import sys, maya.config, maya.cli; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_world_size_counts_all_gpus():
    assert world_size(compose_job(["cluster.nodes=3", "cluster.gpus_per_node=4"])) == 12
