"""With MAYA_SANITIZED_MODULES the compiled modules come from that build folder (make test-sanitized)."""

import importlib.util
import os
import sys
from pathlib import Path

MODULES = {"maya.trace._decoder": "native/trace", "maya.simulator._engine": "native/simulator"}


def pytest_configure() -> None:
    build = os.environ.get("MAYA_SANITIZED_MODULES")
    for name, folder in MODULES.items() if build else ():
        (path,) = Path(str(build), folder).glob(f"{name.rpartition('.')[2]}.*.so")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
