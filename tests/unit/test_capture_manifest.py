"""The manifest, and the failed allocation read from a trace."""

import json
import struct

import pytest

from maya.capture.manifest import FILE_NAME, Manifest, OutOfMemory, RankResult, read_manifest
from maya.capture.oom import last_out_of_memory
from maya.errors import TraceError

MANIFEST = Manifest(
    command=("torchrun", "t.py"),
    versions={"torch": "2"},
    gpu="toy",
    world_size=2,
    gpus_per_node=2,
    mode="linked",
    ranks=(
        RankResult(rank=0, status="stopped", exit_code=None, iterations=0),
        RankResult(
            rank=1,
            status="oom",
            exit_code=1,
            iterations=1,
            calls={"cudaMalloc": 2},
            oom=OutOfMemory(bytes_requested=3, used_bytes=4, capacity_bytes=5),
            error="torch.OutOfMemoryError: no",
        ),
    ),
)


def test_manifest_survives_the_file(tmp_path):
    MANIFEST.write(tmp_path)
    assert read_manifest(tmp_path) == MANIFEST


def test_rank_out_of_memory_is_found():
    assert MANIFEST.out_of_memory.rank == 1


def test_incomplete_capture(tmp_path):
    with pytest.raises(TraceError, match="not a complete capture"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}'])
def test_damaged_manifest(tmp_path, text):
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(TraceError, match="damaged"):
        read_manifest(tmp_path)


def test_manifest_of_another_version(tmp_path):
    MANIFEST.write(tmp_path)
    path = tmp_path / FILE_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 99}))
    with pytest.raises(TraceError, match="99"):
        read_manifest(tmp_path)


def varints(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        rest = (value << 1) ^ (value >> 63)
        while rest >= 0x80:
            out.append(rest & 0x7F | 0x80)
            rest >>= 7
        out.append(rest)
    return bytes(out)


def record(kind: int, payload: bytes) -> bytes:
    return struct.pack("<HBBHHI", len(payload), kind, 0, 0, 0, 0) + payload


def write_trace(path, *records: bytes) -> None:
    header = struct.pack("<8sIIQqq", b"MAYATRC\0", 1, 40, 1, 0, 0)
    path.write_bytes(header + b"".join(records) + bytes(64))


def test_newest_failed_allocation_counts(tmp_path):
    trace = tmp_path / "rank00000.trace"
    write_trace(
        trace,
        record(50, varints(7, 512, 0, 0)),
        record(52, varints(1, 2, 3)),
        record(52, varints(20 << 30, 70 << 30, 80 << 30)),
        record(51, varints(7, 512, 0, 0)),
    )
    expected = OutOfMemory(bytes_requested=20 << 30, used_bytes=70 << 30, capacity_bytes=80 << 30)
    assert last_out_of_memory(trace) == expected


def test_no_failed_allocation(tmp_path):
    trace = tmp_path / "rank00000.trace"
    assert last_out_of_memory(trace) is None
    write_trace(trace, record(50, varints(7, 512, 0, 0)))
    assert last_out_of_memory(trace) is None
