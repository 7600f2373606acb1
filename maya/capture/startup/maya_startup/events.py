"""``rank%05d.events.jsonl``: what only Python knows about a rank, one JSON object a line."""

import json
import os
import threading
from pathlib import Path


class EventLog:
    """Appends events of the process that made it; children forked from it write nothing."""

    def __init__(self, trace_dir: str, rank: int) -> None:
        path = Path(trace_dir, f"rank{rank:05d}.events.jsonl")
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._process_id = os.getpid()
        self._lock = threading.Lock()

    def write(self, event_type: str, **fields: object) -> None:
        if os.getpid() != self._process_id:
            return
        line = (json.dumps({"type": event_type, **fields}) + "\n").encode()
        with self._lock:
            os.write(self._descriptor, line)
