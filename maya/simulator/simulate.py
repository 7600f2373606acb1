"""Simulation of a job: when each call and each operation of every simulated rank starts and ends."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from maya.collate.job import Array, Job
from maya.config.schema import ClusterConfig, GpuConfig
from maya.errors import SimulationError
from maya.estimators.annotation import Annotation
from maya.simulator import _engine, host_costs
from maya.simulator.diagnosis import describe_deadlock
from maya.simulator.lowering import UNIT, engine_columns, lower_rank


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """Times of one simulated rank, aligned with the rows of ``RankTrace.ops``.

    All int64 nanoseconds from the start of the simulated iterations. A collective starts when the rank
    reaches it; how long it waits for others is ``end_ns - start_ns`` less its duration.
    """

    host_start_ns: Array
    host_end_ns: Array
    start_ns: Array  # device part, -1 for rows that put nothing on a stream
    end_ns: Array
    unit: Array  # uint8, index into maya.simulator._engine.UNITS: what the row occupies


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """Times of all simulated ranks, in the order of ``Job.ranks``."""

    ranks: list[RankTimes]
    iteration_end_ns: Array  # int64[iterations]: when the last rank has ended all work of iterations <= i
    launch_latency_ns: int  # from the return of a launch to the start of its kernel on an idle device

    @property
    def num_iterations(self) -> int:
        return len(self.iteration_end_ns)

    @property
    def makespan_ns(self) -> int:
        return int(self.iteration_end_ns[-1])

    @property
    def window_ns(self) -> tuple[int, int]:
        """The measured window: without the first iteration where there are more."""
        begin = int(self.iteration_end_ns[0]) if self.num_iterations > 1 else 0
        return begin, self.makespan_ns

    @property
    def measured_iterations(self) -> range:
        return range(1 if self.num_iterations > 1 else 0, self.num_iterations)

    @property
    def iteration_time_s(self) -> float:
        begin, end = self.window_ns
        return (end - begin) / len(self.measured_iterations) / 1e9


def simulate(
    job: Job, annotations: Sequence[Annotation], gpu: GpuConfig, cluster: ClusterConfig
) -> Simulation:
    """Simulates all ranks of a job on one clock.

    Args:
        annotations: one for each of ``job.ranks``, in that order.

    Raises:
        SimulationError: work that can never run (who waits for what), or input that does not fit together.
    """
    if not job.ranks or len(annotations) != len(job.ranks):
        raise SimulationError(
            f"A simulation needs one annotation for each simulated rank, got {len(annotations)} for "
            f"{len(job.ranks)} ranks. Annotate the job again."
        )
    lowered = [
        lower_rank(trace, annotation, cluster)
        for trace, annotation in zip(job.ranks, annotations, strict=True)
    ]
    columns = engine_columns(job, lowered)
    launch_latency_ns = max(0, round((gpu.launch_latency_us - host_costs.LAUNCH_US) * 1e3))
    try:
        times = _engine.simulate(
            **columns,
            launch_latency_ns=launch_latency_ns,
            dependency_gap_ns=round(gpu.kernel_gap_us * 1e3),
            queue_depth=host_costs.LAUNCH_QUEUE_DEPTH,
        )
    except ValueError as error:
        raise SimulationError(f"The job does not fit together: {error}. Collate it again.") from None
    borders = columns["rank_begin"]
    assert isinstance(borders, np.ndarray)
    ranks = []
    for rank, begin, end in zip(lowered, borders[:-1], borders[1:], strict=True):
        host_start, host_end, start, finish = (column[begin:end] for column in times)
        ranks.append(
            RankTimes(
                host_start_ns=host_start, host_end_ns=host_end, start_ns=start, end_ns=finish, unit=rank.unit
            )
        )
    if any(_is_unfinished(rank).any() for rank in ranks):
        raise SimulationError(describe_deadlock(job, lowered, ranks))
    return Simulation(
        ranks=ranks, iteration_end_ns=_iteration_ends(job, ranks), launch_latency_ns=launch_latency_ns
    )


def _is_unfinished(rank: RankTimes) -> Array:
    return (rank.host_end_ns < 0) | ((rank.unit != UNIT["none"]) & (rank.end_ns < 0))


def _iteration_ends(job: Job, ranks: Sequence[RankTimes]) -> Array:
    ends = np.zeros(max(trace.num_iterations for trace in job.ranks), dtype=np.int64)
    for trace, rank in zip(job.ranks, ranks, strict=True):
        iteration = trace.ops["iteration"].to_numpy()
        np.maximum.at(ends, iteration, np.maximum(rank.end_ns, rank.host_end_ns))
    return np.maximum.accumulate(ends)
