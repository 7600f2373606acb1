"""Host time between calls: kept across records that are left out, and freed of disturbances.

docs/host-time.md says what is measured and how repeatable it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from maya.collate.hashing import combine, occurrence
from maya.trace import KINDS, Trace, _decoder

STRETCH_NS = 300_000
"""Host time that is taken from one execution: short against the phases in which a machine is disturbed, long
against the differences between undisturbed executions of the same calls."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class GapSamples:
    """The gaps of one rank over all its plain iterations, one element a call, in the order of the calls.

    ``call`` is equal for the same call in all iterations and in all ranks of the same operations: the n-th
    one of a key in its thread and iteration. So calls are aligned also where iterations differ by a few of
    them. ``thread`` counts the threads in the order in which they first do something.
    """

    call: np.ndarray  # uint64
    thread: np.ndarray  # int64
    iteration: np.ndarray  # int64
    gap_ns: np.ndarray  # int64
    is_blocked: np.ndarray  # bool


def sample_gaps(
    keys: np.ndarray, thread: np.ndarray, iteration: np.ndarray, gap_ns: np.ndarray, is_blocked: np.ndarray
) -> GapSamples:
    """Aligns the calls of a rank; all arrays have one element a call."""
    _, first, inverse = np.unique(thread, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[inverse]
    of_thread = combine(keys, number.astype(np.uint64))
    place = occurrence(combine(of_thread, iteration.astype(np.uint64)))
    return GapSamples(
        call=combine(of_thread, place.astype(np.uint64)),
        thread=number,
        iteration=iteration,
        gap_ns=gap_ns,
        is_blocked=is_blocked,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SteadyGaps:
    """What one execution of an iteration is taken to cost the host, by call."""

    call: np.ndarray  # uint64, sorted
    gap_ns: np.ndarray
    is_blocked: np.ndarray

    def of(self, calls: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gaps in ns and blocked flags of calls that were among the samples."""
        place = np.searchsorted(self.call, calls)
        return self.gap_ns[place], self.is_blocked[place]


def steady_gaps(ranks: Sequence[GapSamples]) -> SteadyGaps:
    """Gaps of ranks of the same operations, from all executions: every iteration of every rank.

    What disturbs a host (other processes in its caches, a core that is shared, collections of garbage) only
    adds time, and lasts longer than a few calls. So the calls that every execution makes are cut into
    stretches of `STRETCH_NS`, and each stretch is taken as it was in one execution, the lower quartile; the
    fastest would depend on how many there are. A call that only some executions make has the median of its
    gaps, and a thread slept before a call where it did so in the majority of the executions.
    """
    offsets = np.cumsum([0, *(int(rank.iteration.max(initial=-1)) + 1 for rank in ranks)])
    execution = np.concatenate([rank.iteration + start for rank, start in zip(ranks, offsets, strict=False)])
    thread = np.concatenate([rank.thread for rank in ranks])
    gap_ns = np.concatenate([rank.gap_ns for rank in ranks])
    is_blocked = np.concatenate([rank.is_blocked for rank in ranks])
    call, first, group, counts = np.unique(
        np.concatenate([rank.call for rank in ranks]),
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    result_ns = _medians(gap_ns, group, counts)

    # First occurrences of these calls are all in the first execution, so they tell the order of the calls.
    common = np.flatnonzero(counts == offsets[-1])
    common = common[np.lexsort((first[common], thread[first[common]]))]
    if len(common):
        place = np.full(len(call), -1)
        place[common] = np.arange(len(common))
        of_call = place[group]
        samples_ns = np.empty((len(common), offsets[-1]), dtype=np.int64)
        samples_ns[of_call[of_call >= 0], execution[of_call >= 0]] = gap_ns[of_call >= 0]
        result_ns[common] = _undisturbed(samples_ns, result_ns[common], thread[first[common]])
    return SteadyGaps(
        call=call, gap_ns=result_ns, is_blocked=2 * np.bincount(group, weights=is_blocked) >= counts
    )


def _medians(values: np.ndarray, group: np.ndarray, counts: np.ndarray) -> np.ndarray:
    order = np.lexsort((values, group))
    starts = np.cumsum(counts) - counts
    ordered = values[order]
    return (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) // 2


def _undisturbed(samples_ns: np.ndarray, median_ns: np.ndarray, thread: np.ndarray) -> np.ndarray:
    """For each row of int64[calls, executions] its value in the execution chosen for its stretch."""
    before_ns = np.cumsum(median_ns) - median_ns
    begins_thread = np.r_[True, thread[1:] != thread[:-1]]
    thread_begin_ns = before_ns[begins_thread][np.cumsum(begins_thread) - 1]
    stretch = (before_ns - thread_begin_ns) // STRETCH_NS
    begins = np.r_[True, (stretch[1:] != stretch[:-1]) | begins_thread[1:]]
    sums_ns = np.add.reduceat(samples_ns, np.flatnonzero(begins), axis=0)
    quartile = sums_ns.shape[1] // 4
    chosen = np.argpartition(sums_ns, quartile, axis=1)[:, quartile]
    return samples_ns[np.arange(len(samples_ns)), chosen[np.cumsum(begins) - 1]]
