"""Transformers' Trainer, and Accelerate's launch files: DDP, FSDP and DeepSpeed by the model's dimensions."""

from pathlib import Path

import pytest
from captured_job import CapturedJob, capture_command, total_bytes

from maya.paths import workloads_dir

pytestmark = [pytest.mark.emulator, pytest.mark.slow]

# A Llama: attention, SwiGLU, norms; embedding and head.
LAYERS, HIDDEN, FFN, VOCAB, SEQ, BATCH, RANKS = 2, 256, 1024, 1024, 128, 2, 2
LAYER = 4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN
PARAMETERS = LAYERS * LAYER + 2 * VOCAB * HIDDEN + HIDDEN
FLOPS = 3 * 2 * BATCH * SEQ * (LAYERS * (LAYER - 2 * HIDDEN) + VOCAB * HIDDEN)

COMMON = "compute_environment: LOCAL_MACHINE\nmachine_rank: 0\nnum_machines: 1\nmixed_precision: bf16\n"
LAUNCH_FILES = {  # as `accelerate config` writes them
    "ddp": "distributed_type: MULTI_GPU\ngpu_ids: all\n",
    "fsdp": """distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_reshard_after_forward: true
""",
    "deepspeed": """distributed_type: DEEPSPEED
deepspeed_config:
  zero_stage: 3
  gradient_accumulation_steps: 1
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
""",
}


def trainer_command(folder: Path) -> tuple[str, ...]:
    options = (
        f"--num_layers {LAYERS} --hidden_size {HIDDEN} --ffn_hidden_size {FFN} --vocab_size {VOCAB} "
        f"--seq_length {SEQ} --per_device_train_batch_size {BATCH} --max_steps 20 --bf16 --report_to none "
        f"--save_strategy no --output_dir {folder / 'out'}"
    )
    return (str(workloads_dir() / "hf_trainer.py"), *options.split())


def launched(kind: str, folder: Path) -> CapturedJob:
    """The Trainer under `accelerate launch --config_file`, which starts the ranks itself."""
    launch_file = folder / f"{kind}.yaml"
    launch_file.write_text(f"{COMMON}num_processes: {RANKS}\n{LAUNCH_FILES[kind]}")
    accelerate_launch = ("python", "-m", "accelerate.commands.launch")  # what the command runs
    command = (*accelerate_launch, "--config_file", str(launch_file), *trainer_command(folder))
    job = capture_command(command, folder / "traces", world_size=RANKS)
    assert sorted(job.ranks) == list(range(RANKS))
    return job


def assert_gemms(job: CapturedJob) -> None:
    for rank in range(RANKS):
        gemm = job.details(rank, "gemm")
        assert int((2 * gemm["m"] * gemm["n"] * gemm["k"] * gemm["batch"]).sum()) == FLOPS


def test_trainer_reduces_fp32_gradients_in_buckets(tmp_path: Path) -> None:
    command = ("torchrun", f"--nproc-per-node={RANKS}", *trainer_command(tmp_path))
    job = capture_command(command, tmp_path / "traces", mode="linked")
    assert_gemms(job)
    collectives = job.collectives(0)
    gradients = collectives[(collectives["op"] == "all_reduce") & (collectives["dtype"] == "float32")]
    # The Trainer asks for find_unused_parameters, so buckets stay as they were made: one of 1 MiB, which the
    # embedding fills, then of 25 MiB, in the order of the parameters; the last is complete first.
    embedding = VOCAB * HIDDEN
    assert gradients["bytes"].tolist() == [4 * (PARAMETERS - embedding), 4 * embedding]
    used = collectives[(collectives["op"] == "all_reduce") & (collectives["dtype"] == "int32")]
    assert used["bytes"].tolist() == [4 * (9 * LAYERS + 3)]  # one flag for each tensor
    # How many tokens all ranks counted: num_items_in_batch.
    counts = collectives[(collectives["op"] == "all_gather") & (collectives["dtype"] == "int64")]
    assert counts["bytes"].tolist() == [8 * RANKS]


def test_accelerate_launches_ddp(tmp_path: Path) -> None:
    job = launched("ddp", tmp_path)
    assert_gemms(job)
    collectives = job.collectives(0)
    gradients = collectives[(collectives["op"] == "all_reduce") & (collectives["dtype"] == "float32")]
    assert gradients["bytes"].sum() == 4 * PARAMETERS


def test_accelerate_launches_fsdp(tmp_path: Path) -> None:
    job = launched("fsdp", tmp_path)
    assert_gemms(job)
    collectives = job.collectives(0)
    # bf16; layers and embedding for both passes, while Accelerate makes last norm and head a unit that stays
    # gathered in between.
    gathered = collectives[(collectives["op"] == "all_gather") & (collectives["dtype"] == "bfloat16")]
    assert gathered["bytes"].sum() == 2 * (2 * PARAMETERS - VOCAB * HIDDEN - HIDDEN)
    assert total_bytes(collectives, "reduce_scatter") == 2 * PARAMETERS


def test_accelerate_launches_zero3(tmp_path: Path) -> None:
    job = launched("deepspeed", tmp_path)
    assert_gemms(job)
    collectives = job.collectives(0)
    # All weights are live at once (stage3_max_live_parameters), so each is gathered once.
    gathered = collectives[(collectives["op"] == "all_gather") & (collectives["dtype"] == "bfloat16")]
    assert gathered["bytes"].sum() == 2 * PARAMETERS
    assert total_bytes(collectives, "reduce_scatter") == 2 * PARAMETERS
