"""Wrong use of the runtime gives the error that CUDA gives."""

import os
from pathlib import Path

import pytest
from emulated import run_checked, run_program

from maya.capture.build_emulator import SANITIZE_VARIABLE

pytestmark = pytest.mark.emulator

CODES = """
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION, INVALID_HANDLE = 1, 2, 9, 400
INVALID_PITCH, INVALID_DIRECTION, ALREADY_REGISTERED, NOT_REGISTERED = 12, 21, 712, 713
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


def test_sizes_that_nothing_holds(tmp_path: Path) -> None:
    program = """
    free, pointer = ctypes.c_size_t(), ctypes.c_void_p()
    def free_bytes():
        call("cudaMemGetInfo", ctypes.byref(free), None)
        return free.value
    before = free_bytes()
    for count in (1 << 45, 1 << 62, 1 << 63, (1 << 64) - 1):
        assert rt.cudaMalloc(ctypes.byref(pointer), size(count)) == OUT_OF_MEMORY
        assert rt.cudaHostAlloc(ctypes.byref(pointer), size(count), 0) == OUT_OF_MEMORY
    assert free_bytes() == before
    block = malloc(1024)  # there are addresses left
    for count in ((1 << 64) - 1, (1 << 64) - block.value, 1 << 63):
        assert rt.cudaMemcpy(block, host, size(count), H2D) == INVALID_VALUE
        assert rt.cudaMemset(block, 0, size(count)) == INVALID_VALUE
    half = size(1 << 32)  # squared, it is 0
    assert rt.cudaMemcpy2D(block, half, host, half, half, half, H2D) == INVALID_VALUE
    assert rt.cudaMemcpy2D(block, size(8), host, size(16), size(16), size(2), H2D) == INVALID_PITCH
    assert rt.cudaMemcpy(block, host, size(8), 7) == INVALID_DIRECTION
    assert rt.cudaMemcpy(block, host, size(8), D2D) == INVALID_VALUE
    assert rt.cudaMemset(host, 0, size(8)) == INVALID_VALUE  # pageable
    assert rt.cudaMallocPitch(ctypes.byref(pointer), ctypes.byref(free), half, size(1 << 40)) == INVALID_VALUE
    """
    run_checked(with_codes(program), tmp_path)


def test_memory_is_released_by_the_call_that_belongs_to_it(tmp_path: Path) -> None:
    program = """
    block, pinned, area = malloc(64), ctypes.c_void_p(), ctypes.create_string_buffer(1 << 14)
    call("cudaHostAlloc", ctypes.byref(pinned), size(64), 0)
    call("cudaHostRegister", after(ctypes.cast(area, ctypes.c_void_p), 4096), size(4096), 0)
    registered = after(ctypes.cast(area, ctypes.c_void_p), 4096)
    for address, wrong, right in (
        (block, ("cudaFreeHost", "cudaHostUnregister", "cudaIpcCloseMemHandle"), "cudaFree"),
        (pinned, ("cudaFree", "cudaHostUnregister"), "cudaFreeHost"),
        (registered, ("cudaFree", "cudaFreeHost"), "cudaHostUnregister"),
    ):
        for name in wrong: assert getattr(rt, name)(address) in (INVALID_VALUE, NOT_REGISTERED), name
        if address is registered:
            assert rt.cudaHostRegister(area, size(1 << 14), 0) == ALREADY_REGISTERED  # a part of it
        assert getattr(rt, right)(address) == 0  # nothing was forgotten
        assert getattr(rt, right)(address) in (INVALID_VALUE, NOT_REGISTERED)
    """
    run_checked(with_codes(program), tmp_path)


def test_virtual_memory(tmp_path: Path) -> None:
    program = """
    PAGE = 2 << 20
    def u64(n): return ctypes.c_uint64(n)
    made, handle, other = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    call("cuMemAddressReserve", ctypes.byref(made), size(2 * PAGE), size(0), u64(0), u64(0))
    base = made.value
    properties = (ctypes.c_int * 16)(1, 0, 1, 0)
    assert rt.cuMemCreate(ctypes.byref(handle), size(1 << 63), properties, u64(0)) == INVALID_VALUE
    for h in (handle, other): call("cuMemCreate", ctypes.byref(h), size(PAGE), properties, u64(0))
    def map_at(address, h, count=PAGE): return rt.cuMemMap(u64(address), size(count), size(0), h, u64(0))
    assert map_at(base + 2 * PAGE, handle) == INVALID_VALUE  # not reserved
    assert map_at(ctypes.addressof(host), handle) == INVALID_VALUE
    assert map_at(base, handle, 2 * PAGE) == INVALID_VALUE  # more than there is
    assert map_at(base, handle) == 0
    assert map_at(base, other) == INVALID_VALUE  # something is there
    assert rt.cudaFree(ctypes.c_void_p(base)) == INVALID_VALUE
    assert rt.cuMemUnmap(u64(base), size(PAGE // 2)) == INVALID_VALUE
    assert rt.cuMemUnmap(u64(base), size(2 * PAGE)) == INVALID_VALUE
    assert rt.cuMemAddressFree(u64(base), size(2 * PAGE)) == INVALID_VALUE  # still mapped
    assert rt.cuMemRelease(handle) == 0
    assert rt.cuMemRelease(handle) == INVALID_VALUE  # the mapping is no handle
    assert rt.cudaMemset(ctypes.c_void_p(base), 1, size(PAGE)) == 0
    assert rt.cuMemUnmap(u64(base), size(PAGE)) == 0
    assert rt.cuMemAddressFree(u64(base), size(PAGE)) == INVALID_VALUE  # a part
    assert rt.cuMemAddressFree(u64(ctypes.addressof(host)), size(PAGE)) == INVALID_VALUE
    assert rt.cuMemAddressFree(u64(base), size(2 * PAGE)) == 0
    """
    run_checked(with_codes(program), tmp_path)


def test_destroyed_streams(tmp_path: Path) -> None:
    program = """
    gone, s, block = stream(), stream(), malloc(64)
    graph, executable, status = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    call("cudaStreamBeginCapture", s, 0)
    call("cudaStreamEndCapture", s, ctypes.byref(graph))
    call("cudaGraphInstantiate", ctypes.byref(executable), graph, ctypes.c_uint64(0))
    call("cudaStreamDestroy", gone)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: None)
    assert rt.cudaLaunchHostFunc(gone, function, None) == INVALID_HANDLE
    assert rt.cudaStreamBeginCapture(gone, 0) == INVALID_HANDLE
    assert rt.cudaStreamEndCapture(gone, ctypes.byref(graph)) == INVALID_HANDLE
    assert rt.cudaStreamIsCapturing(gone, ctypes.byref(status)) == INVALID_HANDLE
    assert rt.cudaGraphLaunch(executable, gone) == INVALID_HANDLE
    assert rt.cudaFreeAsync(block, gone) == INVALID_HANDLE
    assert rt.cudaMallocAsync(ctypes.byref(graph), size(8), gone) == INVALID_HANDLE
    assert rt.cudaGraphExecDestroy(None) == INVALID_VALUE
    # A capture ends with the stream that began it, and what it forbade is allowed again.
    call("cudaStreamBeginCapture", s, 0)
    call("cudaStreamDestroy", s)
    call("cudaFree", malloc(64))
    """
    run_checked(with_codes(program), tmp_path)


def test_legacy_stream_while_a_blocking_stream_captures(tmp_path: Path) -> None:
    program = """
    IMPLICIT, INVALIDATED = 906, 901
    block, graph = malloc(64), ctypes.c_void_p()
    for flags, code in ((0, IMPLICIT), (1, 0)):
        s = stream(flags)
        call("cudaStreamBeginCapture", s, 2)
        assert rt.cudaMemsetAsync(block, 0, size(8), None) == code
        assert rt.cudaStreamEndCapture(s, ctypes.byref(graph)) == (INVALIDATED if code else 0)
    """
    run_checked(with_codes(program), tmp_path)


def test_graph_whose_memory_was_freed(tmp_path: Path) -> None:
    program = """
    s, block, other = stream(), malloc(64), malloc(64)
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    call("cudaStreamBeginCapture", s, 0)
    call("cudaMemsetAsync", block, 1, size(64), s)
    call("cudaMemcpyAsync", other, block, size(64), D2D, s)
    call("cudaStreamEndCapture", s, ctypes.byref(graph))
    call("cudaGraphInstantiate", ctypes.byref(executable), graph, ctypes.c_uint64(0))
    call("cudaFree", block)
    call("cudaGraphLaunch", executable, s)  # touches nothing
    call("cudaMemcpy", host, other, size(64), D2H)
    assert host.raw[:64] == bytes(64)
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
