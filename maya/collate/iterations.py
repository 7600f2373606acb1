"""The steady part of a trace: whole iterations without operator ranges."""

from dataclasses import dataclass, replace

import numpy as np

from maya.collate.hashing import record_keys
from maya.errors import TraceError
from maya.trace import KINDS, Trace, _decoder

DEVICE_KINDS = ("kernel", "gemm", "conv", "attention", "library_op", "memcpy", "memset", "collective")
"""Records of work that a device does."""

MAX_PERIODS = 3
"""Iterations taken from a program without iteration marks, the newest ones."""

MAX_REPEATS = 97
"""Further ones from which only host gaps are taken; maya/capture/startup/maya_startup/iterations.py."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Positions in the global order of a trace.

    Iteration i of the steady part is [boundaries[i], boundaries[i + 1]). ``repeats`` are the boundaries of
    all plain iterations, those among them: the others tell host gaps only. ``shapes`` is the stretch with
    operator ranges, (0, 0) where there is none.
    """

    boundaries: np.ndarray
    repeats: np.ndarray
    shapes: tuple[int, int]

    @property
    def num_iterations(self) -> int:
        return len(self.boundaries) - 1

    def newest(self, num_iterations: int) -> "Cut":
        """The same with the last iterations only."""
        return replace(self, boundaries=self.boundaries[-num_iterations - 1 :])


def find_iterations(trace: Trace) -> Cut:
    """Cuts a trace by its iteration marks, or where there are none by the period of its device operations.

    Raises:
        TraceError: there is no whole plain iteration.
    """
    marks = trace.table("mark")
    ends = marks.index[marks["name"] == "iteration"].to_numpy()
    shapes = _shapes_range(trace)
    if not len(ends):
        periods = _periods(trace)
        return Cut(boundaries=periods[-MAX_PERIODS - 1 :], repeats=periods, shapes=shapes)
    # What precedes the first mark holds the program's start as well and is no iteration of its own.
    plain = ends[ends >= _steady_start(trace, ends, shapes)]
    if len(plain) < 2:
        raise TraceError(
            f"Trace {trace.path} has {len(ends)} iterations, but no whole one after the warm-up and the one "
            "in which operator sizes are recorded. Let the program run more steps, or capture fewer of them "
            "(capture.warmup_iterations)."
        )
    repeats = plain + 1
    repeat_marks = marks.index[marks["name"] == "repeats"].to_numpy()
    steady = repeats[repeats <= repeat_marks[0]] if len(repeat_marks) else repeats
    return Cut(boundaries=steady, repeats=repeats, shapes=shapes)


def _shapes_range(trace: Trace) -> tuple[int, int]:
    marks = trace.table("mark")
    marks = marks[marks["name"] == "shapes"]
    begins = marks.index[marks["value"] == 1]
    if not len(begins):
        return 0, 0
    ends = marks.index[marks["value"] == 0]
    return int(begins[0]), int(ends[0]) if len(ends) else len(trace.kind)


def _steady_start(trace: Trace, ends: np.ndarray, shapes: tuple[int, int]) -> int:
    if shapes == (0, 0):
        # The second iteration may still allocate and tune; without a third there is no better one.
        return int(ends[min(1, max(len(ends) - 2, 0))])
    device_kinds = np.array([KINDS[kind] for kind in DEVICE_KINDS], dtype=np.uint8)
    operations = shapes[0] + np.flatnonzero(np.isin(trace.kind[shapes[0] : shapes[1]], device_kinds))
    return int(operations[-1]) if len(operations) else shapes[0]


def _periods(trace: Trace) -> np.ndarray:
    device_kinds = np.array([KINDS[kind] for kind in DEVICE_KINDS], dtype=np.uint8)
    positions = np.flatnonzero(
        np.isin(trace.kind, device_kinds) & ((trace.flags & _decoder.NOT_WORKLOAD) == 0)
    )
    keys = record_keys(trace, positions)
    period, covered = _decoder.repeated_suffix(keys)
    if not len(positions):
        raise TraceError(
            f"Trace {trace.path} has no device operations. Check that the program puts its model and data on "
            "the device `cuda`, in this process and not in one that it starts."
        )
    if period == 0:
        raise TraceError(
            f"Trace {trace.path} has no iteration marks, as no optimizer of torch.optim stepped, and its "
            f"{len(positions)} device operations do not repeat. Let the program run at least three equal "
            "iterations."
        )
    first = len(keys) - covered
    # A program of one kind is cut at the same operation on every rank: before the rarest of the period.
    values, places, counts = np.unique(keys[first : first + period], return_index=True, return_counts=True)
    rarest = np.lexsort((values, counts))[0]
    starts = np.arange(first + places[rarest], len(keys) + 1, period)
    # The last whole period may end with the trace.
    boundaries = np.r_[positions, len(trace.kind)][starts]
    if len(boundaries) < 2:
        boundaries = np.r_[positions[[first, first + period]]]
    return boundaries[-MAX_PERIODS - MAX_REPEATS - 1 :]
