"""A process that has imported PyTorch already and forks one rank per request.

It talks over a socket in lines of JSON. In come requests ``{"number", "kind", "name", "arguments", "set",
"log"}``, out go ``{"ready": true}``, ``{"started": number, "process_id"}`` and ``{"ended": number,
"exit_code"}``. It never initialises CUDA, as a forked child could not use it then.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import random
import selectors
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from .program import run_program
from .rank import watch_for_rank

_WARM_MODULES = ("numpy", "torch", "torch.distributed", "torch.utils.data", "torch._dynamo")
_POLL_S = 0.02


def serve(descriptor: int) -> None:
    """Serves until the other end of the socket closes; then no rank is left behind."""
    for name in _WARM_MODULES:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    channel = socket.socket(fileno=descriptor)
    _send(channel, ready=True)
    numbers: dict[int, int] = {}  # by process id
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            if selector.select(_POLL_S):
                received = channel.recv(1 << 16)
                if not received:
                    break
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    request = json.loads(line)
                    process_id = _fork_rank(channel, request)
                    numbers[process_id] = request["number"]
                    _send(channel, started=request["number"], process_id=process_id)
            for process_id in list(numbers):
                ended, status = os.waitpid(process_id, os.WNOHANG)
                if ended:
                    number = numbers.pop(process_id)
                    _send(channel, ended=number, exit_code=os.waitstatus_to_exitcode(status))
    for process_id in numbers:
        os.killpg(process_id, signal.SIGKILL)
    if "MAYA_EXCHANGE" in os.environ:  # still there if the capture was killed
        Path(os.environ["MAYA_EXCHANGE"]).unlink(missing_ok=True)


def _send(channel: socket.socket, **message: object) -> None:
    channel.sendall((json.dumps(message) + "\n").encode())


def _fork_rank(channel: socket.socket, request: dict[str, Any]) -> int:
    process_id = os.fork()
    if process_id:
        _set_process_group(process_id)
        return process_id
    exit_code = 1
    try:
        os.setpgid(0, 0)
        channel.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        exit_code = _run_rank(request)
    except BaseException:
        traceback.print_exc()  # a failure of the hooks: those of the program are reported where it runs
    finally:
        os._exit(exit_code)


def _set_process_group(process_id: int) -> None:
    # The child may have done it already, or be gone.
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(process_id, process_id)


def _run_rank(request: dict[str, Any]) -> int:
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.update(request["set"])
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # else all ranks would draw what the parent would have drawn
    watch_for_rank()
    return run_program(request["kind"], request["name"], request["arguments"])
