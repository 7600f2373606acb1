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
    """Nanoseconds of the window, which compute, exposed parts, gaps and host-bound time fill between them."""

    compute_ns: int
    communication_ns: int  # any collective in progress, hidden or not
    exposed_communication_ns: int  # ... and no compute beside it
    rendezvous_wait_ns: int  # of it, while every collective in progress waits for a late rank
    exposed_copy_ns: int  # copies, with neither compute nor communication beside them
    launch_gap_ns: int  # nothing runs, but an operation is issued: gaps between queued ones, host functions
    host_bound_ns: int  # nothing runs, and nothing is issued


def rank_usage(
    times: RankTimes, annotation: Annotation, window_ns: tuple[int, int], launch_latency_ns: int
) -> Usage:
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
    is_device = (times.unit != UNIT["none"]) & (times.unit != UNIT["marker"])
    arrived_ns = times.host_end_ns[is_device] + launch_latency_ns
    layers.append((arrived_ns, np.maximum(arrived_ns, start[is_device])))
    length_ns, is_active = _coverage(layers, window_ns)
    compute, transfer, waiting, copy, queued = is_active
    communication = transfer | waiting
    idle = ~(compute | communication | copy)

    def total(condition: Array) -> int:
        return int(length_ns[condition].sum())

    return Usage(
        compute_ns=total(compute),
        communication_ns=total(communication),
        exposed_communication_ns=total(communication & ~compute),
        rendezvous_wait_ns=total(waiting & ~transfer & ~compute),
        exposed_copy_ns=total(copy & ~communication & ~compute),
        launch_gap_ns=total(idle & queued),
        host_bound_ns=total(idle & ~queued),
    )


def _coverage(layers: list[tuple[Array, Array]], window_ns: tuple[int, int]) -> tuple[Array, Array]:
    """Splits the window where any interval begins or ends; returns lengths and bool[layers, pieces]."""
    begin, end = window_ns
    clipped = [(np.clip(starts, begin, end), np.clip(ends, begin, end)) for starts, ends in layers]
    borders = np.sort(np.concatenate([np.array(window_ns), *(part for pair in clipped for part in pair)]))
    borders = borders[np.concatenate([[True], np.diff(borders) > 0])]
    is_active = np.zeros((len(layers), len(borders) - 1), dtype=bool)
    for layer, (starts, ends) in enumerate(clipped):
        begun = np.bincount(np.searchsorted(borders, starts), minlength=len(borders))
        ended = np.bincount(np.searchsorted(borders, ends), minlength=len(borders))
        is_active[layer] = np.cumsum(begun - ended)[:-1] > 0
    return np.diff(borders), is_active
