"""Output of a stage to its log file, that of native code and child processes included."""

import os
from pathlib import Path


def redirect_output(path: Path | str) -> None:
    """Sends descriptors 1 and 2 of this process, and of its children, to a file from now on."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
