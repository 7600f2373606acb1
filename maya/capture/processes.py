"""Starting and watching the processes of a capture: forked from a warm one, or each on its own."""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from maya.capture.command import Target
from maya.capture.environment import STARTUP_DIR
from maya.errors import CaptureError

_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBC = ctypes.CDLL(None)


class ProcessPool(Protocol):
    """Starts processes by a number of the caller's and tells which have ended."""

    def start(self, number: int, env: dict[str, str], log: Path) -> None:
        """Starts process ``number`` with ``env`` added to that of all; its output goes to ``log``."""

    def poll(self) -> list[tuple[int, int]]:
        """Waits a moment; returns number and exit code (negative: signal) of processes that ended since."""

    def kill(self, numbers: Iterable[int]) -> None:
        """Ends processes and all that they started; they are not reported by ``poll`` any more."""

    def close(self) -> None:
        """Ends whatever is left."""


class PlainProcesses:
    """One fresh process each."""

    def __init__(self, argv: tuple[str, ...], env: dict[str, str]) -> None:
        self._argv = argv
        self._env = env
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, number: int, env: dict[str, str], log: Path) -> None:
        with log.open("wb") as output:
            try:
                self._running[number] = subprocess.Popen(
                    self._argv,
                    env=self._env | env,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                    preexec_fn=_die_with_parent,
                )
            except OSError as error:
                raise CaptureError(
                    f"`{self._argv[0]}` does not start: {error.strerror}. Check that the command is right."
                ) from None

    def poll(self) -> list[tuple[int, int]]:
        time.sleep(_POLL_S)
        ended = []
        for number, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[number]
                _kill_group(process.pid)  # helpers that outlived it
                ended.append((number, process.returncode))
        return ended

    def kill(self, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            process = self._running.pop(number, None)
            if process is not None:
                _kill_group(process.pid)
                process.wait()

    def close(self) -> None:
        self.kill(list(self._running))


class Zygote:
    """Processes forked from one that has imported PyTorch; see maya_startup/zygote.py for the protocol."""

    def __init__(self, target: Target, interpreter: tuple[str, ...], env: dict[str, str], log: Path) -> None:
        self._target = target
        self._log = log
        self._process_ids: dict[int, int] = {}  # by number
        self._ended: list[tuple[int, int]] = []
        self._received = b""
        self._is_ready = False
        self._channel, theirs = socket.socketpair()
        program = (
            f"import sys; sys.path[0] = {str(STARTUP_DIR)!r}; import maya_startup.zygote as zygote; "
            f"del sys.path[0]; zygote.serve({theirs.fileno()})"
        )
        with log.open("wb") as output, theirs:
            self._process = subprocess.Popen(
                (*interpreter, "-c", program),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                process_group=0,
            )

    def wait_until_ready(self, deadline: float) -> None:
        """Waits until PyTorch is imported, up to ``deadline`` on the monotonic clock."""
        while not self._is_ready:
            if time.monotonic() > deadline:
                raise CaptureError("PyTorch was not imported in time. Raise capture.timeout_s.")
            self._receive()

    def start(self, number: int, env: dict[str, str], log: Path) -> None:
        target = self._target
        request = {
            "number": number,
            "kind": target.kind,
            "name": target.name,
            "arguments": target.arguments,
            "set": env,
            "log": str(log),
        }
        self._channel.sendall((json.dumps(request) + "\n").encode())
        while number not in self._process_ids:
            self._receive()

    def poll(self) -> list[tuple[int, int]]:
        self._receive()
        ended, self._ended = self._ended, []
        return ended

    def kill(self, numbers: Iterable[int]) -> None:
        for number in list(numbers):
            process_id = self._process_ids.pop(number, None)
            if process_id is not None:
                _kill_group(process_id)

    def close(self) -> None:
        self.kill(list(self._process_ids))
        self._channel.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            _kill_group(self._process.pid)
            self._process.wait()

    def _receive(self) -> None:
        """Takes in what the other side says within a moment."""
        if not select.select([self._channel], [], [], _POLL_S)[0]:
            return
        received = self._channel.recv(1 << 16)
        if not received:
            text = self._log.read_text(errors="replace").strip()
            raise CaptureError(f"The process that imports PyTorch for the ranks ended:\n{text[-2000:]}")
        *lines, self._received = (self._received + received).split(b"\n")
        for message in map(json.loads, lines):
            match message:
                case {"ready": _}:
                    self._is_ready = True
                case {"started": number, "process_id": process_id}:
                    self._process_ids[number] = process_id
                case {"ended": number, "exit_code": exit_code}:
                    process_id = self._process_ids.pop(number, None)
                    if process_id is not None:  # else killed from here
                        _kill_group(process_id)  # helpers that outlived it
                        self._ended.append((number, exit_code))


def _die_with_parent() -> None:
    """In a new process, before its program runs: ends it with this one, even if that is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_group(process_id: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of it is left
        os.killpg(process_id, signal.SIGKILL)
