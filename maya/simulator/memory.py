"""Device memory of each rank at its peak: what PyTorch reserved, and what CUDA and NCCL take beside it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maya.collate.job import Job
from maya.collate.memory_profile import MemoryProfile
from maya.config.schema import GpuConfig
from maya.paths import write_whole


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Peak device memory of one simulated rank and of the ``num_ranks`` ranks it stands for, in bytes."""

    rank: int
    num_ranks: int
    peak_allocated_bytes: int  # live tensors, by PyTorch's caching allocator
    peak_reserved_bytes: int  # what that allocator holds from CUDA, cuBLAS workspaces included
    context_bytes: int  # CUDA context and the modules loaded into it
    nccl_bytes: int  # structures and buffers of the communicators, at their peak
    peak_memory_bytes: int  # context, and the peak of all that the process took from the device


def rank_memory(job: Job, gpu: GpuConfig) -> list[RankMemory]:
    """Peak memory by simulated rank, in the order of ``job.ranks``."""
    result = []
    for trace in job.ranks:
        result.append(
            RankMemory(
                rank=trace.rank,
                num_ranks=len(trace.members),
                peak_allocated_bytes=trace.peak_allocated_bytes,
                peak_reserved_bytes=trace.peak_reserved_bytes,
                context_bytes=gpu.context_bytes,
                nccl_bytes=trace.peak_nccl_bytes,
                peak_memory_bytes=gpu.context_bytes + trace.peak_device_bytes,
            )
        )
    return result


def write_memory(
    path: Path, memory: Sequence[dict[str, Any]], profiles: Mapping[int, MemoryProfile | None]
) -> None:
    """Writes what fills the memory of each simulated rank as JSON.

    ``memory`` is the field of a summary (empty where an allocation failed), ``profiles`` are by rank.
    """
    sizes = {row["rank"]: row for row in memory}
    ranks = [
        {"rank": rank, **sizes.get(rank, {}), "profile": None if profile is None else asdict(profile)}
        for rank, profile in profiles.items()
    ]
    write_whole(path, json.dumps({"ranks": ranks}) + "\n")
