"""Turning a Python process into a rank of the capture: all hooks, in their order."""

import atexit
import functools
import inspect
import os
import sys
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any

from . import computed_values, groups, iterations, object_values, solo, value_rules
from .imports import when_imported
from .session import Session


def watch_for_rank() -> None:
    """Makes this process a rank now if a launcher says that it is one, else when it turns out to be one.

    That is when it joins a process group or first uses a GPU. Launchers and helper processes do neither, so
    they record nothing.
    """
    rules = value_rules.read_rules(os.environ.get("MAYA_VALUES", ""))
    value_rules.SiteWatch(rules, _with_rules).start()  # modules may be imported before there is a rank
    if "RANK" in os.environ:
        become_rank()
    else:
        when_imported("torch", lambda torch: torch.cuda._lazy_call(_become_rank_once))
        when_imported("torch.distributed.distributed_c10d", _watch_process_group)
        when_imported("torch.multiprocessing.spawn", _watch_spawned_process)


def _become_rank_once() -> None:
    if "MAYA_TRACE_DIR" in os.environ:
        become_rank()


def _watch_process_group(c10d: Any) -> None:
    """Takes rank and world size from the call where the program passes them on, as after ``mp.spawn``."""
    init_process_group = c10d.init_process_group
    signature = inspect.signature(init_process_group)

    @functools.wraps(init_process_group)
    def watched(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs).arguments
        for variable, argument in (("RANK", "rank"), ("WORLD_SIZE", "world_size")):
            if call.get(argument, -1) >= 0:
                os.environ.setdefault(variable, str(call[argument]))
        _become_rank_once()
        return init_process_group(*args, **kwargs)

    groups.replace_everywhere(init_process_group, watched)


def _watch_spawned_process(spawn: Any) -> None:
    """Takes the index of a process that ``mp.spawn`` made for its rank, in case it uses a GPU."""
    wrap = spawn._wrap

    @functools.wraps(wrap)
    def watched(fn: Any, index: int, *args: Any) -> Any:
        os.environ.setdefault("RANK", str(index))
        return wrap(fn, index, *args)

    spawn._wrap = watched


def become_rank() -> Session:
    """Opens trace and events of this process and installs the hooks, which wait for PyTorch's import."""
    session = Session.from_environment()
    _record_exceptions(session)
    atexit.register(_finish_owned, session, os.getpid())
    when_imported("torch", lambda torch: _install(torch, session))
    return session


def _with_rules(function: Any, rules: Sequence[value_rules.Rule]) -> Any:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if sys.modules["torch"].compiler.is_compiling():
            return function(*args, **kwargs)
        with computed_values.computing(rules):
            return function(*args, **kwargs)

    return wrapped


def _finish_owned(session: Session, process_id: int) -> None:
    if os.getpid() == process_id:  # a forked child inherits exit handlers
        session.finish()


def _install(torch: Any, session: Session) -> None:
    iterations.count_iterations(torch, session)
    if torch.distributed.is_available():
        if session.mode == "solo":
            solo.answer_for_absent_ranks(torch, session)
        when_imported("torch.distributed.distributed_c10d", object_values.compute_object_sizes)
        when_imported(
            "torch.distributed.distributed_c10d", lambda module: groups.record_groups(module, session)
        )


def _record_exceptions(session: Session) -> None:
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        session.events.write(
            "exception",
            **{"class": _full_name(kind)},
            message=str(error),
            is_out_of_memory=_is_out_of_memory(error),
        )
        previous(kind, error, traceback)

    sys.excepthook = hook


def _full_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether the error, or one that it was raised for, is PyTorch's out-of-memory error."""
    torch: ModuleType | None = sys.modules.get("torch")
    seen: BaseException | None = error
    while torch is not None and seen is not None:
        if isinstance(seen, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
