"""The allocation that failed, read from the trace of a rank that ran out of memory."""

import struct
from pathlib import Path

from maya.capture.manifest import OutOfMemory

# native/trace/format.h: FileHeader, RecordHeader, kind out_of_memory
_FILE_HEADER_BYTES_AT = 12
_RECORD_HEADER = struct.Struct("<HBBHHI")
_OUT_OF_MEMORY = 52


def last_out_of_memory(trace: Path) -> OutOfMemory | None:
    """The newest ``out_of_memory`` record of a trace, also of one that was cut short; None without one."""
    data = trace.read_bytes() if trace.exists() else b""
    if len(data) < _FILE_HEADER_BYTES_AT + 4:
        return None
    (position,) = struct.unpack_from("<I", data, _FILE_HEADER_BYTES_AT)
    found = None
    while position + _RECORD_HEADER.size <= len(data):
        payload_bytes, kind, *_ = _RECORD_HEADER.unpack_from(data, position)
        if kind == 0:
            break
        position += _RECORD_HEADER.size
        if kind == _OUT_OF_MEMORY:
            found = data[position : position + payload_bytes]
        position += payload_bytes
    if found is None:
        return None
    requested, used, capacity = _decode_varints(found)[:3]
    return OutOfMemory(bytes_requested=requested, used_bytes=used, capacity_bytes=capacity)


def _decode_varints(payload: bytes) -> list[int]:
    """Zigzag LEB128."""
    values, value, shift = [], 0, 0
    for byte in payload:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append((value >> 1) ^ -(value & 1))
            value, shift = 0, 0
    return values
