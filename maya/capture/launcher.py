"""Running the ranks of one capture and bringing their results together."""

import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
import re
import shutil
import signal
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from maya.capture.command import Command, parse_command
from maya.capture.environment import common_environment, default_num_threads, rank_environment
from maya.capture.manifest import FILE_NAME, Manifest, RankResult
from maya.capture.oom import last_out_of_memory
from maya.capture.processes import PlainProcesses, ProcessPool, Zygote
from maya.capture.spec import CaptureSpec
from maya.capture.triton_ir import write_kernel_table
from maya.errors import CaptureError, ConfigError
from maya.signals import unwind_when_terminated

Progress = Callable[[int, int], None]
"""Called with the number of ranks that are done and of all ranks to capture."""

_STRICT_EXIT_CODE = 86  # native/emulator/recorder.cpp
_EXCHANGE_EXIT_CODE = 87  # native/emulator/exchange.h
_FOLLOWER_EXIT_CODE = 88  # of a rank that stops because another one ended with the code above
_GRACE_S = 0.5  # in which the peers of a failed rank may fail too; the cause is picked among them
_LOG_TAIL_LINES = 15
_LOG_LINE_CHARS = 1000  # a diagnosis of ranks that do not meet names both of their calls
_LAUNCHER = -1  # number of the one process of a foreign launcher

_log = logging.getLogger(__name__)


def capture(spec: CaptureSpec, progress: Progress | None = None) -> Manifest:
    """Runs the program of ``spec`` on emulated GPUs; writes traces, logs and manifest to its output folder.

    The folder appears only when the capture is complete. A rank that runs out of device memory completes it,
    with status "oom".

    Raises:
        ConfigError: a command or an output folder that cannot be used.
        CaptureError: the program failed, or did not end in time.
    """
    command = parse_command(spec.command)
    spec = replace(spec, env=spec.env | command.env)
    _check(spec, command)
    spec.output_dir.parent.mkdir(parents=True, exist_ok=True)
    work_dir = Path(tempfile.mkdtemp(dir=spec.output_dir.parent, prefix=f".{spec.output_dir.name}."))
    work_dir.chmod(0o755)
    begin = time.monotonic()
    try:
        with unwind_when_terminated():
            manifest = _run(spec, command, work_dir, progress or (lambda done, total: None))
        manifest.write(work_dir)
        if spec.output_dir.exists():
            shutil.rmtree(spec.output_dir)
        work_dir.rename(spec.output_dir)
        _log.info(
            "captured %d of %d ranks, %d device calls, in %.1f s",
            len(manifest.ranks),
            manifest.world_size,
            sum(sum(rank.calls.values()) for rank in manifest.ranks),
            time.monotonic() - begin,
        )
    except _RanksFailed as failure:
        raise CaptureError(failure.text(_keep_logs(work_dir, spec.output_dir))) from None
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    return manifest


@dataclass
class _RanksFailed(Exception):
    """A rank whose failure ends the capture; becomes a CaptureError once its log has found its place."""

    what: str
    log_name: str
    advice: str
    tail: str = field(default="")

    def text(self, logs_dir: Path) -> str:
        tail = f"\nIts last lines:\n{self.tail}" if self.tail else ""
        return f"{self.what}{tail}\nThe whole log is {logs_dir / self.log_name}. {self.advice}"


def _check(spec: CaptureSpec, command: Command) -> None:
    if command.launcher == "foreign" and spec.mode == "solo":
        raise ConfigError(
            f"`{command.argv[0]}` starts the ranks itself, so they cannot be captured solo. "
            "Use capture.mode=linked, or give the command as `torchrun` or `python`."
        )
    target = command.target
    if target is not None and target.kind == "script" and not Path(target.name).exists():
        raise ConfigError(
            f"There is no file {target.name!r} in {Path.cwd()}. Check the path of the training script."
        )
    output = spec.output_dir
    if (
        output.exists()
        and not (output / FILE_NAME).exists()
        and (not output.is_dir() or any(output.iterdir()))
    ):
        raise ConfigError(
            f"{output} exists and is not a capture, so it is not overwritten. Choose another folder."
        )


def _keep_logs(work_dir: Path, output_dir: Path) -> Path:
    kept = output_dir.with_name(output_dir.name + ".failed-logs")
    shutil.rmtree(kept, ignore_errors=True)
    (work_dir / "logs").rename(kept)
    return kept


def _run(spec: CaptureSpec, command: Command, work_dir: Path, progress: Progress) -> Manifest:
    from maya.capture.build_emulator import emulator_dir

    emulator = emulator_dir()
    logs_dir = work_dir / "logs"
    logs_dir.mkdir()
    exchange = _exchange_path()
    env = common_environment(spec, emulator, exchange, dict(os.environ))
    env |= default_num_threads(spec, env)
    deadline = time.monotonic() + spec.capture.timeout_s
    pool = _make_pool(command, env, logs_dir)
    try:
        if isinstance(pool, Zygote):
            pool.wait_until_ready(deadline)
        run = _Run(spec, command, work_dir, pool, deadline, progress)
        results = run.run_foreign() if command.launcher == "foreign" else run.run_ranks()
    finally:
        pool.close()
        exchange.unlink(missing_ok=True)
    write_kernel_table(work_dir, Path(env["TRITON_CACHE_DIR"]))
    for pattern in ("rank*.done", "rank*.repeats"):  # by which ranks told each other where they are
        for file in work_dir.glob(pattern):
            file.unlink()
    return Manifest(
        command=spec.command,
        versions=_versions(emulator),
        gpu=spec.gpu.name,
        world_size=spec.world_size,
        gpus_per_node=spec.gpus_per_node,
        mode=spec.mode,
        ranks=tuple(results),
    )


