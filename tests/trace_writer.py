"""Writes trace files, manifests and events by hand, for tests.

A `TraceWriter` takes records as keyword arguments named as the fields in native/trace/format.h:

    writer = TraceWriter(rank=0)
    writer.record("kernel", stream=0, name="axpy", grid_x=4, gap_ns=5000)
    writer.iteration(1)
    writer.write(folder)  # rank00000.trace and rank00000.events.jsonl
"""

import json
import struct
from pathlib import Path
from typing import Any, Literal

from maya.capture.manifest import Manifest, RankResult, Status
from maya.trace import FIELDS, KINDS, MISSING

HEADER = struct.Struct("<8sIIQqq")
RECORD_HEADER = struct.Struct("<HBBHHI")
MAGIC = b"MAYATRC\0"


def varint(value: int) -> bytes:
    """Zigzag LEB128 of a signed 64-bit number."""
    bits = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    encoded = bytearray()
    while bits >= 0x80:
        encoded.append(bits & 0x7F | 0x80)
        bits >>= 7
    encoded.append(bits)
    return bytes(encoded)


class TraceWriter:
    """Collects the records of one rank; nothing is checked, so that damaged files can be written too."""

    def __init__(self, rank: int = 0, version: int = 1, magic: bytes = MAGIC) -> None:
        self.rank = rank
        self.data = bytearray(HEADER.pack(magic, version, HEADER.size, 4242, rank, 1_700_000_000_000_000_000))
        self.events: list[dict[str, Any]] = []
        self.num_records = 0
        self._texts: dict[str, int] = {}
        self._threads: set[int] = set()

    def raw(self, kind: int, payload: bytes, thread: int = 0, flags: int = 0, gap_ns: int = 0) -> None:
        """Appends one record as bytes."""
        self.data += RECORD_HEADER.pack(len(payload), kind, flags, thread, 0, gap_ns) + payload
        self.num_records += 1

    def text(self, text: str) -> int:
        """Id of an interned text."""
        if text not in self._texts:
            self._texts[text] = len(self._texts)
            self.raw(KINDS["string"], varint(self._texts[text]) + text.encode())
        return self._texts[text]

    def record(
        self, kind: str, thread: int = 0, flags: int = 0, gap_ns: int = 0, **fields: int | str
    ) -> None:
        """Appends a record; fields not given are missing, those after the last one given are left out."""
        unknown = set(fields) - set(FIELDS[kind])
        if unknown:
            raise ValueError(f"{kind} has no fields {sorted(unknown)}")
        if thread not in self._threads:
            self._threads.add(thread)
            self.raw(KINDS["thread"], varint(thread) + f"thread{thread}".encode())
        values = [fields.get(name) for name in FIELDS[kind]]
        values = [self.text(value) if isinstance(value, str) else value for value in values]
        while values and values[-1] is None:
            values.pop()
        payload = b"".join(varint(MISSING if value is None else int(value)) for value in values)
        self.raw(KINDS[kind], payload, thread, flags, gap_ns)

    def kernel(self, name: str, stream: int = 0, grid: int = 1, **fields: Any) -> None:
        """A launch of one-dimensional shape."""
        shape = {"grid_x": grid, "grid_y": 1, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1}
        self.record("kernel", stream=stream, name=name, shared_bytes=0, **shape, **fields)

    def mark(self, name: str, value: int, **fields: Any) -> None:
        """A mark of the start-up hook."""
        self.record("mark", name=name, value=value, **fields)

    def iteration(self, number: int, allocated: int = 1000, reserved: int = 2000, gap_ns: int = 0) -> None:
        """The marks at the end of an iteration, as the start-up hook makes them."""
        self.mark("iteration", number, gap_ns=gap_ns)
        self.mark("peak_allocated_bytes", allocated, gap_ns=50_000)
        self.mark("peak_reserved_bytes", reserved, gap_ns=50_000)

    def group(self, name: str, ranks: list[int], description: str = "undefined") -> None:
        """The event of a process group that was made."""
        self.events.append({"type": "group", "name": name, "ranks": ranks, "description": description})

    def unique_id(self, unique_id: int, key: str) -> None:
        """The event of an NCCL unique id that was set or read."""
        self.events.append({"type": "unique_id", "hash": unique_id, "key": key})

    def end(self) -> None:
        """The record of a file closed in good order."""
        self.record("end", calls=self.num_records)
        self.events.append({"type": "end", "iterations": 4})

    def write(self, folder: Path, complete: bool = True) -> Path:
        """Writes both files of the rank; the trace is followed by zeros, as a mapped file is."""
        folder.mkdir(parents=True, exist_ok=True)
        if complete:
            self.end()
        path = folder / f"rank{self.rank:05d}.trace"
        path.write_bytes(bytes(self.data) + bytes(0 if complete else 4096))
        events = folder / f"rank{self.rank:05d}.events.jsonl"
        events.write_text("".join(json.dumps(event) + "\n" for event in self.events))
        return path


def write_job(
    folder: Path,
    writers: list[TraceWriter],
    world_size: int | None = None,
    gpus_per_node: int = 8,
    mode: Literal["linked", "solo"] = "linked",
    status: Status = "ok",
) -> Path:
    """Writes the traces of a job with a manifest that says how they were captured."""
    for writer in writers:
        writer.write(folder)
    ranks = tuple(
        RankResult(
            rank=writer.rank,
            status=status,
            exit_code=0,
            iterations=4,
            calls={"cudaLaunchKernel": 3},
            unemulated={"cufftExecC2C": 1},
        )
        for writer in writers
    )
    Manifest(
        command=("python", "train.py"),
        versions={},
        gpu="h100_sxm",
        world_size=len(writers) if world_size is None else world_size,
        gpus_per_node=gpus_per_node,
        mode=mode,
        ranks=ranks,
    ).write(folder)
    return folder
