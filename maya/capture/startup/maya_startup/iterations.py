"""Finding the iterations of a training program, and ending it after those asked for."""

import functools
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

from .memory_history import MemoryHistory
from .operator_ranges import OperatorRanges
from .session import Session

_POLL_S = 0.5
_REPEATS_CPU_S = 2.0
_REPEATS_S = 20.0
_MAX_REPEATS = 97
_WATCHDOG_S = 0.25


class IterationCounter:
    """Counts the steps of the optimizer that stepped first; each ends an iteration, but for those between
    which nothing was multiplied: DeepSpeed's ZeRO 3 steps once for every group of parameters.

    The iteration after the warm-up announces its operators with their input sizes as NVTX ranges, which slows
    the host, so the iterations from which host gaps are taken come after it. Those asked for are followed by
    repeats that serve the host gaps alone (mark ``repeats``): as many as fit in `_REPEATS_CPU_S` of CPU time,
    which does not depend on how many ranks share a core, and in `_REPEATS_S`.
    """

    def __init__(self, torch: ModuleType, session: Session, history: MemoryHistory) -> None:
        self._torch = torch
        self._session = session
        self._first_optimizer: object | None = None
        self._ranges = OperatorRanges(torch, session.emulator)
        self._history = history
        # The last iteration of the warm-up is one as they all are, and no time is taken from it.
        self._history_iteration = max(session.warmup_iterations, 2)
        self._peaks = {"peak_allocated_bytes": 0, "peak_reserved_bytes": 0}
        self.num_optimizers = 0
        self._step_s = (0.0, 0.0)  # when the newest step ended, by the wall clock and the process's CPU clock
        self._num_repeats = 0
        self._num_matrix_operations = 0  # at the newest step

    def on_step(self, optimizer: object, args: object, kwargs: object) -> None:
        """Post-hook of every step of every optimizer."""
        session = self._session
        if self._first_optimizer is None:
            self._first_optimizer = optimizer
            self.num_optimizers = max(self.num_optimizers, 1)  # made before the hooks were there
        if optimizer is not self._first_optimizer or session.is_finished:
            return
        previous, self._num_matrix_operations = (
            self._num_matrix_operations,
            session.emulator.matrix_operations(),
        )
        if 0 < previous == self._num_matrix_operations:
            return
        session.num_iterations += 1
        session.emulator.mark("iteration", session.num_iterations)
        self.mark_peaks()
        if session.num_iterations == self._history_iteration - 1:
            self._history.begin()
        elif session.num_iterations == self._history_iteration:
            self._history.end()
        if session.num_iterations == 1:
            _let_watchdog_retire_work()
        num_plain = session.num_iterations - session.warmup_iterations - 1
        if num_plain == -1 and self._torch.cuda.is_initialized():
            self._ranges.begin()
        elif num_plain == 0:
            self._ranges.end()
        elif num_plain == 1:
            session.propose("repeats", self._num_fitting_repeats())
        if num_plain == session.iterations:
            self._num_repeats = session.agreed("repeats")
            session.emulator.mark("repeats", self._num_repeats)
        if num_plain == session.iterations + self._num_repeats:
            session.emulator.mark("stop", 0)
            session.stop_program()
        self._step_s = _clocks_s()

    def _num_fitting_repeats(self) -> int:
        wall_s, cpu_s = (now - then for now, then in zip(_clocks_s(), self._step_s, strict=True))
        return min(int(_REPEATS_CPU_S / cpu_s), int(_REPEATS_S / wall_s), _MAX_REPEATS)

    def mark_peaks(self) -> None:
        """Marks the peaks of device memory over the whole run, also where the program resets PyTorch's."""
        if not self._torch.cuda.is_initialized():
            return
        emulator = self._session.emulator
        emulator.mark("peak_device_bytes", emulator.peak_device_bytes())
        emulator.mark("peak_nccl_bytes", emulator.peak_nccl_bytes())
        stats = self._torch.cuda.memory_stats_as_nested_dict()
        for kind in ("allocated", "reserved"):
            name = f"peak_{kind}_bytes"
            self._peaks[name] = max(self._peaks[name], stats[f"{kind}_bytes"]["all"]["peak"])
            emulator.mark(name, self._peaks[name])


def _let_watchdog_retire_work() -> None:
    """Gives PyTorch's NCCL watchdog, which looks every 100 ms, the time of a first iteration on a GPU.

    It holds the result of work whose future was asked for, as DDP does: its first buckets, of all gradients,
    would still be there when the second iteration makes new ones.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        time.sleep(_WATCHDOG_S)


def _clocks_s() -> tuple[float, float]:
    return time.monotonic(), time.process_time()


def count_iterations(torch: ModuleType, session: Session) -> IterationCounter:
    """Installs the counter for PyTorch's optimizers, and for programs without one a watch on repetition."""
    history = MemoryHistory(torch, Path(session.trace_dir, f"rank{session.rank:05d}.memory.json"))
    counter = IterationCounter(torch, session, history)
    optimizer_module = sys.modules["torch.optim.optimizer"]  # torch.optim hides its submodules
    optimizer_module.register_optimizer_step_post_hook(counter.on_step)
    _count_optimizers(torch, counter)
    # The trace takes a thread of this name for a helper of PyTorch, not for the program.
    threading.Thread(
        target=_watch_repetitions, args=(counter, session), name="pt_maya_watch", daemon=True
    ).start()
    return counter


def _count_optimizers(torch: ModuleType, counter: IterationCounter) -> None:
    optimizer_class = torch.optim.Optimizer
    initialise = optimizer_class.__init__

    @functools.wraps(initialise)
    def counted(self: object, *args: object, **kwargs: object) -> None:
        counter.num_optimizers += 1
        initialise(self, *args, **kwargs)

    optimizer_class.__init__ = counted


def _watch_repetitions(counter: IterationCounter, session: Session) -> None:
    """Ends a program that has no optimizer of PyTorch once its device operations repeat often enough.

    Repetition has to grow between two looks, as the layers of one pass repeat as well, but not for long; what
    repeats without matrix products, convolutions or attention does not count. A program that has an optimizer
    repeats before its first step too, for each micro-batch, and is left alone.
    """
    wanted = session.warmup_iterations + 1 + session.iterations
    previous = 0
    while not session.is_finished:
        time.sleep(_POLL_S)
        if counter.num_optimizers:
            return
        repetitions = session.emulator.repetitions()
        if previous >= wanted and repetitions > previous:
            counter.mark_peaks()
            session.emulator.mark("stop", 0)
            session.stop_program()
        previous = repetitions
