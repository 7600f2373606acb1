"""Running a Python program in this process as the interpreter itself would."""

import atexit
import builtins
import contextlib
import importlib.machinery
import runpy
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path


def run_program(kind: str, name: str, arguments: list[str]) -> int:
    """Runs a script or a module as ``__main__`` and returns the exit code that the interpreter would give.

    Exit handlers have run and the standard streams are flushed on return.
    """
    run = _run_script if kind == "script" else _run_module
    exit_code = _call_as_main(lambda: run(name, arguments))
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed by the program
            stream.flush()
    return exit_code


def _call_as_main(body: Callable[[], None]) -> int:
    try:
        body()
    except SystemExit as stop:
        if stop.code is None:
            return 0
        if isinstance(stop.code, int):
            return stop.code & 0xFF
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        error.__traceback__ = _without_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _without_own_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def _run_script(path: str, arguments: list[str]) -> None:
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    path = f"{Path.cwd()}/{path}" if not Path(path).is_absolute() else path  # not normalised, as in Python
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    try:
        code = loader.source_to_code(loader.get_data(path), path)
    except OSError as error:
        message = f"{sys.executable}: can't open file {path!r}: {error.strerror}"
        raise SystemExit(message) from None
    main = types.ModuleType("__main__")
    vars(main).update(
        __file__=path, __loader__=loader, __builtins__=builtins, __cached__=None, __annotations__={}
    )
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _run_module(name: str, arguments: list[str]) -> None:
    sys.argv = ["-m", *arguments]
    sys.path.insert(0, str(Path.cwd()))
    sys.modules["__main__"] = types.ModuleType("__main__")
    vars(sys.modules["__main__"])["__builtins__"] = builtins
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]
