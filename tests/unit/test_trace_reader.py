"""Trace files that are whole, cut, damaged or of another version."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_writer import TraceWriter, varint

from maya.errors import TraceError
from maya.trace import FIELDS, KINDS, MISSING, read_trace


def two_kernels() -> TraceWriter:
    writer = TraceWriter(rank=3)
    writer.kernel("axpy", stream=7, grid=16, gap_ns=1500, num_elements=2048)
    writer.record("device_sync", thread=2, flags=1, gap_ns=4_000_000_000)
    writer.record("malloc", address=-1, bytes=2**40)
    writer.kernel("scale", stream=0, scalar0=-(2**63) + 1, scalar5=2**63 - 1)
    return writer


def test_records_in_global_order(tmp_path: Path) -> None:
    trace = read_trace(two_kernels().write(tmp_path))
    assert trace.rank == 3 and trace.version == 1 and trace.process_id == 4242
    assert trace.is_complete
    names = {number: name for name, number in KINDS.items()}
    assert [names[kind] for kind in trace.kind] == ["kernel", "device_sync", "malloc", "kernel", "end"]
    assert trace.row.tolist() == [0, 0, 0, 1, 0]
    assert trace.thread.tolist() == [0, 2, 0, 0, 0]
    assert trace.flags.tolist() == [0, 1, 0, 0, 0]
    assert trace.gap_ns.tolist() == [1500, 4_000_000_000, 0, 0, 0]
    assert trace.threads == {0: "thread0", 2: "thread2"}


def test_table_has_named_fields_and_texts(tmp_path: Path) -> None:
    kernels = read_trace(two_kernels().write(tmp_path)).table("kernel")
    assert tuple(kernels.columns) == FIELDS["kernel"]
    assert kernels.index.tolist() == [0, 3]
    assert kernels["name"].tolist() == ["axpy", "scale"]
    assert kernels["num_elements"].tolist() == [2048, MISSING]
    assert kernels["scalar0"].tolist() == [MISSING, -(2**63) + 1]
    assert kernels["scalar5"].tolist() == [MISSING, 2**63 - 1]


def test_kind_that_does_not_occur_is_an_empty_table(tmp_path: Path) -> None:
    trace = read_trace(two_kernels().write(tmp_path))
    assert trace.table("gemm").shape == (0, len(FIELDS["gemm"]))
    assert trace.table("device_sync").index.tolist() == [1]


def test_killed_process_leaves_a_readable_beginning(tmp_path: Path) -> None:
    path = two_kernels().write(tmp_path, complete=False)
    with pytest.raises(TraceError, match=r"incomplete: it stops after record 8 \(byte offset \d+\)"):
        read_trace(path)
    trace = read_trace(path, allow_incomplete=True)
    assert not trace.is_complete
    assert trace.table("kernel")["name"].tolist() == ["axpy", "scale"]


@pytest.mark.parametrize("cut", [1, 5, 13])
def test_cut_copy_stops_at_the_last_whole_record(tmp_path: Path, cut: int) -> None:
    path = two_kernels().write(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(TraceError, match="incomplete"):
        read_trace(path)
    assert len(read_trace(path, allow_incomplete=True).kind) == 4


def test_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    path = TraceWriter(version=7).write(tmp_path)
    with pytest.raises(TraceError, match=r"trace format version 7, and this Maya reads up to version 2"):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "ends within its header"), (b"x" * 100, "is not a trace file")],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rank00000.trace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "rank00000.trace")


@pytest.mark.parametrize(
    ("kind", "payload", "message"),
    [
        (200, b"", r"record of unknown kind 200 \(record 8"),
        (KINDS["memset"], b"\x80\x80", r"damaged record of kind memset \(record 8"),
        (KINDS["memset"], varint(1) * 9, r"damaged record of kind memset"),
        (KINDS["memset"], b"\x80" * 11 + b"\x01", r"damaged record of kind memset"),
    ],
    ids=["unknown kind", "varint cut", "too many fields", "varint too long"],
)
def test_damage_is_located(tmp_path: Path, kind: int, payload: bytes, message: str) -> None:
    writer = two_kernels()
    writer.raw(kind, payload)
    with pytest.raises(TraceError, match=message):
        read_trace(writer.write(tmp_path), allow_incomplete=True)


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=16))
def test_every_number_comes_back(tmp_path_factory: pytest.TempPathFactory, values: list[int]) -> None:
    writer = TraceWriter()
    writer.raw(KINDS["kernel"], b"".join(varint(value) for value in values))
    trace = read_trace(writer.write(tmp_path_factory.mktemp("trace")))
    expected = values + [MISSING] * (16 - len(values))
    assert np.array_equal(trace.fields("kernel")[0], np.array(expected, dtype=np.int64))
