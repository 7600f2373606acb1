"""Reads the measured tables of installed packages into one tidy profile per GPU.

The tables are those of aiconfigurator-core (NVIDIA, Apache-2.0): kernels of inference engines, timed in
CUDA graphs, so without launches. Its code is not imported; the Parquet files are read.
"""

import importlib.resources
import logging
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import pandas as pd

from maya.config.schema import GpuConfig
from maya.errors import EstimatorError
from maya.estimators.bounds import memory_us
from maya.estimators.collectives import bus_factor
from maya.estimators.profile_schema import write_profile

log = logging.getLogger(__name__)

# GPU configuration -> folder of its tables. The A100 tables were measured on the 80 GB card; the smaller
# one has the same die and clocks and differs in memory bandwidth only.
SYSTEMS = {
    "h100_sxm": "h100_sxm",
    "h200_sxm": "h200_sxm",
    "a100_sxm_80gb": "a100_sxm",
    "a100_sxm_40gb": "a100_sxm",
    "b200_sxm": "b200_sxm",
    "l40s": "l40s",
}

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp8": "fp8", "int8": "int8"}

# A measured rate above this share of the data-sheet peak cannot be sustained: short bursts reach 97 %.
MAX_PEAK_SHARE = 0.97


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where tables of one op kind are looked for, and what one framework's row means."""

    op_kind: str
    family: str
    table: str
    frameworks: tuple[str, ...]
    take_all: bool = False  # the fastest of all frameworks at each point; else the first that has a table


# sglang's GEMM rows call torch.nn.functional.linear, so cuBLAS picks the kernel as in training. Attention:
# serving engines differ in what they do around the kernel, so the fastest is nearest to the bare one.
SOURCES = (
    Source(op_kind="gemm", family="gemm", table="gemm_perf", frameworks=("sglang", "trtllm", "vllm")),
    Source(
        op_kind="attention",
        family="attention",
        table="context_attention_perf",
        frameworks=("sglang", "vllm"),
        take_all=True,
    ),
    Source(
        op_kind="attention_full",
        family="encoder_attention",
        table="encoder_attention_perf",
        frameworks=("sglang", "vllm"),
        take_all=True,
    ),
    Source(op_kind="collective", family="comm", table="nccl_perf", frameworks=("nccl",)),
)

# Rate of the engines' copy into the paged cache over a streaming kernel: from the difference between their
# rows and FlashAttention's own figures at 512 to 4,096 keys (flash-attention@0251105 assets, H100 and A100).
CACHE_COPY_EFFICIENCY = {"vllm": 0.6, "sglang": 0.9}

NCCL_DTYPE_BYTES = {"half": 2, "int8": 1}
# A ring over PCIe reaches 5 to 20 GB/s; rows of one size series that stay below this are a broken set-up.
MIN_PCIE_BUSBW = 3e9
COLLECTIVE_NAMES = {"alltoall": "all_to_all"}


def ingest(gpu: GpuConfig, output: Path) -> None:
    """Writes the profile of ``gpu`` (see `profile_schema`); a GPU without tables gets an empty one."""
    parts: list[pd.DataFrame] = []
    dropped: dict[str, int] = {}
    for source in SOURCES if gpu.name in SYSTEMS else ():
        tables = []
        for path, label in _find_tables(SYSTEMS[gpu.name], source):
            rows = _READERS[source.op_kind](_read_parquet(path), gpu)
            rows["source"] = label
            tables.append(rows)
        if not tables:
            continue
        rows, reasons = _drop_implausible(pd.concat(tables, ignore_index=True), gpu)
        dropped.update({f"{source.op_kind}: {reason}": count for reason, count in reasons.items()})
        parts.append(rows)
    profile = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    profile["gpu"] = gpu.name
    profile["scope"] = "kernel"
    profile["harness"] = "cuda_graph"
    write_profile(profile, dropped, output)
    log.info("%s: %d measured rows, %d dropped, in %s", gpu.name, len(profile), sum(dropped.values()), output)


def _find_tables(system: str, source: Source) -> list[tuple[Traversable, str]]:
    """The newest version of the table of each framework asked for, with its label."""
    try:
        root = importlib.resources.files("aiconfigurator_core") / "systems" / "data" / system / source.family
    except ModuleNotFoundError as error:
        raise EstimatorError(
            "the package aiconfigurator-core, which holds the measured tables, is not installed: "
            "pip install aiconfigurator-core"
        ) from error
    found = []
    for framework in source.frameworks:
        folder = root / framework
        versions = (
            [v for v in folder.iterdir() if (v / f"{source.table}.parquet").is_file()]
            if folder.is_dir()
            else []
        )
        if versions:
            newest = max(versions, key=lambda version: _version_key(version.name))
            label = f"aiconfigurator-core {system}/{source.family}/{framework}/{newest.name}/{source.table}"
            found.append((newest / f"{source.table}.parquet", label))
    return found if source.take_all else found[:1]


def _version_key(version: str) -> tuple[int, ...]:
    digits = "".join(c if c.isdigit() else " " for c in version)
    return tuple(int(part) for part in digits.split())


def _read_parquet(path: Traversable) -> pd.DataFrame:
    with importlib.resources.as_file(path) as file:
        return pd.read_parquet(file)


def _read_gemm(table: pd.DataFrame, gpu: GpuConfig) -> pd.DataFrame:
    table = table[table.gemm_dtype.isin(DTYPES)]
    rows = pd.DataFrame({"op_kind": "gemm", "dtype": table.gemm_dtype.map(DTYPES)})
    rows[["m", "n", "k"]] = table[["m", "n", "k"]]
    rows["op"] = "linear"
    rows["layout"] = "TN"
    rows["direction"] = "forward"
    rows["batch"] = 1
    rows["duration_us"] = table.latency * 1e3
    return rows


def _read_context_attention(table: pd.DataFrame, gpu: GpuConfig) -> pd.DataFrame:
    """Causal attention over whole prompts.

    The engines also copy keys and values into their paged cache within the measured time; what reading and
    writing those bytes takes is subtracted.
    """
    keep = (table.attn_dtype == "bfloat16") & (table.kv_cache_dtype == "bfloat16") & (table.step == 0)
    keep &= ~table.kernel_source.str.contains("triton")
    if "window_size" in table:
        keep &= table.window_size == 0
    table = table[keep]
    kv_heads = table.num_key_value_heads.where(table.num_key_value_heads > 0, table.num_heads)
    rows = _attention_rows(table, kv_heads, causal=True)
    cache_bytes = 2 * 2 * 2 * rows.batch * rows.seq_kv * rows.heads_kv * rows.head_dim
    efficiency = table.framework.str.lower().map(CACHE_COPY_EFFICIENCY).to_numpy(np.float64)
    cache_us = memory_us(gpu, cache_bytes.to_numpy(np.float64), efficiency) - gpu.min_kernel_us
    rows["duration_us"] = np.maximum(rows.duration_us - cache_us, gpu.min_kernel_us)
    return rows


def _read_encoder_attention(table: pd.DataFrame, gpu: GpuConfig) -> pd.DataFrame:
    table = table[table.attn_dtype == "bfloat16"]
    return _attention_rows(table, table.num_heads, causal=False)


def _attention_rows(table: pd.DataFrame, kv_heads: "pd.Series[int]", causal: bool) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "op_kind": "attention",
            "op": "library",
            "direction": "forward",
            "dtype": "bf16",
            "batch": table.batch_size,
            "seq_q": table.isl,
            "seq_kv": table.isl,
            "heads_q": table.num_heads,
            "heads_kv": kv_heads,
            "head_dim": table.head_dim,
            "causal": causal,
            "duration_us": table.latency * 1e3,
        }
    )


def _read_nccl(table: pd.DataFrame, gpu: GpuConfig) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "op_kind": "collective",
            "dtype": table.nccl_dtype.map(DTYPES),
            "op": table.op_name.replace(COLLECTIVE_NAMES),
            "num_gpus": table.num_gpus,
            "direction": "forward",
            "num_nodes": 1,
            "link": "nvlink" if gpu.nvlink_bytes_per_s else "pcie",
            "num_bytes": table.message_size * table.nccl_dtype.map(NCCL_DTYPE_BYTES),
            "duration_us": table.latency * 1e3,
        }
    )


_READERS = {
    "gemm": _read_gemm,
    "attention": _read_context_attention,
    "attention_full": _read_encoder_attention,
    "collective": _read_nccl,
}


def _drop_implausible(rows: pd.DataFrame, gpu: GpuConfig) -> tuple[pd.DataFrame, dict[str, int]]:
    """Leaves out rows that no such GPU can show; of repeated points the fastest is kept."""
    reasons = {"not a positive time": ~(rows.duration_us > 0)}
    kind = rows.op_kind.iat[0] if len(rows) else ""
    if kind == "gemm":
        peak = rows.dtype.map(gpu.peak_flops).astype(float)
        rate = 2.0 * rows.m * rows.n * rows.k / (rows.duration_us * 1e-6)
        reasons[f"above {MAX_PEAK_SHARE:.0%} of the peak rate"] = rate > MAX_PEAK_SHARE * peak
        reasons["no peak rate known for the type"] = peak.isna()
    if kind == "collective" and gpu.nvlink_bytes_per_s == 0:
        factor = np.array([bus_factor(op, n) for op, n in zip(rows.op, rows.num_gpus, strict=True)])
        busbw = rows.num_bytes * factor / (rows.duration_us * 1e-6)
        best = rows.assign(busbw=busbw).groupby(["op", "num_gpus", "dtype"]).busbw.transform("max")
        reasons[f"bus bandwidth never above {MIN_PCIE_BUSBW:.0e} B/s"] = best < MIN_PCIE_BUSBW
    bad = np.zeros(len(rows), bool)
    counts: dict[str, int] = {}
    for reason, mask in reasons.items():
        if num_new := int((mask & ~bad).sum()):
            counts[reason] = num_new
        bad |= mask
    keys = [c for c in rows.columns if c not in ("duration_us", "source")]
    kept = rows[~bad].sort_values("duration_us", kind="stable").drop_duplicates(keys)
    repeated = int((~bad).sum()) - len(kept)
    if repeated:
        counts["measured more than once (the fastest is kept)"] = repeated
    return kept, counts
