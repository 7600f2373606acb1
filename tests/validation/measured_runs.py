"""Training runs that others have measured, the commands that come nearest to them, and their prediction.

Nothing is fitted to these times: they show gross errors, such as a kernel that is counted at twice its size.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from maya.config.compose import compose_target
from maya.paths import workloads_dir
from maya.predict import predict
from maya.training_run import run_of_command

PROGRAMS = Path(__file__).parent / "programs"
STEPS = "20"  # more than are captured


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRun:
    """``overrides`` choose GPU and cluster; ``command`` is what runs under the emulator."""

    name: str
    overrides: tuple[str, ...]
    command: tuple[str, ...]
    measured_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    run: MeasuredRun
    predicted_ms: float
    compute_ms: float
    device_ms: dict[str, float]  # by op kind, largest first

    @property
    def ratio(self) -> float:
        return self.predicted_ms / self.run.measured_ms


def compare(run: MeasuredRun) -> Comparison:
    gpu, cluster, capture = compose_target(list(run.overrides))
    summary = predict(run_of_command(run.command, gpu, cluster, capture)).summary
    if summary.iteration_time_s is None or summary.compute_s is None:
        raise AssertionError(f"{run.name}: no time, out of memory by {summary.oom_bytes} bytes")
    return Comparison(
        run=run,
        predicted_ms=summary.iteration_time_s * 1e3,
        compute_ms=summary.compute_s * 1e3,
        device_ms={kind: seconds * 1e3 for kind, seconds in summary.device_time_s.items()},
    )


def measured_runs(data: Path) -> list[MeasuredRun]:
    return [*_eager(data), *_megatron(data), *_sharded(data)]


# The PCIe A100 has no configuration: its memory is 5 % slower than the SXM card's, its power limit lower.
EAGER_GPUS = {"H100-SXM5-80GB": "h100_sxm", "A100-PCIE-80GB": "a100_sxm_80gb"}


def _eager(data: Path) -> Iterator[MeasuredRun]:
    """fp32 (no TF32), eager attention, forward and backward. Newer transformers scale and mask otherwise."""
    folder = data / "e2e_neusight"
    for row in _rows(folder / "e2e_labels.csv"):
        is_plain_training = row["mode"] == "train" and not row["option"]
        if (
            row["gpu"] not in EAGER_GPUS
            or not is_plain_training
            or row["model"] not in ("gpt2_large", "opt_13")
        ):
            continue
        yield MeasuredRun(
            name=f"{row['model']} b{row['batch']} {row['gpu']}",
            overrides=(f"gpu={EAGER_GPUS[row['gpu']]}",),
            command=(
                *("python", str(PROGRAMS / "eager_lm.py"), str(folder / f"config_{row['model']}.json")),
                *("--batch-size", row["batch"], "--seq-length", row["seqlen"], "--steps", STEPS),
            ),
            measured_ms=float(row["measured_e2e_ms"]),
        )


# tp, dp, pp, hidden, layers, micro-batch, global batch
MEGATRON_ROWS = (
    (1, 2, 1, 2048, 24, 8, 32),
    (1, 2, 1, 2048, 24, 1, 16),
    (1, 1, 2, 2048, 24, 4, 16),
    (2, 1, 1, 2048, 24, 8, 16),
    (1, 8, 1, 1024, 24, 4, 64),
    (4, 1, 2, 1024, 24, 8, 16),
    (8, 1, 1, 1024, 24, 8, 16),
    (2, 2, 2, 1024, 24, 4, 32),
)


def _megatron(data: Path) -> Iterator[MeasuredRun]:
    """Megatron-DeepSpeed, taken to be in fp16 with GPT-2's vocabulary, padded, and without recomputation.

    It fuses scale, mask and softmax, bias and GELU, and Adam; megatron-core's own layers and torch do not.
    """
    columns = ("tp", "dp", "pp", "hidden", "layers", "micro_batch", "global_batch")
    for row in _rows(data / "e2e_vtrain" / "a100_single_node_dev.csv"):
        if tuple(int(row[c]) for c in columns) not in MEGATRON_ROWS:
            continue
        yield MeasuredRun(
            name="megatron hidden {hidden} tp{tp} dp{dp} pp{pp} mb{micro_batch} gb{global_batch}".format(
                **row
            ),
            overrides=("cluster=dgx_a100",),
            command=(
                *(
                    "torchrun",
                    f"--nproc-per-node={row['num_gpus']}",
                    str(workloads_dir() / "megatron_gpt.py"),
                ),
                *_gpt(int(row["layers"]), int(row["hidden"]), int(row["heads"]), 51200, int(row["seqlen"])),
                *("--tensor-model-parallel-size", row["tp"], "--pipeline-model-parallel-size", row["pp"]),
                *("--micro-batch-size", row["micro_batch"], "--global-batch-size", row["global_batch"]),
                *("--precision", "fp16", "--train-iters", STEPS),
            ),
            measured_ms=float(row["iteration_ms"]),
        )


# model, sequence length, on one node of 8. Smaller models with their larger micro-batches fitted into 40 GB
# only with a fused loss, which never holds the logits in fp32.
SHARDED_ROWS = (
    ("1b", 512),
    ("1b", 2048),
    ("1b", 8192),
    ("3b", 2048),
    ("7b", 2048),
    ("7b", 8192),
    ("13b", 2048),
)


def _sharded(data: Path) -> Iterator[MeasuredRun]:
    """MPT with FSDP and flash attention in bf16. It has no biases, and ALiBi in place of positions."""
    for row in _rows(data / "e2e_mpt" / "mpt_a100_40gb_dev.csv"):
        if row["num_gpus"] != "8" or (row["model"], int(row["seqlen"])) not in SHARDED_ROWS:
            continue
        layers, width, heads = (int(row[c]) for c in ("n_layers", "d_model", "n_heads"))
        yield MeasuredRun(
            name=f"mpt {row['model']} seq {row['seqlen']} {row['micro_batch']} x {row['grad_accum']}",
            overrides=("cluster=dgx_a100_40gb",),
            command=(
                *("torchrun", "--nproc-per-node=8", str(workloads_dir() / "gpt_fsdp2.py")),
                *_gpt(layers, width, heads, int(row["vocab_size"]), int(row["seqlen"])),
                *("--micro-batch-size", row["micro_batch"], "--global-batch-size", row["global_batch"]),
                *("--recompute", "full" if row["act_ckpt"] == "True" else "none"),
                *("--precision", "bf16", "--train-iters", STEPS),
            ),
            measured_ms=float(row["iteration_s"]) * 1e3,
        )


def _gpt(layers: int, width: int, heads: int, vocabulary: int, seq_length: int) -> tuple[str, ...]:
    values = {
        "num-layers": layers,
        "hidden-size": width,
        "ffn-hidden-size": 4 * width,
        "num-attention-heads": heads,
        "num-query-groups": heads,
        "vocab-size": vocabulary,
        "seq-length": seq_length,
    }
    return tuple(part for key, value in values.items() for part in (f"--{key}", str(value)))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