def _make_pool(command: Command, env: dict[str, str], logs_dir: Path) -> ProcessPool:
    target = command.target
    if target is None:
        return PlainProcesses(command.argv, env)
    is_package_file = target.kind == "script" and not Path(target.name).is_file()  # a folder with __main__.py
    if command.is_own_python and target.kind != "executable" and not is_package_file:
        return Zygote(target, command.interpreter, env, logs_dir / "zygote.log")
    return PlainProcesses(target.argv(command.interpreter), env)


@dataclass
class _Run:
    """The processes of one capture on their way."""

    spec: CaptureSpec
    command: Command
    work_dir: Path
    pool: ProcessPool
    deadline: float  # monotonic clock
    progress: Progress

    def run_ranks(self) -> list[RankResult]:
        spec = self.spec
        ranks = spec.captured_ranks
        waiting = deque(ranks)
        at_once = len(ranks) if spec.mode == "linked" else os.cpu_count() or 1
        master_port = _free_port()
        started_at: dict[int, float] = {}
        running: set[int] = set()
        results: dict[int, RankResult] = {}
        self.progress(0, len(ranks))
        while waiting or running:
            while waiting and len(running) < at_once:
                rank = waiting.popleft()
                self.pool.start(rank, self._environment(rank, master_port), self._log_path(f"rank{rank:05d}"))
                started_at[rank] = time.monotonic()
                running.add(rank)
            ended = self.pool.poll()
            if any(exit_code != 0 for _, exit_code in ended):
                ended += self._wait_for_peers(running - {rank for rank, _ in ended})
            for rank, exit_code in ended:
                running.discard(rank)
                results[rank] = _result(self.work_dir, rank, exit_code, time.monotonic() - started_at[rank])
            self._raise_failure([results[rank] for rank, _ in ended])
            if any(results[rank].status == "oom" for rank, _ in ended):
                self.pool.kill(running)
                for rank in (*running, *waiting):
                    seconds = time.monotonic() - started_at.get(rank, time.monotonic())
                    results[rank] = _stopped(self.work_dir, rank, seconds)
                break
            self._raise_timeout(running)
            if ended:
                self.progress(len(results), len(ranks))
        return [results[rank] for rank in ranks]

    def run_foreign(self) -> list[RankResult]:
        """Runs a launcher whose children are the ranks; what they did shows in the files that they leave."""
        started_at = time.monotonic()
        ranks = range(self.spec.world_size)
        self.progress(0, len(ranks))
        log = self._log_path("launcher")
        self.pool.start(_LAUNCHER, {"MAYA_TRACE_DIR": str(self.work_dir)}, log)
        exit_codes: list[int] = []
        while not exit_codes:
            exit_codes = [exit_code for _, exit_code in self.pool.poll()]
            if not exit_codes and time.monotonic() > self.deadline:
                raise _RanksFailed(
                    f"`{self.command.argv[0]}` did not end within {self.spec.capture.timeout_s:g} s.",
                    log.name,
                    "If it is not stuck, raise capture.timeout_s.",
                    _tail(log),
                )
        seconds = time.monotonic() - started_at
        results = [_result(self.work_dir, rank, exit_codes[0], seconds) for rank in ranks]
        if exit_codes[0] != 0:
            if any(result.status == "oom" for result in results):
                return [r if r.status == "oom" else _stopped(self.work_dir, r.rank, seconds) for r in results]
            raise _RanksFailed(
                f"`{self.command.argv[0]}` {_describe_exit(exit_codes[0])}.",
                log.name,
                "Check that the command runs by itself.",
                _tail(log),
            )
        absent = [rank for rank in ranks if not self._trace(rank).exists()]
        if absent:
            raise _RanksFailed(
                f"`{self.command.argv[0]}` ended, and of {len(ranks)} ranks these used no GPU: {absent[:8]}.",
                log.name,
                "Give the world size that the command really starts with `--world-size`.",
                _tail(log),
            )
        return results

    def _environment(self, rank: int, master_port: int) -> dict[str, str]:
        env = {"MAYA_TRACE_DIR": str(self.work_dir)}
        # `python train.py` on one GPU sees no RANK, and programs go by that.
        if self.command.launcher == "torchrun" or self.spec.world_size > 1:
            env |= rank_environment(self.spec, rank, master_port)
        return env

    def _log_path(self, name: str) -> Path:
        return self.work_dir / "logs" / f"{name}.log"

    def _trace(self, rank: int) -> Path:
        return self.work_dir / f"rank{rank:05d}.trace"

    def _wait_for_peers(self, peers: set[int]) -> list[tuple[int, int]]:
        """A linked rank that loses its peer fails after it; both are looked at to name the cause."""
        ended: list[tuple[int, int]] = []
        until = time.monotonic() + _GRACE_S
        while time.monotonic() < until and len(ended) < len(peers):
            ended += self.pool.poll()
        return ended

    def _raise_failure(self, results: list[RankResult]) -> None:
        if any(result.status == "oom" for result in results):
            return
        failed = [result for result in results if result.exit_code]
        unused = [
            result for result in results if not result.exit_code and not self._trace(result.rank).exists()
        ]
        if failed:
            first = next((r for r in failed if r.exit_code != _FOLLOWER_EXIT_CODE), failed[0])
            assert first.exit_code is not None
            advice = "Check that the program runs by itself with these arguments."
            if first.exit_code == _STRICT_EXIT_CODE:
                advice = "The call named there is not emulated. Without capture.strict it gets an error code."
            what = f"Rank {first.rank} {_describe_exit(first.exit_code)}"
            if first.exit_code == _EXCHANGE_EXIT_CODE:
                what = f"Rank {first.rank} does not meet its peers in a collective"
            if first.error:
                what += f": {first.error.rstrip('.')}"
        elif unused:
            first = unused[0]
            what, advice = f"Rank {first.rank} ended without using a GPU", "Check what the program asks for."
        else:
            return
        log = self._log_path(f"rank{first.rank:05d}")
        raise _RanksFailed(f"{what}.", log.name, advice, _tail(log))

    def _raise_timeout(self, running: set[int]) -> None:
        if not running or time.monotonic() < self.deadline:
            return
        # A rank that waits for the others at its end is not the one that is stuck.
        stuck = [r for r in sorted(running) if not (self.work_dir / f"rank{r:05d}.done").exists()] or sorted(
            running
        )
        log = self._log_path(f"rank{stuck[0]:05d}")
        names = ", ".join(map(str, stuck[:8])) + (", ..." if len(stuck) > 8 else "")
        raise _RanksFailed(
            f"Rank {names} did not end within {self.spec.capture.timeout_s:g} s.",
            log.name,
            "If it is not stuck, raise capture.timeout_s.",
            _tail(log),
        )


