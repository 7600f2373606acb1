"""Host time between calls: kept across records that are left out, and steadied over iterations."""

import numpy as np

from maya.collate.hashing import combine, occurrence
from maya.trace import KINDS, Trace, _decoder


def carry_gaps(trace: Trace, is_kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gaps in ns and blocked flags of all records; those of records that are not kept go to the next kept one
    of the thread.

    The start-up hook makes its marks in a row: the gap before the first is the program's, those between them
    are the hook's own and count for nothing.
    """
    is_workload = (trace.flags & _decoder.NOT_WORKLOAD) == 0
    positions = np.flatnonzero(is_workload)
    order = positions[np.argsort(trace.thread[positions], kind="stable")]
    thread = trace.thread[order]
    is_mark = trace.kind[order] == KINDS["mark"]
    starts_thread = np.r_[True, thread[1:] != thread[:-1]][: len(order)]
    follows_mark = np.r_[False, is_mark[:-1]][: len(order)] & ~starts_thread
    gap_ns = np.where(is_mark & follows_mark, 0, trace.gap_ns[order])
    is_blocked = (trace.flags[order] & _decoder.BLOCKED) != 0

    kept = np.flatnonzero(is_kept[order])
    # The sum since the previous kept record, or since the thread's first one.
    thread_starts = np.flatnonzero(starts_thread)
    begin = thread_starts[np.searchsorted(thread_starts, kept, side="right") - 1] if len(kept) else kept
    begin = np.maximum(begin, np.r_[0, kept[:-1] + 1][: len(kept)])
    total_gap = np.r_[0, np.cumsum(gap_ns)]
    total_blocked = np.r_[0, np.cumsum(is_blocked)]
    carried_ns = trace.gap_ns.copy()
    carried_ns[order[kept]] = total_gap[kept + 1] - total_gap[begin]
    blocked = np.zeros(len(trace.kind), dtype=bool)
    blocked[order[kept]] = total_blocked[kept + 1] > total_blocked[begin]
    return carried_ns, blocked


def steady(
    gap_ns: np.ndarray, blocked: np.ndarray, key: np.ndarray, thread: np.ndarray, iteration: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Medians of the gaps, and majorities of the blocked flags, of the same call over the iterations.

    The same call is the n-th one of a key in its thread and iteration. So calls are aligned also where
    iterations differ by a few of them, and a call that only one iteration makes keeps its own gap.
    """
    call = combine(key, thread.astype(np.uint64))
    position = occurrence(combine(call, iteration.astype(np.uint64)))
    _, group = np.unique(combine(call, position.astype(np.uint64)), return_inverse=True)
    order = np.lexsort((gap_ns, group))
    counts = np.bincount(group)
    starts = np.cumsum(counts) - counts
    ordered_ns = gap_ns[order]
    median_ns = (ordered_ns[starts + (counts - 1) // 2] + ordered_ns[starts + counts // 2]) // 2
    num_blocked = np.bincount(group, weights=blocked)
    return median_ns[group], (2 * num_blocked >= counts)[group]
