"""One training run, and the capture of as many of its ranks as its prediction needs."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from maya.config.commands import job_command
from maya.config.schema import CaptureConfig, ClusterConfig, GpuConfig, JobConfig
from maya.errors import CaptureError, ConfigError

if TYPE_CHECKING:
    from maya.capture import Manifest

Progress = Callable[[str, int, int], None]
"""Receives what is being done, and how many of how many parts of it are."""

MAX_CAPTURE_ROUNDS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    """A command on a cluster. ``cluster`` has as many nodes as ``world_size`` needs."""

    command: tuple[str, ...]
    gpu: GpuConfig
    cluster: ClusterConfig
    world_size: int
    gpus_per_node: int
    capture: CaptureConfig
    env: dict[str, str] = field(default_factory=dict)


def run_of_job(job: JobConfig) -> TrainingRun:
    """The training run that a job of the repository's own workloads stands for."""
    command, world_size, gpus_per_node = job_command(job)
    return TrainingRun(
        command=command,
        gpu=job.gpu,
        cluster=job.cluster,
        world_size=world_size,
        gpus_per_node=gpus_per_node,
        capture=job.capture,
    )


def run_of_command(
    command: Sequence[str],
    gpu: GpuConfig,
    cluster: ClusterConfig,
    capture: CaptureConfig,
    world_size: int | None = None,
) -> TrainingRun:
    """A user's command on a cluster.

    The command says how many ranks it starts (``torchrun --nnodes 2 --nproc-per-node 8``) unless
    ``world_size`` does. A node has as many GPUs as the command starts processes on it, at most as many as
    a node of the cluster.

    Raises: ConfigError for a command without a program and for counts that contradict each other.
    """
    from maya.capture.command import parse_command

    if not command:
        raise ConfigError("No training command given. Put it after `--`, e.g. `-- python train.py`.")
    parsed = parse_command(tuple(command))
    if world_size is None:
        world_size = parsed.world_size(cluster.gpus_per_node)
    per_node = cluster.gpus_per_node
    if parsed.launcher == "torchrun" and parsed.procs_per_node is not None:
        per_node = parsed.procs_per_node
    per_node = min(per_node, world_size)
    if world_size % per_node:
        raise ConfigError(
            f"A world size of {world_size} does not fill nodes of {per_node} GPUs. Give --world-size as a "
            "multiple of them, or --nproc-per-node in the command."
        )
    return TrainingRun(
        command=tuple(command),
        gpu=gpu,
        cluster=replace(cluster, nodes=world_size // per_node, gpus_per_node=per_node),
        world_size=world_size,
        gpus_per_node=per_node,
        capture=capture,
    )


def resolve_mode(run: TrainingRun) -> str:
    """linked or solo: what `auto` means for a run. Ranks that the command starts itself run together."""
    from maya.capture.command import parse_command

    if run.capture.mode != "auto":
        return run.capture.mode
    if parse_command(run.command).launcher == "foreign":
        return "linked"
    return "linked" if run.world_size <= run.capture.max_linked_ranks else "solo"


def capture_run(
    run: TrainingRun,
    output_dir: Path,
    progress: Progress | None = None,
    ranks: tuple[int, ...] | None = None,
) -> "Manifest":
    """Capture all ranks of a run (linked), or one for each class of ranks (solo), into ``output_dir``.

    Solo starts with rank 0, whose run shows every process group of the world; the collation then names
    the ranks that it needs besides, until it has one of each class. A rank that runs out of device memory
    ends the capture early, with a manifest that says so. ``ranks``: exactly these, each alone.

    Raises: CaptureError, ConfigError as ``maya.capture.capture``.
    """
    from maya.capture import CaptureSpec, capture
    from maya.collate.classes import representatives

    def capture_ranks(ranks: tuple[int, ...], folder: Path) -> "Manifest":
        spec = CaptureSpec(
            command=run.command,
            gpu=run.gpu,
            world_size=run.world_size,
            gpus_per_node=run.gpus_per_node,
            mode="solo" if ranks else "linked",
            ranks=ranks,
            output_dir=folder,
            capture=run.capture,
            env=run.env,
        )
        what = f"capture rank {', '.join(map(str, ranks))}" if ranks else f"capture {run.world_size} ranks"
        if progress is None:
            return capture(spec)
        progress(what, 0, len(spec.captured_ranks))
        return capture(spec, progress=lambda done, total: progress(what, done, total))

    if ranks:
        return capture_ranks(ranks, output_dir)
    if resolve_mode(run) == "linked":
        return capture_ranks((), output_dir)

    output_dir.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=output_dir.parent, prefix=f".{output_dir.name}."))
    try:
        first = scratch / "round0"
        manifest = capture_ranks((0,), first)
        for number in range(1, MAX_CAPTURE_ROUNDS):
            missing = () if manifest.out_of_memory else representatives(first)
            if not missing:
                shutil.rmtree(output_dir, ignore_errors=True)
                first.rename(output_dir)
                return manifest
            more = scratch / f"round{number}"
            manifest = _join(first, manifest, more, capture_ranks(tuple(missing), more))
        raise CaptureError(
            f"After {MAX_CAPTURE_ROUNDS} rounds of captures the ranks still fall into new classes "
            f"({len(manifest.ranks)} of {run.world_size} captured). Capture all with capture.mode=linked."
        )
    finally:
        _remove_all_but_logs(scratch)


def _remove_all_but_logs(scratch: Path) -> None:
    """The error of a failed capture names its logs in ``scratch``, so they stay."""
    for path in scratch.iterdir():
        if not path.name.endswith(".failed-logs"):
            shutil.rmtree(path)
    if not any(scratch.iterdir()):
        scratch.rmdir()


def _join(first: Path, manifest: "Manifest", more: Path, more_manifest: "Manifest") -> "Manifest":
    """Move the traces of a further round into the folder of the first one."""
    from maya.capture.manifest import FILE_NAME

    for path in sorted(more.rglob("*")):
        if path.is_file() and path.name != FILE_NAME:
            target = first / path.relative_to(more)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    joined = replace(manifest, ranks=(*manifest.ranks, *more_manifest.ranks))
    joined.write(first)
    return joined
