"""The tidy table of measured operations that `maya ingest` and `maya profile` write and `train` reads."""

import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from maya.errors import EstimatorError

SCHEMA_VERSION = 2


def _field(name: str, kind: pa.DataType, meaning: str, unit: str = "1") -> pa.Field:
    return pa.field(name, kind, metadata={"meaning": meaning, "unit": unit})


SCHEMA = pa.schema(
    [
        _field("gpu", pa.string(), "name of the GPU configuration"),
        _field("op_kind", pa.string(), "a key of op_kinds.OP_KINDS"),
        _field(
            "op",
            pa.string(),
            "variant within the kind. gemm: linear (one product) or bmm. attention: library (cuDNN, "
            "FlashAttention-3), flash (FlashAttention-2), efficient or math. memcpy: h2d, d2h (pinned), "
            "h2d_pageable, d2h_pageable, d2d, p2p. collective: as CollectiveOp of the trace. "
            "Others: as `features` names them (layer_norm, add, ...)",
        ),
        _field("dtype", pa.string(), "fp64, fp32, tf32, fp16, bf16, fp8, int8"),
        _field("direction", pa.string(), "forward, backward, forward_backward; conv: forward, dgrad, wgrad"),
        _field(
            "scope",
            pa.string(),
            "kernel: the time of one kernel; operator: of all kernels of an operator",
        ),
        _field("batch", pa.int64(), "gemm: products; attention: sequences; conv: images"),
        _field("m", pa.int64(), "gemm: rows of y[m,n] = x[m,k] w[k,n], row-major"),
        _field("n", pa.int64(), "gemm: columns of y"),
        _field("k", pa.int64(), "gemm: summed dim"),
        _field("layout", pa.string(), "gemm: transposes of cuBLAS' column-major A and B: TN is y = x W^T"),
        _field("seq_q", pa.int64(), "attention: queries of a sequence"),
        _field("seq_kv", pa.int64(), "attention: keys of a sequence"),
        _field("heads_q", pa.int64(), "attention: query heads"),
        _field("heads_kv", pa.int64(), "attention: key/value heads"),
        _field("head_dim", pa.int64(), "attention: width of a head"),
        _field("causal", pa.bool_(), "attention: causal mask"),
        _field("channels_in", pa.int64(), "conv: input channels"),
        _field("channels_out", pa.int64(), "conv: output channels"),
        _field("groups", pa.int64(), "conv: groups"),
        _field("in_h", pa.int64(), "conv: input height"),
        _field("in_w", pa.int64(), "conv: input width"),
        _field("out_h", pa.int64(), "conv: output height"),
        _field("out_w", pa.int64(), "conv: output width"),
        _field("kernel_h", pa.int64(), "conv: filter height"),
        _field("kernel_w", pa.int64(), "conv: filter width"),
        _field("stride_h", pa.int64(), "conv: vertical stride"),
        _field("stride_w", pa.int64(), "conv: horizontal stride"),
        _field("channels_last", pa.bool_(), "conv: NHWC tensors"),
        _field("rows", pa.int64(), "streaming kinds: rows of the main tensor"),
        _field("cols", pa.int64(), "streaming kinds: elements of a row (reduced by norms, softmax, losses)"),
        _field("num_gpus", pa.int64(), "collective: ranks"),
        _field("num_nodes", pa.int64(), "collective: nodes they are on"),
        _field("link", pa.string(), "collective: nvlink or pcie inside the node"),
        _field(
            "num_bytes",
            pa.int64(),
            "streaming kinds: bytes read and written at least; collective: size as nccl-tests counts it; "
            "memcpy, memset: bytes of the call",
            "B",
        ),
        _field("duration_us", pa.float64(), "measured time, launch left out", "us"),
        _field("source", pa.string(), "package, repository or file with its version"),
        _field("harness", pa.string(), "how it was timed: cuda_graph, cuda_events, kineto, ..."),
    ]
)  # fmt: skip

MEASUREMENT_COLUMNS = ("duration_us", "source", "harness")
"""Columns that say what was measured and how; the others say of which operation."""


def write_profile(rows: pd.DataFrame, dropped: dict[str, int], output: Path) -> None:
    """Writes a profile; ``dropped`` counts the source rows left out, by reason.

    Columns that an op kind does not have are null.
    """
    table = pa.Table.from_pandas(rows.reindex(columns=SCHEMA.names), schema=SCHEMA, preserve_index=False)
    metadata = {
        "maya_schema_version": str(SCHEMA_VERSION),
        "maya_dropped": json.dumps(dropped, sort_keys=True),
    }
    temporary = output.with_suffix(".tmp")
    output.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")
    temporary.replace(output)


def read_profile(path: Path) -> tuple[pd.DataFrame, dict[str, int]]:
    """Reads a profile and the counts of rows that were dropped when it was made.

    Raises:
        EstimatorError: the file is missing, or not a profile of this version.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise EstimatorError(f"cannot read the profile {path} ({error}): run `maya ingest` first") from error
    metadata = table.schema.metadata or {}
    version = metadata.get(b"maya_schema_version", b"none").decode()
    if version != str(SCHEMA_VERSION) or table.schema.names != SCHEMA.names:
        raise EstimatorError(
            f"{path} is a profile of schema {version}, this version reads {SCHEMA_VERSION}: "
            "run `maya ingest` again"
        )
    return table.to_pandas(), json.loads(metadata[b"maya_dropped"])


def read_profiles(paths: Iterable[Path]) -> tuple[pd.DataFrame, dict[str, int]]:
    """Several profiles as one table; the counts of dropped rows are summed."""
    tables, dropped = [], dict[str, int]()
    for path in paths:
        rows, reasons = read_profile(path)
        tables.append(rows)
        for reason, count in reasons.items():
            dropped[reason] = dropped.get(reason, 0) + count
    filled = [rows for rows in tables if len(rows)]
    return (pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=SCHEMA.names)), dropped