def _result(work_dir: Path, rank: int, exit_code: int, seconds: float) -> RankResult:
    events = _read_events(work_dir / f"rank{rank:05d}.events.jsonl")
    calls: dict[str, Any] = next((dict(e["calls"]) for e in reversed(events) if e["type"] == "calls"), {})
    unemulated, unemulated_callers = calls.pop("unemulated", {}), calls.pop("unemulated_callers", {})
    recorded_calls, overhead_ns_median = calls.pop("recorded", 0), calls.pop("overhead_ns_median", 0.0)
    exception = next((e for e in reversed(events) if e["type"] == "exception"), None)
    is_oom = exit_code != 0 and exception is not None and exception["is_out_of_memory"]
    return RankResult(
        rank=rank,
        status="oom" if is_oom else "ok",
        exit_code=exit_code,
        iterations=next((e["iterations"] for e in reversed(events) if e["type"] == "end"), 0),
        calls=calls,
        unemulated=unemulated,
        unemulated_callers=unemulated_callers,
        recorded_calls=recorded_calls,
        overhead_ns_median=overhead_ns_median,
        seconds=round(seconds, 3),
        made_up_reads=next((e["reads"] for e in events if e["type"] == "made_up_reads"), []),
        oom=last_out_of_memory(work_dir / f"rank{rank:05d}.trace") if is_oom else None,
        error=f"{exception['class']}: {exception['message']}" if exception else None,
    )


def _stopped(work_dir: Path, rank: int, seconds: float) -> RankResult:
    return RankResult(rank=rank, status="stopped", exit_code=None, iterations=0, seconds=round(seconds, 3))


def _read_events(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]  # a killed process may leave a last line without its end


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").rstrip().split("\n") if log.exists() else []
    return "\n".join(f"  {line[:_LOG_LINE_CHARS]}" for line in lines[-_LOG_TAIL_LINES:] if line)


def _describe_exit(exit_code: int) -> str:
    if exit_code < 0:
        return f"was ended by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _exchange_path() -> Path:
    """A name in memory-backed storage where there is some; the emulator makes the file."""
    folder = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())
    return folder / f"maya-exchange-{os.getpid()}-{time.monotonic_ns():x}"


def _versions(emulator: Path) -> dict[str, str]:
    versions = {"python": platform.python_version(), "emulator": emulator.name}
    for name, distribution in (("maya", "maya-sim"), ("torch", "torch")):
        try:
            versions[name] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "unknown"
    versions["cuda"] = _torch_cuda_version()
    return versions


def _torch_cuda_version() -> str:
    """The CUDA version of the installed PyTorch, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "unknown"
    match = re.search(
        r"^cuda.*= '([\d.]+)'", Path(spec.origin).with_name("version.py").read_text(), re.MULTILINE
    )
    return match[1] if match else "none"
