"""What a capture did: ``manifest.json`` beside the traces."""

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from maya.errors import TraceError

SCHEMA_VERSION = 1
FILE_NAME = "manifest.json"

Status = Literal["ok", "oom", "stopped"]
"""How a rank ended: ok, out of device memory, or stopped because another rank ran out of memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemory:
    """The allocation that failed: its size, what the device held by then, and what it can hold."""

    bytes_requested: int
    used_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankResult:
    """One captured rank. ``calls`` counts device calls by name, ``unemulated`` those without an emulation.

    ``unemulated_callers`` names the library and the call site of the first of these. ``recorded_calls``
    are those that left a record, ``overhead_ns_median`` is the time inside of one. ``made_up_reads`` are
    host reads of up to 64 KiB whose values no kernel has computed, in the whole run: rows with site, bytes,
    answer (zeros, or rule) and count.
    """

    rank: int
    status: Status
    exit_code: int | None
    iterations: int
    calls: dict[str, int] = field(default_factory=dict)
    unemulated: dict[str, int] = field(default_factory=dict)
    unemulated_callers: dict[str, str] = field(default_factory=dict)
    recorded_calls: int = 0
    overhead_ns_median: float = 0.0
    seconds: float = 0.0
    made_up_reads: list[dict[str, Any]] = field(default_factory=list)
    oom: OutOfMemory | None = None
    error: str | None = None  # class and message of an uncaught exception


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """One capture. ``versions`` holds maya, torch, cuda, python and emulator (its build key)."""

    command: tuple[str, ...]
    versions: dict[str, str]
    gpu: str
    world_size: int
    gpus_per_node: int
    mode: Literal["linked", "solo"]
    ranks: tuple[RankResult, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def out_of_memory(self) -> RankResult | None:
        """The first rank that ran out of device memory, if any."""
        return next((rank for rank in self.ranks if rank.status == "oom"), None)

    @property
    def made_up_reads(self) -> list[dict[str, Any]]:
        """Those of all ranks, the most frequent first."""
        counts: Counter[tuple[str, int, str]] = Counter()
        for rank in self.ranks:
            for read in rank.made_up_reads:
                counts[read["site"], read["bytes"], read["answer"]] += read["count"]
        return [
            {"site": site, "bytes": num_bytes, "answer": answer, "count": count}
            for (site, num_bytes, answer), count in counts.most_common()
        ]

    def write(self, folder: Path) -> None:
        (folder / FILE_NAME).write_text(json.dumps(asdict(self), indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Reads the manifest of a capture.

    Raises:
        TraceError: there is none, it is damaged, or it is of another version.
    """
    path = folder / FILE_NAME
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        version = data["schema_version"]
    except FileNotFoundError:
        raise TraceError(
            f"{folder} holds no {FILE_NAME}: it is not a complete capture. Capture again."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise TraceError(f"{path} is damaged. Capture again.") from None
    if version != SCHEMA_VERSION:
        raise TraceError(
            f"{path} has schema version {version}; this Maya reads {SCHEMA_VERSION}. Capture again."
        )
    try:
        ranks = tuple(
            RankResult(**{**rank, "oom": OutOfMemory(**rank["oom"]) if rank["oom"] else None})
            for rank in data.pop("ranks")
        )
        return Manifest(**{**data, "command": tuple(data["command"]), "ranks": ranks})
    except (KeyError, TypeError) as error:
        raise TraceError(f"{path} is damaged ({error}). Capture again.") from None
