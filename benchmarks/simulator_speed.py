"""Speed of the event engine: operations per second on a synthetic pipeline job.

    python benchmarks/simulator_speed.py [--ranks 8] [--operations 200000]

Each rank launches kernels, records and waits for events between two streams, and meets the others in an
all-reduce every hundred operations. Prints operations per second of the engine and of the lowering.
"""

import argparse
import sys
import time

import numpy as np
import pandas as pd

from maya.collate.job import Communicator, Job, RankTrace
from maya.config.schema import ClusterConfig
from maya.estimators.annotation import Annotation
from maya.simulator import _engine
from maya.simulator.lowering import engine_columns, lower_rank

PERIOD = 100  # operations between two all-reduces


def synthetic_rank(rank: int, num_operations: int) -> tuple[RankTrace, Annotation]:
    """A rank that computes on stream 7 and communicates on stream 8."""
    number = np.arange(num_operations)
    place = number % PERIOD
    kind = np.where(place < PERIOD - 4, "kernel", "").astype(object)
    for offset, name in (
        (4, "event_record"),
        (3, "stream_wait_event"),
        (2, "collective"),
        (1, "event_query"),
    ):
        kind[place == PERIOD - offset] = name
    stream = np.where(np.isin(kind, ("kernel", "event_record")), 7, 8)
    is_collective = kind == "collective"
    meetings = np.cumsum(is_collective)
    ops = pd.DataFrame(
        {
            "kind": kind,
            "thread": 0,
            "flags": 0,
            "gap_ns": 3000,
            "stream": np.where(kind == "event_query", -1, stream),
            "iteration": 0,
            "waits_on": np.where(kind == "stream_wait_event", number - 1, -1),
            "rendezvous_begin": meetings - is_collective,
            "rendezvous_end": meetings,
        }
    )
    rows = number[is_collective]
    random = np.random.default_rng(rank)
    duration_ns = np.where(kind == "kernel", random.integers(2000, 12000, num_operations), 0)
    duration_ns[is_collective] = 100_000
    trace = RankTrace(
        rank=rank,
        members=(rank,),
        ops=ops,
        details={"collective": pd.DataFrame({"communicator": 0}, index=rows)},
        rendezvous=np.arange(len(rows)),
        num_iterations=1,
        peak_allocated_bytes=0,
        peak_reserved_bytes=0,
        num_communicators=1,
    )
    zeros = np.zeros(num_operations)
    annotation = Annotation(
        duration_ns=duration_ns,
        basis=zeros.astype(np.uint8),
        op_kind=kind,
        dtype=np.full(num_operations, "", object),
        flops=zeros,
        bytes=zeros,
    )
    return trace, annotation


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--operations", type=int, default=200_000, help="operations of each rank")
    options = parser.parse_args(arguments)
    made = [synthetic_rank(rank, options.operations) for rank in range(options.ranks)]
    job = Job(
        world_size=options.ranks,
        gpus_per_node=8,
        gpu="synthetic",
        ranks=[trace for trace, _ in made],
        communicators=[Communicator(ranks=tuple(range(options.ranks)), label="all")],
        rendezvous_arrivals=np.full(options.operations // PERIOD + 1, options.ranks),
    )
    cluster = ClusterConfig(name="synthetic")
    start = time.perf_counter()
    columns = engine_columns(job, [lower_rank(trace, annotation, cluster) for trace, annotation in made])
    lowered = time.perf_counter()
    _, host_end, _, end = _engine.simulate(
        **columns, launch_latency_ns=5800, dependency_gap_ns=1400, queue_depth=1024
    )
    done = time.perf_counter()
    total = options.ranks * options.operations
    simulated_s = max(host_end.max(), end.max()) / 1e9
    print(f"{total:,} operations of {options.ranks} ranks, {simulated_s:.2f} s of simulated time")
    print(f"lowering {total / (lowered - start) / 1e6:6.2f} M operations/s ({lowered - start:.2f} s)")
    print(f"engine   {total / (done - lowered) / 1e6:6.2f} M operations/s ({done - lowered:.2f} s)")


if __name__ == "__main__":
    main(sys.argv[1:])
