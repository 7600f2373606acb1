"""Where in the program something happens, and which host reads got values that no real device would give."""

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

from .native import Emulator

_HERE = f"{Path(__file__).parent}{os.sep}"
_ANSWERS = {1: "rule", 3: "zeros"}  # by Origin in native/emulator/known_bytes.h


def current_call_site() -> str:
    """``train.py:12 in main``: the innermost frame outside of PyTorch, or else the innermost one."""
    frame: FrameType | None = sys._getframe(1)
    innermost = None
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(_HERE):
            innermost = innermost or frame
            if not _is_of_torch(path):
                return _describe(frame)
        frame = frame.f_back
    return _describe(innermost) if innermost is not None else ""


def _is_of_torch(path: str) -> bool:
    return f"{os.sep}torch{os.sep}" in path or path.startswith("<")


def _describe(frame: FrameType) -> str:
    path = frame.f_code.co_filename
    for folder in (f"{os.sep}site-packages{os.sep}", f"{Path.cwd()}{os.sep}"):
        path = path.rpartition(folder)[2]
    return f"{path}:{frame.f_lineno} in {frame.f_code.co_qualname}"


class HostReads:
    """Counts of made-up reads by call site, size and answer."""

    def __init__(self, emulator: Emulator) -> None:
        self._counts: Counter[tuple[str, int, str]] = Counter()
        self._lock = threading.Lock()
        emulator.observe_reads(self._count)

    def _count(self, num_bytes: int, origin: int) -> None:
        key = current_call_site() or "a thread without Python", num_bytes, _ANSWERS[origin]
        with self._lock:
            self._counts[key] += 1

    def rows(self) -> list[dict[str, str | int]]:
        """The most frequent first."""
        with self._lock:
            counts = self._counts.most_common()
        return [
            {"site": site, "bytes": num_bytes, "answer": answer, "count": count}
            for (site, num_bytes, answer), count in counts
        ]
