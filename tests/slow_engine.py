"""The simulation written as plainly as possible: looks through all rows at each step. For comparison only.

Takes and gives the columns of native/simulator/operations.h.
"""

from collections import defaultdict
from typing import Any

import numpy as np

from maya.simulator.lowering import HOST_WAIT, STREAM_KIND, UNIT

QUEUED = (UNIT["compute"], UNIT["copy_in"], UNIT["copy_out"])
DEVICE, HOST = 0, 1  # order of events at one instant


class SlowEngine:
    def __init__(
        self, columns: dict[str, Any], launch_latency_ns: int, dependency_gap_ns: int, queue_depth: int
    ) -> None:
        self.c, self.latency, self.gap, self.depth = (
            columns,
            launch_latency_ns,
            dependency_gap_ns,
            queue_depth,
        )
        n = len(columns["unit"])
        self.rank_of = np.repeat(np.arange(len(columns["rank_begin"]) - 1), np.diff(columns["rank_begin"]))
        self.host_start, self.host_end, self.start, self.end = (dict[int, int]() for _ in range(4))
        self.issue_time: dict[int, int] = {}
        self.needs: dict[int, list[int]] = {}  # rows by the rows or calls that wait for them
        self.streams: dict[int, list[int]] = defaultdict(list)  # rows in the order of issue
        self.communicators: dict[int, list[int]] = defaultdict(list)
        self.free: dict[tuple[int, int], int] = defaultdict(int)
        self.lanes: dict[int, list[int]] = defaultdict(list)
        for row in range(n):
            self.lanes[columns["lane"][row]].append(row)

    def run(self) -> list[np.ndarray]:
        while candidates := [*self.next_calls(), *self.ready_rows()]:
            time, what, row = min(candidates)
            if what == HOST:
                self.call(row, time)
            else:
                unit = (self.rank_of[row], self.c["unit"][row])
                self.start[row] = max(time, self.free[unit])
                self.end[row] = self.free[unit] = self.start[row] + self.c["duration_ns"][row]
            while self.settle():
                pass
        times = (self.host_start, self.host_end, self.start, self.end)
        return [np.array([known.get(row, -1) for row in range(len(self.c["unit"]))]) for known in times]

    def next_calls(self) -> list[tuple[int, int, int]]:
        calls = []
        for rows in self.lanes.values():
            done = sum(row in self.host_start for row in rows)
            if done == len(rows):
                continue
            row, after = rows[done], self.c["handoff"][rows[done]]
            before = [*rows[done - 1 : done], *([after] if after >= 0 else [])]
            if all(other in self.host_end for other in before):
                free = max([0, *(self.host_end[other] for other in before)])
                calls.append((free + self.c["gap_ns"][row], HOST, row))
        return calls

    def ready_rows(self) -> list[tuple[int, int, int]]:
        waiting = [row for row in self.needs if self.c["unit"][row] in QUEUED and row not in self.start]
        return [(self.ready(row), DEVICE, row) for row in waiting if self.is_ready(row)]

    def last(self, streams: list[int]) -> list[int]:
        return [self.streams[stream][-1] for stream in streams if self.streams[stream]]

    def of_kind(self, rank: int, *kinds: str) -> list[int]:
        chosen = [STREAM_KIND[kind] for kind in kinds]
        return [
            stream
            for stream, (kind, of_rank) in enumerate(
                zip(self.c["stream_kind"], self.c["stream_rank"], strict=True)
            )
            if kind in chosen and of_rank == rank
        ]

    def call(self, row: int, time: int) -> None:
        self.host_start[row] = time
        rank, stream, wait = self.rank_of[row], self.c["stream"][row], self.c["host_wait"][row]
        kind = self.c["stream_kind"][stream] if stream >= 0 else -1
        waits_on = [self.c["waits_on"][row]] if self.c["waits_on"][row] >= 0 else []
        pending = [stream] + (self.of_kind(rank, "blocking") if kind == STREAM_KIND["legacy_default"] else [])
        if self.c["unit"][row] == UNIT["none"]:
            self.needs[row] = {
                HOST_WAIT["operation"]: waits_on,
                HOST_WAIT["stream"]: self.last(pending),
                HOST_WAIT["device"]: self.last(self.of_kind(rank, *STREAM_KIND)),
            }.get(wait, [])
            return
        joins = self.of_kind(rank, "legacy_default") if kind == STREAM_KIND["blocking"] else []
        self.needs[row] = self.last(pending + joins) + waits_on
        if self.c["unit"][row] == UNIT["collective"]:
            chain = self.communicators[self.c["communicator"][row]]
            self.needs[row] += chain[-1:]
            chain.append(row)
        self.streams[stream].append(row)

    def is_ready(self, row: int) -> bool:
        return row in self.issue_time and all(other in self.end for other in self.needs[row])

    def ready(self, row: int) -> int:
        marker = self.c["unit"][row] == UNIT["marker"]
        gap, latency = (0, 0) if marker else (self.gap, self.latency)
        return max([self.issue_time[row] + latency, *(self.end[other] + gap for other in self.needs[row])])

    def queue_place(self, row: int) -> list[int]:
        rows = [r for r in self.streams[self.c["stream"][row]] if self.c["unit"][r] != UNIT["marker"]]
        if self.c["unit"][row] == UNIT["marker"] or rows.index(row) < self.depth:
            return []
        return [rows[rows.index(row) - self.depth]]

    def settle(self) -> bool:
        """Applies one consequence of what is known; False when there is none left."""
        for row, time in self.host_start.items():
            if row in self.host_end:
                continue
            unit, call = self.c["unit"][row], self.c["call_ns"][row]
            if unit == UNIT["none"] and all(other in self.end for other in self.needs[row]):
                self.host_end[row] = max([time, *(self.end[other] for other in self.needs[row])]) + call
                return True
            if unit == UNIT["none"]:
                continue
            if row not in self.issue_time:
                place = self.queue_place(row)
                if all(other in self.end for other in place):
                    self.issue_time[row] = max([time + call, *(self.end[other] for other in place)])
                    return True
            elif self.c["host_wait"][row] != HOST_WAIT["completion"] or row in self.end:
                waits = self.c["host_wait"][row] == HOST_WAIT["completion"]
                self.host_end[row] = max(self.issue_time[row], self.end[row] if waits else 0)
                return True
        return any(self.advance(row) for row in self.needs if row not in self.end and self.is_ready(row))

    def advance(self, row: int) -> bool:
        unit, duration = self.c["unit"][row], self.c["duration_ns"][row]
        if unit in (UNIT["marker"], UNIT["host_function"]):
            self.start[row] = self.ready(row)
            self.end[row] = self.start[row] + duration
            return True
        if unit != UNIT["collective"]:
            return False
        if row not in self.start:
            self.start[row] = self.ready(row)
            return True
        ends = [self.start[row] + duration] if not self.meets(row) else []
        for rendezvous in self.meets(row):
            rows = [other for other in self.start for met in self.meets(other) if met == rendezvous]
            if len(rows) < self.c["rendezvous_arrivals"][rendezvous]:
                return False
            longest = max(self.c["duration_ns"][other] for other in rows)
            ends.append(max(self.start[other] for other in rows) + longest)
        self.end[row] = max(ends)
        return True

    def meets(self, row: int) -> list[int]:
        begin, end = self.c["rendezvous_begin"][row], self.c["rendezvous_end"][row]
        return list(self.c["rendezvous"][begin:end])
