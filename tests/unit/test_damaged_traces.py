"""Traces that were cut, flipped, spliced or given huge lengths: one clear error or a result, soon and in
little memory."""

import os
import random
import resource
from pathlib import Path

import pytest
from trace_writer import HEADER, RECORD_HEADER, TraceWriter, varint, write_job

from maya.collate import collate
from maya.errors import TraceError
from maya.trace import KINDS, MISSING, read_trace

SEEDS, FILES = (int(text) for text in os.environ.get("MAYA_FUZZ_TRACES", "4,60").split(","))
"""How many seeds, each of how many damaged files (make fuzz runs more)."""
MAX_GROWTH_KIB = 200 << 10  # of the peak of the process; the traces have 4 KiB
VALUES = (-1, 0, 1, 2, 7, 2**31, 2**40, 2**63 - 1, MISSING, MISSING + 1)


def small_job(folder: Path) -> Path:
    """Two ranks that do something of everything, in four iterations."""
    writers = [TraceWriter(rank=rank) for rank in range(2)]
    for rank, w in enumerate(writers):
        w.group("0", [0, 1], "default_pg")
        w.record("stream_create", stream=3, flags=1, priority=0)
        w.record("comm_init", comm=0, unique_id=77, num_ranks=2, rank=rank)
        for number in range(1, 5):
            version = 2 * number
            w.record("range_push", name="aten::add, sizes = [[8], [8]]")
            w.kernel("axpy", stream=0, grid=4, num_elements=100, scalar0=3, gap_ns=900)
            w.record("range_pop")
            w.record("gemm", stream=0, library=0, m=8, n=8, k=8, batch=1, trans_a=0, trans_b=0)
            w.record("memcpy", stream=0, direction=1, bytes=4, host_pinned=1, is_blocking=0)
            w.record("memset", stream=0, bytes=4, is_blocking=0)
            w.record("event_record", stream=0, event=5, version=version)
            w.record("stream_wait_event", stream=3, event=5, version=version)
            calls = {"stream": 3, "comm": 0, "dtype": 7, "reduce_op": 0, "group": 0}
            w.record("collective", op=0, count=100, peer=-1, sequence=2 * number, **calls)
            w.record("collective", op=8, count=5, peer=1 - rank, sequence=version + 1, **calls | {"group": 1})
            w.record("collective", op=9, count=5, peer=1 - rank, sequence=version + 1, **calls | {"group": 1})
            w.record("event_sync", event=5, version=version)
            w.record("malloc", address=4096, bytes=512, memory=0, stream=0)
            w.record("free", address=4096, bytes=512, memory=0, stream=0)
            w.record("stream_sync", thread=1, stream=3)
            w.iteration(number)
    return write_job(folder, writers)


def change_record(data: bytearray, source: random.Random) -> None:
    """Gives one field of a whole record another value, or leaves out the record or its last fields."""
    starts = []
    at = HEADER.size
    while at + RECORD_HEADER.size <= len(data) and data[at + 2]:
        starts.append(at)
        at += RECORD_HEADER.size + RECORD_HEADER.unpack_from(data, at)[0]
    begin = source.choice(starts)
    payload_bytes, *header = RECORD_HEADER.unpack_from(data, begin)
    end = begin + RECORD_HEADER.size + payload_bytes
    payload = bytes(data[begin + RECORD_HEADER.size : end])
    ends = [number + 1 for number, byte in enumerate(payload) if byte < 0x80]
    if not ends or source.random() < 0.1:
        del data[begin:end]
        return
    number = source.randrange(len(ends))
    first = ends[number - 1] if number else 0
    rest = payload[ends[number] :] if source.random() < 0.8 else b""
    payload = payload[:first] + varint(source.choice(VALUES)) + rest
    data[begin:end] = RECORD_HEADER.pack(len(payload), *header) + payload


def damage(data: bytes, source: random.Random) -> bytes:
    """One or more random changes of a file."""
    changed = bytearray(data)
    if source.random() < 0.6:
        for _ in range(source.choice((1, 1, 2))):
            change_record(changed, source)
        return bytes(changed)
    for _ in range(source.choice((1, 1, 2, 5))):
        at = source.randrange(len(changed))
        match source.choice(("cut", "flip", "flip", "splice", "length", "value", "drop")):
            case "cut" if len(changed) > 1:
                del changed[max(at, 1) :]
            case "flip":
                changed[at] ^= 1 << source.randrange(8)
            case "splice":
                begin = source.randrange(len(data))
                changed[at:at] = data[begin : begin + source.randrange(200)]
            case "length":
                changed[at : at + 2] = b"\xff\xff"
            case "value":
                changed[at : at + 1] = varint(source.choice(VALUES))
            case "drop":
                del changed[at : at + source.randrange(1, 30)]
        if not changed:
            return b""
    return bytes(changed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_files_are_refused_or_read(seed: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    small_job(tmp_path)
    path = tmp_path / "rank00000.trace"
    whole = path.read_bytes()
    collate(tmp_path)
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(FILES):
        damaged = damage(whole, source)
        path.write_bytes(damaged)
        try:
            trace = read_trace(path, allow_incomplete=True)
            for kind in KINDS:
                trace.table(kind)
            collate(tmp_path)
        except TraceError:
            continue
        except BaseException:
            Path(tmp_path, "damaged.trace").write_bytes(damaged)
            print(f"file {number} of seed {seed} is {tmp_path / 'damaged.trace'}")
            raise
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < peak_kib + MAX_GROWTH_KIB


def test_text_of_a_huge_id_is_damage(tmp_path: Path) -> None:
    writer = TraceWriter()
    writer.raw(KINDS["string"], varint(2**62) + b"name")
    with pytest.raises(TraceError, match="damaged record of kind string"):
        read_trace(writer.write(tmp_path))


def test_header_is_checked(tmp_path: Path) -> None:
    path = TraceWriter().write(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:12] + (2**32 - 1).to_bytes(4, "little") + data[16:])
    with pytest.raises(TraceError, match="damaged header"):
        read_trace(path)
    assert len(data) > HEADER.size
