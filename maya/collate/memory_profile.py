"""What filled the device memory of a rank, as its start-up hook wrote it (docs/architecture.md)."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveAllocations:
    """Blocks of PyTorch's allocator that one place in the code made, or that one name stands for."""

    bytes: int
    count: int
    made_by: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCourse:
    """Bytes of PyTorch's allocator over one iteration, in the host's time since its beginning."""

    time_us: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryProfile:
    """The peak of one iteration, or the moment at which an allocation failed (then without a course)."""

    allocated_bytes: int
    reserved_bytes: int
    time_us: int  # in the course
    allocations: tuple[LiveAllocations, ...]  # the largest, in descending order
    course: MemoryCourse


def profile_path(folder: Path, rank: int) -> Path:
    """The file of a rank, in the folder of a capture."""
    return folder / f"rank{rank:05d}.memory.json"


def read_profile(path: Path) -> MemoryProfile | None:
    """None where there is no file: the program keeps no history, or ended before a whole iteration."""
    if not path.exists():
        return None
    values = json.loads(path.read_text())
    return MemoryProfile(
        allocated_bytes=values["allocated_bytes"],
        reserved_bytes=values["reserved_bytes"],
        time_us=values["time_us"],
        allocations=tuple(LiveAllocations(**row) for row in values["allocations"]),
        course=MemoryCourse(**{name: tuple(column) for name, column in values["course"].items()}),
    )
