"""Capture a training command on emulated GPUs and look at what its ranks asked of the device."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from maya.capture import Manifest, read_manifest
from maya.collate import collate
from maya.collate.iterations import DEVICE_KINDS
from maya.collate.job import Job, RankTrace
from maya.config.compose import compose_target
from maya.training_run import capture_run, run_of_command


@dataclass(frozen=True)
class CapturedJob:
    """A capture and the job that its traces make."""

    trace_dir: Path

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(self.trace_dir)

    @cached_property
    def job(self) -> Job:
        return collate(self.trace_dir)

    @cached_property
    def ranks(self) -> dict[int, RankTrace]:
        """Simulated ranks by number: all of them in a linked capture, else one of each class."""
        return {rank.rank: rank for rank in self.job.ranks}

    def standing_for(self, rank: int) -> RankTrace:
        """The simulated rank whose class ``rank`` belongs to."""
        return next(trace for trace in self.job.ranks if rank in trace.members)

    def collectives(self, rank: int) -> pd.DataFrame:
        """Collectives of one iteration in call order: op, dtype, bytes, ranks (of the communicator), label.

        Bytes as nccl-tests counts them: see `maya.collate.job.RankTrace`. Calls of one NCCL group on one
        communicator are one row.
        """
        trace = self.standing_for(rank)
        details = trace.details.get("collective")
        if details is None:
            return pd.DataFrame(columns=["op", "dtype", "bytes", "peer", "ranks", "label"])
        rows = details[trace.ops.iteration.loc[details.index] == 0]
        communicators = [self.job.communicators[index] for index in rows["communicator"]]
        return rows[["op", "dtype", "bytes", "peer"]].assign(
            ranks=[communicator.ranks for communicator in communicators],
            label=[communicator.label for communicator in communicators],
        )

    def details(self, rank: int, kind: str) -> pd.DataFrame:
        """The operations of one kind in one iteration, with the fields of native/trace/format.h."""
        trace = self.standing_for(rank)
        details = trace.details.get(kind)
        if details is None:
            return pd.DataFrame()
        return details[trace.ops.iteration.loc[details.index] == 0]

    def kernels(self, rank: int, pattern: str) -> pd.DataFrame:
        """Kernels of one iteration whose (mangled) name matches a regular expression."""
        kernels = self.details(rank, "kernel")
        return kernels[kernels["name"].str.contains(pattern, regex=True)]


def capture_command(
    command: tuple[str, ...],
    trace_dir: Path,
    *overrides: str,
    mode: str = "auto",
    world_size: int | None = None,
    ranks: tuple[int, ...] | None = None,
    timeout_s: float = 600,
) -> CapturedJob:
    """Captures a command, strictly: a call that is not emulated fails it.

    ``overrides`` choose GPU and cluster (``gpu=a100_sxm_80gb``, ``cluster=dgx_a100``); H100s otherwise.
    """
    gpu, cluster, capture = compose_target(overrides)
    capture = replace(capture, mode=mode, warmup_iterations=2, iterations=1, timeout_s=timeout_s, strict=True)
    run = run_of_command(command, gpu, cluster, capture, world_size)
    capture_run(run, trace_dir, ranks=ranks)
    return CapturedJob(trace_dir)


def device_operations(rank: RankTrace) -> pd.DataFrame:
    """What a rank asks of the device in one iteration, in order, with the fields that durations depend on."""
    rows = rank.ops[rank.ops.kind.isin(DEVICE_KINDS) & (rank.ops.iteration == 0)]
    details = []
    for kind, of_kind in rows.groupby("kind"):
        fields = rank.details[str(kind)].loc[of_kind.index]
        # Numbers of handles and of communicators depend on who else was captured, counts of calls on what
        # came before the first iteration.
        numbers = ["stream", "comm", "communicator", "sequence", "group"]
        fields = fields.drop(columns=numbers, errors="ignore")
        details.append(fields.apply(tuple, axis=1).rename("fields"))
    return rows[["kind", "stream"]].join(pd.concat(details)).reset_index(drop=True)


def total_bytes(collectives: pd.DataFrame, op: str) -> int:
    """Sum of the bytes of one kind of collective."""
    return int(np.sum(collectives.loc[collectives["op"] == op, "bytes"]))
