"""How one rank spends the measured window: on compute, communication, copies, or idle for want of work."""

from dataclasses import dataclass

import numpy as np

from maya.collate.job import Array
from maya.estimators.annotation import Annotation
from maya.simulator.lowering import UNIT
from maya.simulator.simulate import RankTimes

COMPUTE_UNITS = (UNIT["compute"],)
COPY_UNITS = (UNIT["copy_in"], UNIT["copy_out"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Nanoseconds of the window: compute, exposed communication and copies, host-bound time add up to it."""

    compute_ns: int
    communication_ns: int  # any collective in progress, hidden or not
    exposed_communication_ns: int  # ... and no compute beside it
    rendezvous_wait_ns: int  # of it, while every collective in progress waits for a late rank
    exposed_copy_ns: int  # copies, with neither compute nor communication beside them
    host_bound_ns: int  # the device has nothing to do


def rank_usage(times: RankTimes, annotation: Annotation, window_ns: tuple[int, int]) -> Usage:
    """Usage of the window by one rank."""
    is_collective = times.unit == UNIT["collective"]
    start, end = times.start_ns, times.end_ns
    transfer_start = end - annotation.duration_ns
    layers = [
        (start[np.isin(times.unit, COMPUTE_UNITS)], end[np.isin(times.unit, COMPUTE_UNITS)]),
        (transfer_start[is_collective], end[is_collective]),
        (start[is_collective], transfer_start[is_collective]),
        (start[np.isin(times.unit, COPY_UNITS)], end[np.isin(times.unit, COPY_UNITS)]),
    ]
    length_ns, is_active = _coverage(layers, window_ns)
    compute, transfer, waiting, copy = is_active
    communication = transfer | waiting

    def total(condition: Array) -> int:
        return int(length_ns[condition].sum())

    return Usage(
        compute_ns=total(compute),
        communication_ns=total(communication),
        exposed_communication_ns=total(communication & ~compute),
        rendezvous_wait_ns=total(waiting & ~transfer & ~compute),
        exposed_copy_ns=total(copy & ~communication & ~compute),
        host_bound_ns=total(~(compute | communication | copy)),
    )


def _coverage(layers: list[tuple[Array, Array]], window_ns: tuple[int, int]) -> tuple[Array, Array]:
    """Splits the window where any interval begins or ends; returns lengths and bool[layers, pieces]."""
    begin, end = window_ns
    clipped = [(np.clip(starts, begin, end), np.clip(ends, begin, end)) for starts, ends in layers]
    borders = np.unique(np.concatenate([np.array(window_ns), *(part for pair in clipped for part in pair)]))
    is_active = np.zeros((len(layers), len(borders) - 1), dtype=bool)
    for layer, (starts, ends) in enumerate(clipped):
        change = np.zeros(len(borders), dtype=np.int64)
        np.add.at(change, np.searchsorted(borders, starts), 1)
        np.add.at(change, np.searchsorted(borders, ends), -1)
        is_active[layer] = np.cumsum(change)[:-1] > 0
    return np.diff(borders), is_active
