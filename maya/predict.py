"""The whole flow: from a training run to the summary of its predicted iteration."""

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from maya.config.identity import content_id
from maya.config.schema import ClusterConfig, GpuConfig
from maya.errors import SimulationError
from maya.paths import cache_dir, source_digest, write_whole
from maya.training_run import Progress, TrainingRun, capture_run

if TYPE_CHECKING:
    from maya.collate.job import Job
    from maya.collate.memory_profile import MemoryProfile
    from maya.simulator import Summary

MEASUREMENTS_PACKAGE = "aiconfigurator-core"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCost:
    """What emulation did to the host: device calls that the captured ranks made, and the time they took."""

    calls: int
    seconds: float
    overhead_us_median: float  # time that a recorded call spends inside of the emulator

    @property
    def calls_per_s(self) -> float:
        return self.calls / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    summary: "Summary"
    host_cost: HostCost
    captured_ranks: tuple[int, ...]

    def write(self, path: Path) -> None:
        """Writes the fields of the summary and, as ``emulation``, what the capture cost, as JSON."""
        cost = self.host_cost
        emulation = {
            "calls": cost.calls,
            "calls_per_s": cost.calls_per_s,
            "overhead_us_median": cost.overhead_us_median,
        }
        write_whole(path, json.dumps({**asdict(self.summary), "emulation": emulation}, indent=2) + "\n")


def predict(
    run: TrainingRun,
    *,
    trace_dir: Path | None = None,
    timeline: Path | None = None,
    memory: Path | None = None,
    progress: Progress | None = None,
) -> Prediction:
    """Capture a training run, simulate it and summarise the simulation.

    Args:
        trace_dir: where the traces are kept; by default they are thrown away.
        timeline: file for a Chrome trace of the last iteration, ``.json`` or ``.json.gz``.
        memory: file for what fills the memory of each simulated rank, JSON.

    Raises: MayaError of the stage that failed. A rank that runs out of device memory is not a failure: the
        summary then says ``oom`` with the rank and the size that did not fit, and has no times.
    """
    from maya.collate import collate
    from maya.simulator import write_memory

    report = progress or (lambda what, done, total: None)
    scratch = None
    if trace_dir is None:
        scratch = Path(tempfile.mkdtemp(prefix="maya-"))
    try:
        traces = trace_dir or scratch / "traces"  # type: ignore[operator]
        manifest = capture_run(run, traces, progress)
        if manifest.out_of_memory is not None:
            summary, profiles = out_of_memory(traces, run.gpu)
        else:
            report("collate", 0, 1)
            job = collate(traces)
            summary = simulate_job(job, run.gpu, run.cluster, timeline=timeline, progress=report)
            profiles = {rank.rank: rank.memory_profile for rank in job.ranks}
        if memory is not None:
            write_memory(memory, summary.memory, profiles)
    finally:
        # The logs of a failed capture stay where its error says they are.
        if scratch is not None and not any(scratch.rglob("*.failed-logs")):
            shutil.rmtree(scratch, ignore_errors=True)
    return Prediction(
        summary=summary,
        host_cost=HostCost(
            calls=sum(sum(rank.calls.values()) for rank in manifest.ranks),
            seconds=sum(rank.seconds for rank in manifest.ranks),
            overhead_us_median=median(rank.overhead_ns_median for rank in manifest.ranks) / 1e3,
        ),
        captured_ranks=tuple(rank.rank for rank in manifest.ranks),
    )


def simulate_job(
    job: "Job", gpu: GpuConfig, cluster: ClusterConfig, *, timeline: Path | None, progress: Progress
) -> "Summary":
    """Annotate, simulate and summarise a collated job. Returns: the summary.

    Raises: SimulationError where no rank uses its GPU.
    """
    from maya.collate.iterations import DEVICE_KINDS
    from maya.estimators import annotate, load_estimator
    from maya.simulator import simulate, summarise, write_chrome_trace

    if not any(rank.ops["kind"].isin(DEVICE_KINDS).any() for rank in job.ranks):
        raise SimulationError(
            "No rank uses a GPU in its iterations, so there is no time to predict. Check that the program "
            "puts its model and data on the device `cuda`."
        )
    progress("estimators", 0, 1)
    estimator = load_estimator(ensure_estimator(gpu))
    progress("predict durations", 0, 1)
    annotations = annotate(job, estimator, gpu, cluster)
    progress("simulate", 0, 1)
    simulation = simulate(job, annotations, gpu, cluster)
    if timeline is not None:
        progress("write timeline", 0, 1)
        write_chrome_trace(timeline, job, annotations, simulation)
    return summarise(job, annotations, simulation, gpu)


def out_of_memory(folder: Path, gpu: GpuConfig) -> tuple["Summary", dict[int, "MemoryProfile | None"]]:
    """The summary of a run that does not fit, and what filled the memory by rank.

    ``folder`` holds the manifest and the memory profile of the rank that failed.
    """
    from maya.capture.manifest import read_manifest
    from maya.collate.memory_profile import profile_path, read_profile
    from maya.simulator.summary import out_of_memory_summary

    manifest = read_manifest(folder)
    failed = manifest.out_of_memory
    assert failed is not None and failed.oom is not None
    profile = read_profile(profile_path(folder, failed.rank))
    summary = out_of_memory_summary(
        gpu=gpu,
        world_size=manifest.world_size,
        rank=failed.rank,
        failed_bytes=failed.oom.bytes_requested,
        used_bytes=failed.oom.used_bytes + gpu.context_bytes,
        unemulated_calls=failed.unemulated,
        profile=profile,
    )
    return summary, {failed.rank: profile}


def ensure_estimator(gpu: GpuConfig, measurements: Path | None = None) -> Path:
    """Folder of the estimator of a GPU, trained when there is none yet for these measurements and code.

    Args:
        measurements: folder with a folder of profiles (Parquet) for each GPU; by default `profiling_data`
    """
    from maya.config.compose import gpu_config
    from maya.estimators.ingest import ingest
    from maya.estimators.inputs import inputs_of
    from maya.estimators.train import train

    inputs = inputs_of(gpu, measurements)
    key = content_id(
        {
            "gpu": asdict(gpu),
            "packaged": f"{MEASUREMENTS_PACKAGE} {version(MEASUREMENTS_PACKAGE)}",
            "files": inputs.digest(),
            "code": source_digest("estimators"),
        }
    )
    folder = cache_dir() / "estimators" / f"{gpu.name}-{key}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    lenders = [
        lender.regressors or ensure_estimator(gpu_config(lender.gpu), measurements)
        for lender in inputs.lenders
    ]
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        packaged = scratch / "aiconfigurator.parquet"
        ingest(gpu, packaged)
        train(
            [packaged, *inputs.measurements],
            gpu,
            scratch / "estimator",
            shipped=inputs.shipped,
            lenders=lenders,
        )
        try:
            (scratch / "estimator").rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster, with the same result
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder
