"""One trace file as numpy arrays and named tables."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from maya.errors import TraceError
from maya.trace import _decoder

KINDS: dict[str, int] = _decoder.KINDS
"""Number of every record kind."""

FIELDS: dict[str, tuple[str, ...]] = _decoder.FIELDS
"""Names of the fields of every record kind."""

COLLECTIVE_OPS: tuple[str, ...] = _decoder.COLLECTIVE_OPS
"""Names of the values of the `op` field of `collective` records, by value."""

MISSING: int = _decoder.MISSING
"""Value of a field that the record leaves out."""

TEXT_FIELD = "name"
"""Fields of this name hold the id of an interned text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Records of one process in the global order of its calls.

    ``kind``, ``thread``, ``flags``, ``gap_ns`` and ``row`` are aligned, one element a record; ``row`` is the
    record's row in ``tables[name of its kind]`` (int64[rows, fields], absent where no record of the kind has
    fields). Definitions of texts and threads are not among the records but in ``strings`` and ``threads``.
    """

    path: Path
    version: int
    process_id: int
    rank: int  # global rank, -1 when the process is not a rank
    start_unix_ns: int
    kind: np.ndarray  # uint8
    thread: np.ndarray  # uint16
    flags: np.ndarray  # uint8
    gap_ns: np.ndarray  # int64
    row: np.ndarray  # int32
    tables: dict[str, np.ndarray]
    strings: np.ndarray  # object, by text id
    threads: dict[int, str]
    is_complete: bool  # closed in good order
    num_records: int
    stop_offset: int  # bytes; where reading ended

    def fields(self, kind: str) -> np.ndarray:
        """int64[rows, fields] of a kind, with no rows where the kind does not occur."""
        table = self.tables.get(kind)
        if table is None:
            table = np.empty((len(self.positions(kind)), len(FIELDS[kind])), dtype=np.int64)
        return table

    def column(self, kind: str, field: str) -> np.ndarray:
        """One field of all records of a kind, as recorded (texts as ids)."""
        return self.fields(kind)[:, FIELDS[kind].index(field)]

    def positions(self, kind: str) -> np.ndarray:
        """Positions in the global order of the records of a kind, in the order of their rows."""
        return np.flatnonzero(self.kind == KINDS[kind])

    def texts(self, ids: np.ndarray) -> np.ndarray:
        """Texts of interned ids, "" where the id is missing."""
        known = (ids >= 0) & (ids < len(self.strings))
        result = np.full(len(ids), "", dtype=object)
        result[known] = self.strings[ids[known]]
        return result

    def kernel_codes(self) -> np.ndarray:
        """int64 hash of the loaded module that each kernel comes from, 0 for the program's own kernels."""
        by_name = np.zeros(len(self.strings) + 1, dtype=np.int64)  # the last: no name
        by_name[self.column("code", "name")] = self.column("code", "hash")
        names = self.column("kernel", "name")
        return by_name[np.where(names == MISSING, -1, names)]

    def table(self, kind: str) -> pd.DataFrame:
        """The records of a kind with named fields; the index is the position in the global order."""
        positions = self.positions(kind)
        fields = self.fields(kind)
        columns = {}
        for number, name in enumerate(FIELDS[kind]):
            values = fields[:, number]
            columns[name] = self.texts(values) if name == TEXT_FIELD else values
        return pd.DataFrame(columns, index=pd.Index(positions, name="index"))


def read_trace(path: Path | str, allow_incomplete: bool = False) -> Trace:
    """Reads a trace file; ``allow_incomplete`` accepts the readable beginning of a killed process's file.

    Raises:
        TraceError: not a trace file, of a newer version, damaged, or not closed in good order.
    """
    path = Path(path)
    try:
        decoded = _decoder.decode(str(path))
    except ValueError as error:
        raise TraceError(f"Trace {path} {error}. Capture the job again.") from None
    if not decoded["complete"] and not allow_incomplete:
        raise TraceError(
            f"Trace {path} is incomplete: it stops after record {decoded['num_records']} "
            f"(byte offset {decoded['stop_offset']}) without an end record, as the file of a process that "
            "was killed or a copy that was cut short does. Capture the job again."
        )
    strings: dict[int, str] = decoded["strings"]
    by_id = np.full(max(strings, default=-1) + 1, "", dtype=object)
    for text_id, text in strings.items():
        by_id[text_id] = text
    return Trace(
        path=path,
        version=decoded["version"],
        process_id=decoded["process_id"],
        rank=decoded["rank"],
        start_unix_ns=decoded["start_unix_ns"],
        kind=decoded["kind"],
        thread=decoded["thread"],
        flags=decoded["flags"],
        gap_ns=decoded["gap_ns"],
        row=decoded["row"],
        tables=decoded["tables"],
        strings=by_id,
        threads=decoded["threads"],
        is_complete=decoded["complete"],
        num_records=decoded["num_records"],
        stop_offset=decoded["stop_offset"],
    )
