"""NVTX ranges around PyTorch's operators, with their input sizes, for one iteration."""

import functools
import threading
from types import ModuleType
from typing import Any

from .native import Emulator


class OperatorRanges:
    """Turns the ranges on, and off again where no range is open.

    PyTorch warns, and leaves a range open for ever, if its profiler is switched off inside a range, and the
    step of an optimizer is one. So the ranges opened by ``record_function`` are counted while they are on.
    """

    def __init__(self, torch: ModuleType, emulator: Emulator) -> None:
        self._profiler: Any = torch.autograd.profiler
        self._emulator = emulator
        self._thread: int | None = None  # the thread that has them on
        self._depth = 0
        self._is_ending = False

    def begin(self) -> None:
        try:
            self._profiler.emit_nvtx(record_shapes=True).__enter__()
        except RuntimeError as error:
            # The program runs a profiler of its own, and PyTorch has room for one.
            print(f"maya: operator sizes are not recorded: {error}", flush=True)
            return
        self._thread = threading.get_ident()
        self._emulator.mark("shapes", 1)
        self._count_open_ranges()

    def end(self) -> None:
        """Ends the ranges now, or when the ones that are open have closed."""
        if self._thread is None:
            return
        self._is_ending = True
        if self._depth == 0:
            self._stop()

    def _stop(self) -> None:
        self._emulator.mark("shapes", 0)
        # As emit_nvtx does at its end, without its wait for the device, which would be in the next iteration.
        self._profiler._disable_profiler()
        self._profiler._run_on_profiler_stop()
        self._profiler.record_function.__enter__, self._profiler.record_function.__exit__ = self._originals
        self._thread = None

    def _count_open_ranges(self) -> None:
        record_function = self._profiler.record_function
        enter, leave = self._originals = record_function.__enter__, record_function.__exit__

        @functools.wraps(enter)
        def counted_enter(range_: Any) -> Any:
            if threading.get_ident() == self._thread:
                self._depth += 1
            return enter(range_)

        @functools.wraps(leave)
        def counted_exit(range_: Any, *exception: Any) -> Any:
            result = leave(range_, *exception)
            if threading.get_ident() == self._thread:
                self._depth = max(self._depth - 1, 0)  # one that was open at the beginning counts for nothing
                if self._is_ending and self._depth == 0:
                    self._stop()
            return result

        record_function.__enter__, record_function.__exit__ = counted_enter, counted_exit
