"""``triton_kernels.json`` beside the traces of a capture: what the launched Triton kernels do."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maya.errors import TraceError

SCHEMA_VERSION = 1
FILE_NAME = "triton_kernels.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A matrix product of a block: (m, k) times (k, n) of one element type, as TTIR writes it (bf16, f32)."""

    m: int
    n: int
    k: int
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TritonKernel:
    """One compiled kernel.

    ``code`` is the number that `code` records have for it. ``signature`` has the types of its parameters as
    TTIR writes them, without the constants. ``operations`` counts operations of its TTIR by class
    (`maya.capture.triton_ir.CLASSES`), as they stand there: each works on a whole block, and one in a loop
    counts once.
    """

    code: int
    name: str
    signature: tuple[str, ...]
    num_warps: int
    num_stages: int
    shared_bytes: int
    operations: dict[str, int]
    dots: tuple[Dot, ...]


def write_triton_kernels(folder: Path, kernels: list[TritonKernel]) -> None:
    table = {"schema_version": SCHEMA_VERSION, "kernels": [asdict(kernel) for kernel in kernels]}
    (folder / FILE_NAME).write_text(json.dumps(table, indent=1) + "\n")


def read_triton_kernels(folder: Path) -> dict[int, TritonKernel]:
    """The kernels of a capture by code; none where it launched none.

    Raises:
        TraceError: the file is damaged or of another version.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return {}
    try:
        table: dict[str, Any] = json.loads(path.read_text())
        if table["schema_version"] != SCHEMA_VERSION:
            raise TraceError(
                f"{path} has schema version {table['schema_version']}; this Maya reads {SCHEMA_VERSION}. "
                "Capture again."
            )
        return {row["code"]: triton_kernel(row) for row in table["kernels"]}
    except (ValueError, KeyError, TypeError):
        raise TraceError(f"{path} is damaged. Capture again.") from None


def triton_kernel(row: dict[str, Any]) -> TritonKernel:
    """A kernel from its JSON form."""
    dots = tuple(Dot(**dot) for dot in row["dots"])
    return TritonKernel(**{**row, "signature": tuple(row["signature"]), "dots": dots})
