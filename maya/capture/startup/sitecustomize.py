"""Runs at the start of every Python process below a capture; the ranks among them get Maya's hooks."""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = __file__.rpartition(os.sep)[0]


def _run_own_sitecustomize() -> None:
    """Runs the user's or the distribution's sitecustomize that this file hides."""
    others = [path for path in sys.path if path != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("MAYA_TRACE_DIR"):
    from maya_startup import rank

    rank.watch_for_rank()
sys.path[:] = [path for path in sys.path if path != _HERE]
_run_own_sitecustomize()
