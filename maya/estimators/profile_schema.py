"""The tidy table of measured operations that `ingest` writes and `train` reads."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from maya.errors import EstimatorError

SCHEMA_VERSION = 1


def _field(name: str, kind: pa.DataType, meaning: str, unit: str = "1") -> pa.Field:
    return pa.field(name, kind, metadata={"meaning": meaning, "unit": unit})


SCHEMA = pa.schema(
    [
        _field("gpu", pa.string(), "name of the GPU configuration"),
        _field("op_kind", pa.string(), "gemm, attention or collective"),
        _field("dtype", pa.string(), "bf16, fp16, fp8; int8 for collectives without in-switch reduction"),
        _field("m", pa.int64(), "gemm: rows of y[m,n] = x[m,k] W[n,k]^T"),
        _field("n", pa.int64(), "gemm: columns of y"),
        _field("k", pa.int64(), "gemm: summed dim"),
        _field("batch", pa.int64(), "attention: sequences"),
        _field("seq_q", pa.int64(), "attention: queries of a sequence"),
        _field("seq_kv", pa.int64(), "attention: keys of a sequence"),
        _field("heads_q", pa.int64(), "attention: query heads"),
        _field("heads_kv", pa.int64(), "attention: key/value heads"),
        _field("head_dim", pa.int64(), "attention: width of a head"),
        _field("causal", pa.bool_(), "attention: causal mask"),
        _field("op", pa.string(), "collective: all_reduce, all_gather, reduce_scatter, all_to_all"),
        _field("num_gpus", pa.int64(), "collective: ranks, all in one node"),
        _field("bytes", pa.int64(), "collective: size as nccl-tests counts it", "B"),
        _field("duration_us", pa.float64(), "measured time without launch", "us"),
        _field("source", pa.string(), "package, version, table"),
    ]
)


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
