"""A file of device code with what the driver reads of it."""

import struct

REGISTER_COUNT = 0x2F  # EIATTR_REGCOUNT
SYMBOLS, NOBITS = 2, 8  # ELF section types
EXECUTABLE = 4  # ELF section flag


def write_cubin(
    name: str, num_registers: int, static_shared_bytes: int = 0, code: bytes = b"", debug: bytes = b""
) -> bytes:
    """One kernel without parameters."""
    names = [
        *("", ".shstrtab", ".symtab", ".nv.info", f".nv.info.{name}", f".nv.shared.{name}"),
        *(f".text.{name}", ".debug_line"),
    ]
    texts = b"".join(text.encode() + b"\0" for text in names) + name.encode() + b"\0"
    offsets = [texts.index(text.encode() + b"\0") if text else 0 for text in names]
    symbols = bytes(24) + struct.pack("<IBBHQQ", texts.rindex(name.encode()), 0x12, 0, 0, 0, 0)
    registers = struct.pack("<BBHII", 4, REGISTER_COUNT, 8, 1, num_registers)
    contents = [b"", texts, symbols, registers, b"", b"", code, debug]
    contents = [content + bytes(-len(content) % 8) for content in contents]  # tables are aligned
    types = [0, 3, SYMBOLS, 1, 1, NOBITS, 1, 1]
    at, sections = 64, b""
    for number, (offset, kind, content) in enumerate(zip(offsets, types, contents, strict=True)):
        size = static_shared_bytes if kind == NOBITS else len(content)
        flags = EXECUTABLE if names[number].startswith(".text") else 0
        sections += struct.pack("<IIQQQQIIQQ", offset, kind, flags, 0, at, size, 1, 0, 0, 0)
        at += len(content)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, at, 0, 64, 0, 0, 64, len(names), 1)
    return header + b"".join(contents) + sections
