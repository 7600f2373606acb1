"""Builds small jobs by hand, with durations and rendezvous, for tests of the stages after the collation.

    builder = JobBuilder()
    rank = builder.rank(0)
    first = rank.kernel(duration_us=10, stream=7)
    event = rank.record(stream=7)
    rank.wait(event, stream=8)
    job, annotations = builder.build()

Times are microseconds; every method returns the row of the operation it adds.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from maya.collate.job import Communicator, Job, RankTrace
from maya.config.schema import ClusterConfig, GpuConfig
from maya.estimators.annotation import BASES, Annotation

BLOCKED, FROM_GRAPH, NOT_WORKLOAD = 1, 2, 4
H2D, D2H, D2D, H2H, P2P = range(5)


def make_gpu(**changes: Any) -> GpuConfig:
    """A GPU with round numbers: no latency and no gap, so that times are sums of durations."""
    values: dict[str, Any] = {
        "name": "test",
        "device_name": "Test GPU",
        "compute_capability": "9.0",
        "num_sms": 100,
        "memory_bytes": 80 * 10**9,
        "hbm_bytes_per_s": 3e12,
        "peak_flops": {"bf16": 1e15, "fp32": 5e13},
        "context_bytes": 500 * 10**6,
        "nccl_channels": 24,
        "nccl_channels_per_peer": 32,
        "kernel_gap_us": 0.0,
        "launch_latency_us": 0.0,
    }
    return GpuConfig(**(values | changes))


def make_cluster(**changes: Any) -> ClusterConfig:
    """A node of eight GPUs whose host is as fast as the one that captured."""
    return ClusterConfig(**({"name": "test"} | changes))


@dataclass
class RankBuilder:
    """Adds operations to one rank, in the order of their calls."""

    builder: "JobBuilder"
    number: int
    members: tuple[int, ...]
    rows: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    rendezvous: list[int] = field(default_factory=list)
    iteration: int = 0
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    peak_device_bytes: int = 0
    peak_nccl_bytes: int = 0

    def add(
        self,
        kind: str,
        *,
        stream: int = -1,
        duration_us: float = 0,
        gap_us: float = 0,
        thread: int = 0,
        flags: int = 0,
        waits_on: int = -1,
        rendezvous: Sequence[int] = (),
        basis: str = "bound",
        op_kind: str = "",
        flops: float = 0,
        **details: Any,
    ) -> int:
        row = len(self.rows)
        begin = len(self.rendezvous)
        self.rendezvous += rendezvous
        self.rows.append(
            {
                "kind": kind,
                "thread": thread,
                "flags": flags,
                "gap_ns": round(gap_us * 1e3),
                "stream": stream,
                "iteration": self.iteration,
                "waits_on": waits_on,
                "rendezvous_begin": begin,
                "rendezvous_end": len(self.rendezvous),
                "duration_ns": round(duration_us * 1e3),
                "basis": BASES.index(basis),
                "op_kind": op_kind,
                "flops": flops,
            }
        )
        if details:
            self.details[kind][row] = details
        return row

    def kernel(self, duration_us: float, stream: int = 0, **options: Any) -> int:
        defaults = {"name": "kernel", "op_kind": "elementwise", "operator": "aten::op", "shapes": ""}
        return self.add("kernel", stream=stream, duration_us=duration_us, **(defaults | options))

    def gemm(
        self, duration_us: float, flops: float, stream: int = 0, type_a: int = 14, **options: Any
    ) -> int:
        """``type_a`` is a cudaDataType: 14 is bfloat16."""
        defaults = {
            "m": 1,
            "n": 1,
            "k": 1,
            "batch": 1,
            "compute_type": 68,
            "op_kind": "gemm",
            "operator": "aten::mm",
        }
        return self.add(
            "gemm", stream=stream, duration_us=duration_us, flops=flops, type_a=type_a, **(defaults | options)
        )

    def memcpy(
        self,
        direction: int,
        duration_us: float,
        stream: int = 0,
        *,
        num_bytes: int = 1 << 20,
        pinned: bool = True,
        blocking: bool = False,
        **options: Any,
    ) -> int:
        return self.add(
            "memcpy",
            stream=stream,
            duration_us=duration_us,
            op_kind="copy",
            direction=direction,
            bytes=num_bytes,
            host_pinned=int(pinned),
            is_blocking=int(blocking),
            **options,
        )

    def record(self, stream: int, **options: Any) -> int:
        return self.add("event_record", stream=stream, event=1, version=1, **options)

    def wait(self, event_row: int, stream: int, **options: Any) -> int:
        """``event_row`` is what ``record`` returned, -1 for an event that was never recorded."""
        return self.add("stream_wait_event", stream=stream, waits_on=event_row, event=1, version=1, **options)

    def event_sync(self, event_row: int, **options: Any) -> int:
        return self.add("event_sync", waits_on=event_row, event=1, version=1, **options)

    def stream_sync(self, stream: int, **options: Any) -> int:
        return self.add("stream_sync", stream=stream, **options)

    def device_sync(self, **options: Any) -> int:
        return self.add("device_sync", **options)

    def free(self, memory: int = 0, **options: Any) -> int:
        return self.add("free", address=0, bytes=0, memory=memory, **options)

    def stream_create(self, stream: int, *, non_blocking: bool, **options: Any) -> int:
        row = self.add("stream_create", **options)
        self.details["stream_create"][row] = {"stream": stream, "flags": int(non_blocking), "priority": 0}
        return row

    def collective(
        self, communicator: int, duration_us: float, stream: int = 0, op: str = "all_reduce", **options: Any
    ) -> int:
        meet = self.builder.meet((communicator, op), self.number)
        return self._collective(communicator, [meet], duration_us, stream, op, -1, **options)

    def exchange(
        self,
        communicator: int,
        duration_us: float,
        stream: int = 0,
        *,
        send_to: int | None = None,
        receive_from: int | None = None,
        **options: Any,
    ) -> int:
        """A send, a receive, or both in one group."""
        meets = []
        for source, target in ((self.number, send_to), (receive_from, self.number)):
            if source is not None and target is not None:
                meets.append(self.builder.meet((communicator, source, target), self.number))
        peer = send_to if send_to is not None else receive_from
        op = "send" if send_to is not None else "recv"
        return self._collective(communicator, meets, duration_us, stream, op, peer, **options)

    def _collective(
        self,
        communicator: int,
        meets: list[int],
        duration_us: float,
        stream: int,
        op: str,
        peer: Any,
        **options: Any,
    ) -> int:
        values = {"op_kind": op, "basis": "model", "dtype": "bfloat16", "count": 1, "bytes": 2} | options
        return self.add(
            "collective",
            stream=stream,
            duration_us=duration_us,
            rendezvous=meets,
            communicator=communicator,
            op=op,
            peer=peer,
            **values,
        )

    def build(self) -> tuple[RankTrace, Annotation]:
        table = pd.DataFrame(self.rows)
        annotation = Annotation(
            duration_ns=table["duration_ns"].to_numpy(dtype=np.int64),
            basis=table["basis"].to_numpy(dtype=np.uint8),
            op_kind=table["op_kind"].to_numpy(dtype=object),
            dtype=np.full(len(table), "", object),
            flops=table["flops"].to_numpy(dtype=np.float64),
            bytes=np.zeros(len(table)),
        )
        trace = RankTrace(
            rank=self.number,
            members=self.members,
            ops=table.drop(columns=["duration_ns", "basis", "op_kind", "flops"]),
            details={
                kind: pd.DataFrame.from_dict(rows, orient="index") for kind, rows in self.details.items()
            },
            rendezvous=np.array(self.rendezvous, dtype=np.int64),
            num_iterations=self.iteration + 1,
            peak_allocated_bytes=self.peak_allocated_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            peak_device_bytes=self.peak_device_bytes,
            peak_nccl_bytes=self.peak_nccl_bytes,
        )
        return trace, annotation


class JobBuilder:
    """Collects ranks and communicators; the n-th operation of each rank on a communicator meets."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankBuilder] = {}
        self.communicators: list[Communicator] = []
        self._counts: dict[tuple[Any, ...], int] = defaultdict(int)
        self._ids: dict[tuple[Any, ...], int] = {}
        self._arrivals: list[int] = []

    def rank(self, number: int, members: tuple[int, ...] | None = None) -> RankBuilder:
        if number not in self.ranks:
            self.ranks[number] = RankBuilder(self, number, members or (number,))
        return self.ranks[number]

    def communicator(self, ranks: Sequence[int], label: str = "group") -> int:
        self.communicators.append(Communicator(ranks=tuple(ranks), label=label))
        return len(self.communicators) - 1

    def meet(self, what: tuple[Any, ...], rank: int) -> int:
        """Id of the rendezvous that is the rank's next one of this kind."""
        number = self._counts[(*what, rank)]
        self._counts[(*what, rank)] += 1
        key = (*what, number)
        if key not in self._ids:
            self._ids[key] = len(self._arrivals)
            participants = 2 if len(what) == 3 else len(self.communicators[what[0]].ranks)
            self._arrivals.append(participants)
        return self._ids[key]

    def build(self) -> tuple[Job, list[Annotation]]:
        built = [self.ranks[number].build() for number in sorted(self.ranks)]
        job = Job(
            world_size=sum(len(trace.members) for trace, _ in built),
            gpus_per_node=8,
            gpu="test",
            ranks=[trace for trace, _ in built],
            communicators=self.communicators,
            rendezvous_arrivals=np.array(self._arrivals, dtype=np.int64),
        )
        return job, [annotation for _, annotation in built]
