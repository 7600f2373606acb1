"""Run a Python program on the emulated GPU and read its trace."""

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from maya.capture.build_emulator import emulator_dir
from maya.trace import Trace, read_trace

MEMORY_BYTES = 8 << 30
CONTEXT_BYTES = 512 << 20

# An invented device with round numbers.
GPU = {
    "device_name": "Test GPU",
    "compute_capability": "9.0",
    "num_sms": 132,
    "memory_bytes": MEMORY_BYTES,
    "l2_bytes": 50 << 20,
    "shared_bytes_per_block": 48 << 10,
    "shared_bytes_per_block_optin": 227 << 10,
    "shared_bytes_per_sm": 228 << 10,
    "max_threads_per_sm": 2048,
    "max_blocks_per_sm": 32,
    "sm_clock_hz": 1.98e9,
    "memory_clock_hz": 2.6e9,
    "memory_bus_bits": 5120,
    "async_engines": 3,
    "context_bytes": CONTEXT_BYTES,
    "nccl_channels": 24,
    "nccl_channels_per_peer": 32,
    "nccl_nvls_channels": 16,
}

# What the programs of the tests begin with: the library by ctypes, calls that must succeed.
PROLOGUE = """
import ctypes, os, sys, threading, time
rt = ctypes.CDLL(os.environ["TEST_LIBRARY"])
class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]
def call(name, *args):
    code = getattr(rt, name)(*args)
    assert code == 0, f"{name} returned {code}"
def malloc(size):
    pointer = ctypes.c_void_p()
    call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(size))
    return pointer
def stream(flags=1):
    handle = ctypes.c_void_p()
    call("cudaStreamCreateWithFlags", ctypes.byref(handle), flags)
    return handle
def event(flags=2):
    handle = ctypes.c_void_p()
    call("cudaEventCreateWithFlags", ctypes.byref(handle), flags)
    return handle
stubs = []
def kernel(mangled_name):
    stub, name = ctypes.create_string_buffer(1), ctypes.create_string_buffer(mangled_name)
    stubs.append((stub, name))
    rt.__cudaRegisterFunction(None, stub, name, name, -1, None, None, None, None, None)
    return stub
def launch(stub, *args, grid=(1, 1, 1), block=(128, 1, 1), shared=0, on=None):
    addresses = [ctypes.cast(ctypes.byref(a), ctypes.c_void_p) for a in args]
    pointers = (ctypes.c_void_p * max(len(args), 1))(*addresses)
    return rt.cudaLaunchKernel(stub, Dim3(*grid), Dim3(*block), pointers, ctypes.c_size_t(shared), on)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """How a program ended."""

    returncode: int
    output: str
    errors: str
    trace_dir: Path

    def trace(self, rank: int = 0, allow_incomplete: bool = False) -> Trace:
        """The trace that the program left."""
        return read_trace(self.trace_dir / f"rank{rank:05}.trace", allow_incomplete)


def emulator_environment(trace_dir: Path) -> dict[str, str]:
    """Environment of a process that opens the library which `TEST_LIBRARY` names."""
    return {
        **{
            k: v
            for k, v in os.environ.items()
            if k not in ("RANK", "CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE")
        },
        "MAYA_GPU": ";".join(f"{key}={value}" for key, value in GPU.items()),
        "MAYA_TRACE_DIR": str(trace_dir),
        "TEST_LIBRARY": str(emulator_dir() / "libmaya_emulator.so"),
    }


def run_program(program: str, trace_dir: Path, *, preload: bool = False, **variables: str) -> Run:
    """Run Python source, by default with `PROLOGUE` in front; with `preload` as an unmodified program."""
    environment = emulator_environment(trace_dir)
    library = Path(environment["TEST_LIBRARY"])
    if preload:
        environment |= {
            "LD_PRELOAD": preload_list(library),
            "LD_LIBRARY_PATH": str(library.parent),
            "NVTX_INJECTION64_PATH": str(library),
            "TRITON_LIBCUDA_PATH": str(library.parent),
        }
    source = ("" if preload else PROLOGUE) + textwrap.dedent(program)
    result = subprocess.run(
        [sys.executable, "-c", source],
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Run(returncode=result.returncode, output=result.stdout, errors=result.stderr, trace_dir=trace_dir)


def preload_list(library: Path) -> str:
    """Value of LD_PRELOAD: what the tests themselves run under (sanitizers) comes first."""
    return " ".join((*os.environ.get("LD_PRELOAD", "").split(), str(library)))


def run_checked(program: str, trace_dir: Path, *, preload: bool = False, **variables: str) -> Run:
    """As `run_program`; the program must end well."""
    run = run_program(program, trace_dir, preload=preload, **variables)
    assert run.returncode == 0, run.output + run.errors
    return run
