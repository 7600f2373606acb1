"""Which record of an event a wait refers to."""

import numpy as np

from maya.trace import MISSING, Trace


def bind_waits(trace: Trace, records: np.ndarray, waits: np.ndarray, kind: str) -> np.ndarray:
    """Index into ``records`` (positions of event_record) for each wait (positions of records of ``kind``).

    A wait names the version of the event that was the latest when it was called. -1 where that record is not
    among the given ones (it precedes the steady part) or the event had never been recorded.
    """
    record_event, record_version = _event_version(trace, "event_record", records)
    wait_event, wait_version = _event_version(trace, kind, waits)
    if not len(records) or not len(waits):
        return np.full(len(waits), -1, dtype=np.int64)
    pairs = np.stack([np.r_[record_event, wait_event], np.r_[record_version, wait_version]], axis=1)
    _, code = np.unique(pairs, axis=0, return_inverse=True)
    code = code.reshape(-1)
    # Should an id be used again for a new event, the newest record before the wait counts.
    scale = int(max(records.max(), waits.max())) + 1
    record_key = code[: len(records)] * scale + records
    wait_key = code[len(records) :] * scale + waits
    order = np.argsort(record_key, kind="stable")
    place = np.searchsorted(record_key[order], wait_key) - 1
    index = order[np.maximum(place, 0)]
    is_bound = (place >= 0) & (code[index] == code[len(records) :]) & (wait_version != MISSING)
    return np.where(is_bound, index, -1)


def _event_version(trace: Trace, kind: str, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = trace.row[positions]
    return trace.column(kind, "event")[rows], trace.column(kind, "version")[rows]
