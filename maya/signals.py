"""Signals that end a process, turned into an exception."""

import contextlib
import signal
import threading
from collections.abc import Iterator

_TERMINATING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def unwind_when_terminated() -> Iterator[None]:
    """Lets SIGTERM, as batch systems and workflow managers send it, raise SystemExit (128 + its number).

    So does SIGHUP, as a closed terminal sends it, unless it is ignored (``nohup``). The stack unwinds, so
    ranks are stopped and scratch folders removed. Only the main thread can catch signals; in others nothing
    changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    caught = [number for number in _TERMINATING if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, terminate) for number in caught}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
