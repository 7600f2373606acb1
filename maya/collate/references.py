"""What records of a trace refer to by number exists: the collation indexes by these numbers."""

import numpy as np

from maya.collate.grouped_calls import DTYPES
from maya.errors import TraceError
from maya.trace import COLLECTIVE_OPS, FIELDS, MISSING, Trace


def check_references(trace: Trace) -> None:
    """Looks at texts, codes of collectives, communicators and peers.

    Raises:
        TraceError: a record refers to something that the trace does not define.
    """
    for kind, fields in FIELDS.items():
        if "name" in fields and kind in trace.tables:
            names = trace.column(kind, "name")
            _require(trace, kind, "name", (names == MISSING) | _is_below(names, len(trace.strings)))
    if "collective" not in trace.tables:
        return
    for field, values in (("op", COLLECTIVE_OPS), ("dtype", DTYPES)):
        _require(trace, "collective", field, _is_below(trace.column("collective", field), len(values)))
    comm, sizes = (trace.column("comm_init", field) for field in ("comm", "num_ranks"))
    _, number, count = np.unique(comm, return_inverse=True, return_counts=True)
    _require(trace, "comm_init", "comm", count[number] == 1)
    called, peer = trace.column("collective", "comm"), trace.column("collective", "peer")
    _require(trace, "collective", "comm", np.isin(called, comm))
    order = np.argsort(comm)
    num_ranks = sizes[order][np.searchsorted(comm[order], called)]
    _require(trace, "collective", "peer", (peer < num_ranks) & (peer != MISSING))


def _is_below(values: np.ndarray, end: int) -> np.ndarray:
    return (values >= 0) & (values < end)


def _require(trace: Trace, kind: str, field: str, is_right: np.ndarray) -> None:
    if is_right.all():
        return
    row = int(np.argmin(is_right))
    raise TraceError(
        f"Trace {trace.path} is damaged: {kind} record {row} has {field} {trace.column(kind, field)[row]}, "
        "which the trace does not define. Capture the job again."
    )
