"""Wrong use of the runtime gives the error that CUDA gives."""

import os
from pathlib import Path

import pytest
from emulated import run_checked, run_program

from maya.capture.build_emulator import SANITIZE_VARIABLE

pytestmark = pytest.mark.emulator

CODES = """
INVALID_VALUE, INVALID_CONFIGURATION, INVALID_HANDLE = 1, 9, 400
def size(n): return ctypes.c_size_t(n)
def after(pointer, n): return ctypes.c_void_p(pointer.value + n)
host = ctypes.create_string_buffer(1 << 12)
H2D, D2H, D2D = 1, 2, 3
"""


def test_memory_that_is_freed_or_too_small(tmp_path: Path) -> None:
    program = """
    block, other = malloc(1024), malloc(1024)
    copy, fill = rt.cudaMemcpy, rt.cudaMemset
    assert copy(block, host, size(1024), H2D) == 0
    assert copy(block, host, size(1025), H2D) == INVALID_VALUE
    assert copy(after(block, 1000), host, size(25), H2D) == INVALID_VALUE
    assert copy(host, after(block, 1000), size(25), D2H) == INVALID_VALUE
    assert copy(host, after(block, 1000), size(24), D2H) == 0
    assert copy(other, block, size(2048), D2D) == INVALID_VALUE
    assert fill(block, 0, size(1025)) == INVALID_VALUE
    # Three rows of 300 bytes at a distance of 400 end at 1100.
    assert rt.cudaMemcpy2D(block, size(400), host, size(300), size(300), size(3), H2D) == INVALID_VALUE
    assert rt.cudaMemcpy2D(block, size(362), host, size(300), size(300), size(3), H2D) == 0
    assert rt.cudaGetLastError() == INVALID_VALUE and rt.cudaGetLastError() == 0
    assert rt.cudaFree(after(block, 8)) == INVALID_VALUE
    assert rt.cudaFree(block) == 0
    assert rt.cudaFree(block) == INVALID_VALUE
    assert copy(block, host, size(8), H2D) == INVALID_VALUE
    assert copy(host, block, size(8), D2H) == INVALID_VALUE
    assert rt.cudaFree(ctypes.addressof(host)) == INVALID_VALUE
    """
    run_checked(with_codes(program), tmp_path)


def test_handles_that_are_destroyed_or_of_another_device(tmp_path: Path) -> None:
    program = """
    e, s, ended, gone = event(), stream(), event(), stream()
    block = malloc(64)
    k = kernel(b"_Z1kPf")
    call("cudaEventDestroy", ended)
    call("cudaStreamDestroy", gone)
    assert rt.cudaEventDestroy(ended) == INVALID_HANDLE
    assert rt.cudaStreamDestroy(gone) == INVALID_HANDLE
    assert rt.cudaEventRecord(ended, s) == INVALID_HANDLE
    assert rt.cudaEventRecord(e, gone) == INVALID_HANDLE
    assert rt.cudaEventQuery(ended) == INVALID_HANDLE
    assert rt.cudaEventSynchronize(ended) == INVALID_HANDLE
    assert rt.cudaStreamWaitEvent(s, ended, 0) == INVALID_HANDLE
    assert rt.cudaStreamWaitEvent(gone, e, 0) == INVALID_HANDLE
    assert rt.cudaStreamSynchronize(gone) == INVALID_HANDLE
    assert rt.cudaStreamQuery(gone) == INVALID_HANDLE
    assert rt.cudaMemcpyAsync(block, host, size(8), H2D, gone) == INVALID_HANDLE
    assert rt.cudaMemsetAsync(block, 0, size(8), gone) == INVALID_HANDLE
    assert launch(k, block, on=gone) == INVALID_HANDLE
    # An event that is made afterwards is a valid one, whatever handle it gets.
    assert rt.cudaEventRecord(event(), s) == 0
    call("cudaSetDevice", 1)
    elsewhere = stream()
    assert rt.cudaEventRecord(e, elsewhere) == INVALID_HANDLE
    assert rt.cudaStreamWaitEvent(elsewhere, e, 0) == 0
    """
    run_checked(with_codes(program), tmp_path, MAYA_NUM_DEVICES="2")


def test_launches_with_a_bad_configuration(tmp_path: Path) -> None:
    program = """
    k = kernel(b"_Z1kPf")
    block = malloc(64)
    assert launch(k, block, grid=(0, 1, 1)) == INVALID_CONFIGURATION
    assert launch(k, block, block=(2048, 1, 1)) == INVALID_CONFIGURATION
    assert launch(k, block, block=(1, 1, 65)) == INVALID_CONFIGURATION
    assert launch(k, block, grid=(1, 65536, 1)) == INVALID_CONFIGURATION
    assert launch(k, block, shared=100 << 10) == INVALID_VALUE
    assert launch(k, block) == 0
    """
    run_checked(with_codes(program), tmp_path)


@pytest.mark.skipif(
    os.environ.get(SANITIZE_VARIABLE) == "1", reason="calls come from the sanitizer's library"
)
def test_a_call_that_is_not_emulated_names_its_caller(tmp_path: Path) -> None:
    program = """
    import ctypes, json
    library = ctypes.CDLL(None)
    find = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)(
        lambda text, size: ctypes.memmove(text, b"train.py:3 in main", 18)
    )
    library.maya_find_call_sites(find)
    name = "curandCreateGenerator"
    assert getattr(library, name)(None, None, None, None) != 0
    assert getattr(library, name)(None, None, None, None) != 0
    library.maya_call_counts.restype = ctypes.c_char_p
    counts = json.loads(library.maya_call_counts())
    assert counts["unemulated"] == {name: 2}, counts
    assert counts["unemulated_callers"][name].endswith(" at train.py:3 in main"), counts
    assert "ffi" in counts["unemulated_callers"][name], counts  # ctypes calls by libffi
    """
    run = run_checked(program, tmp_path, preload=True)
    assert run.errors.count("curandCreateGenerator, called by") == 1
    strict = run_program(program, tmp_path, preload=True, MAYA_STRICT="1")
    assert strict.returncode == 86


def with_codes(program: str) -> str:
    import textwrap

    return CODES + textwrap.dedent(program)
