"""A warm process that trains one step of each model it is asked for, in a forked child each.

It reads names from stdin, a line each, and writes one line of JSON for each to stdout. A child that crashes
or hangs costs its own model only.
"""

import ctypes
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import transformers
from train_step import train

# What most models import, once for all children.
WARM_MODULES = (
    *("timm", "torch._dynamo", "accelerate", "transformers.models.auto.modeling_auto"),
    *(
        f"transformers.models.{name}.modeling_{name}"
        for name in ("bert", "llama", "mixtral", "vit", "whisper")
    ),
)
TIME_LIMIT_S = {"cuda": 90, "cpu": 150}
CPU_MEMORY_BYTES = 10 << 30
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")


def main() -> None:
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name in WARM_MODULES:
        importlib.import_module(name)
    for line in sys.stdin:
        print(json.dumps(outcome(line.strip())), flush=True)


def outcome(name: str) -> dict[str, Any]:
    """A row of the table. A model that also fails on the CPU says nothing about the emulator.

    Where the CPU has too little memory or time to tell, the failure counts against the emulator.
    """
    result = attempt(name, "cuda")
    if result["status"] == "failed":
        on_cpu = attempt(name, "cpu")
        if on_cpu["status"] == "failed":
            reason = f"{result['reason']}; on the CPU: {on_cpu['reason']}"
            result |= {"status": "fails_on_cpu", "reason": reason}
    return {"model": name, **result}


def attempt(name: str, device: str) -> dict[str, Any]:
    """Trains one step in a child; returns its status, seconds, and what it measured or why it failed."""
    reader, writer = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_child(name, device, writer)
    os.close(writer)
    received = b""
    deadline = began + TIME_LIMIT_S[device]
    is_late = False
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while not is_late:
            if not select.select([pipe], [], [], max(deadline - time.monotonic(), 0))[0]:
                is_late = True
            elif part := pipe.read(1 << 16):
                received += part
            else:
                break
    if is_late:
        os.kill(child, signal.SIGKILL)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seconds = round(time.monotonic() - began, 2)
    if received:
        return {**json.loads(received), "seconds": seconds}
    reason = f"no end within {TIME_LIMIT_S[device]} s" if is_late else f"exit code {exit_code}"
    return {"status": "unfinished" if device == "cpu" else "failed", "reason": reason, "seconds": seconds}


def _run_child(name: str, device: str, writer: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    if device == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (CPU_MEMORY_BYTES, CPU_MEMORY_BYTES))
    try:
        train(name, torch.device(device))
        result = {"status": "ok"}
        if device == "cuda":
            result |= _device_calls()
    except BaseException as error:
        result = _failure(error)
    os.write(writer, json.dumps(result).encode())
    os._exit(0)


def _device_calls() -> dict[str, Any]:
    """What this process asked of the emulated GPU."""
    emulator = ctypes.CDLL(None)
    emulator.maya_call_counts.restype = ctypes.c_char_p
    calls = json.loads(emulator.maya_call_counts())
    unemulated = calls.pop("unemulated")
    return {
        "kernels": sum(calls.get(launch, 0) for launch in LAUNCHES),
        "peak_bytes": torch.cuda.max_memory_reserved(),
        "unemulated_calls": ";".join(f"{call}={count}" for call, count in sorted(unemulated.items())),
    }


def _failure(error: BaseException) -> dict[str, Any]:
    text = str(error).strip().partition("\n")[0][:200]
    is_out_of_memory = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in text
    if is_out_of_memory:
        return {"status": "oom", "reason": text}
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return {"status": "failed", "reason": f"{type(error).__name__}: {text} ({where})"}


if __name__ == "__main__":
    main()
