"""What the hooks of one rank share: where it writes, which part of the world it is, and how it ends."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .call_sites import HostReads, current_call_site
from .events import EventLog
from .native import Emulator
from .native import emulator as process_emulator

_PEER_POLL_S = 0.02
_STORE_HOST_LINGERS_S = 0.3  # rank 0 serves the store that the peers still talk to


@dataclass(kw_only=True)
class Session:
    """A rank. ``warmup_iterations`` and ``iterations`` are what the capture asks for."""

    trace_dir: str
    rank: int
    world_size: int
    mode: str  # linked or solo
    warmup_iterations: int
    iterations: int
    emulator: Emulator
    events: EventLog
    host_reads: HostReads
    num_iterations: int = 0  # complete by now
    is_finished: bool = False

    @classmethod
    def from_environment(cls) -> "Session":
        """Makes this process a rank, the only one to record here: its children are helpers, not ranks."""
        trace_dir = os.environ["MAYA_TRACE_DIR"]
        rank = int(os.environ.get("RANK", "0"))
        warmup, iterations = (int(text) for text in os.environ["MAYA_ITERATIONS"].split(","))
        emulator = process_emulator()
        emulator.find_call_sites(current_call_site)
        emulator.mark("start", 0)  # opens the trace file while the variable still names its folder
        del os.environ["MAYA_TRACE_DIR"]
        return cls(
            trace_dir=trace_dir,
            rank=rank,
            world_size=int(os.environ["MAYA_WORLD_SIZE"]),
            mode=os.environ["MAYA_MODE"],
            warmup_iterations=warmup,
            iterations=iterations,
            emulator=emulator,
            events=EventLog(trace_dir, rank),
            host_reads=HostReads(emulator),
        )

    def finish(self) -> None:
        """Completes trace and events; the rank needs nothing of its peers any more."""
        if self.is_finished:
            return
        self.is_finished = True
        self.emulator.flush()
        self.events.write("calls", calls=self.emulator.call_counts())
        self.events.write("made_up_reads", reads=self.host_reads.rows())
        self.events.write("end", iterations=self.num_iterations)
        self._done_file(self.rank).touch()

    def propose(self, what: str, value: int) -> None:
        """Fixes a number that all ranks have to agree on: rank 0's where ranks run together, else the own."""
        if self.mode == "linked" and self.rank != 0:
            return
        path = self._agreed_file(what)
        scratch = path.with_suffix(".new")
        scratch.write_text(str(value))
        scratch.rename(path)  # a reader sees all of it

    def agreed(self, what: str) -> int:
        """What was proposed; waits for rank 0, which must not need this rank to go on before it proposes."""
        path = self._agreed_file(what)
        while not path.exists():
            time.sleep(_PEER_POLL_S)
        return int(path.read_text())

    def _agreed_file(self, what: str) -> Path:
        rank = 0 if self.mode == "linked" else self.rank
        return Path(self.trace_dir, f"rank{rank:05d}.{what}")

    def stop_program(self) -> None:
        """Ends the process here, as soon as no peer needs it any more."""
        self.finish()
        sys.stdout.flush()
        sys.stderr.flush()
        if self.mode == "linked":
            while not all(self._done_file(rank).exists() for rank in self._started_ranks()):
                time.sleep(_PEER_POLL_S)
            if self.rank == 0 and self.world_size > 1:
                time.sleep(_STORE_HOST_LINGERS_S)
        os._exit(0)

    def _started_ranks(self) -> list[int]:
        """A command that starts its ranks itself may start fewer than the world size that it was given."""
        ranks = range(self.world_size)
        return [rank for rank in ranks if Path(self.trace_dir, f"rank{rank:05d}.events.jsonl").exists()]

    def _done_file(self, rank: int) -> Path:
        return Path(self.trace_dir, f"rank{rank:05d}.done")
