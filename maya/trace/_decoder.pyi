"""Types of the compiled decoder (native/trace/decode.cpp)."""

from typing import Any

import numpy as np
import numpy.typing as npt

KINDS: dict[str, int]
FIELDS: dict[str, tuple[str, ...]]
COLLECTIVE_OPS: tuple[str, ...]
MISSING: int
VERSION: int
MAGIC: bytes
BLOCKED: int
FROM_GRAPH: int
NOT_WORKLOAD: int

def decode(path: str) -> dict[str, Any]: ...
def code_hash(code: bytes) -> int: ...
def repeated_suffix(values: npt.NDArray[np.uint64]) -> tuple[int, int]: ...
