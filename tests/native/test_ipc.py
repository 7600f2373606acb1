"""Memory and events that processes share."""

from pathlib import Path

import pytest
from native.emulated import run_checked

pytestmark = pytest.mark.emulator

# The parent and its child, forked before either uses CUDA, talk through two pipes.
PROCESSES = """
import pickle
up, down = os.pipe(), os.pipe()
child = os.fork()
inbox = os.fdopen((up if child else down)[0], "rb")
outbox = os.fdopen((down if child else up)[1], "wb", buffering=0)
def send(value): pickle.dump(value, outbox)
def receive(): return pickle.load(inbox)
class Handle(ctypes.Structure): _fields_ = [("bytes", ctypes.c_ubyte * 64)]
def read(address, size):
    target = ctypes.create_string_buffer(size)
    call("cudaMemcpy", target, ctypes.c_void_p(address), ctypes.c_size_t(size), 2)
    return target.raw
def write(address, data):
    call("cudaMemcpy", ctypes.c_void_p(address), data, ctypes.c_size_t(len(data)), 1)
def free_bytes():
    free = ctypes.c_size_t()
    call("cudaMemGetInfo", ctypes.byref(free), None)
    return free.value
def memory_handle(address):
    handle = Handle()
    call("cudaIpcGetMemHandle", ctypes.byref(handle), ctypes.c_void_p(address))
    return bytes(handle)
def open_memory(handle):
    address = ctypes.c_void_p()
    code = rt.cudaIpcOpenMemHandle(ctypes.byref(address), Handle.from_buffer_copy(handle), 1)
    return code, address.value
"""


def test_memory_is_shared_both_ways(tmp_path: Path) -> None:
    program = (
        PROCESSES
        + """
if child:
    block = malloc(5 << 20).value
    write(block, b"before")
    write(block + (4 << 20), b"far")
    handle = memory_handle(block)
    assert memory_handle(block + 100) == handle  # of the block
    assert open_memory(handle)[0] == 201  # not in the process itself
    assert read(block, 6) == b"before"
    send(handle)
    assert receive() == "written"
    assert read(block, 7) == b"written"
    # Fills and copies of more than 64 KiB leave zeros, of shared memory too.
    call("cudaMemset", ctypes.c_void_p(block), 0, ctypes.c_size_t(5 << 20))
    send("zero")
    assert receive() == "closed"
    call("cudaFree", ctypes.c_void_p(block))
    send("freed")
    assert os.waitpid(child, 0)[1] == 0
else:
    handle = receive()
    free = free_bytes()
    code, address = open_memory(handle)
    assert code == 0 and open_memory(handle) == (0, address)  # again: the same address
    assert free_bytes() == free  # it is counted for its owner
    assert read(address, 6) == b"before" and read(address + (4 << 20), 3) == b"far"
    write(address, b"written")
    send("written")
    assert receive() == "zero"
    assert read(address, 7) == bytes(7)
    assert rt.cudaFree(ctypes.c_void_p(address)) == 1
    for _ in range(2): call("cudaIpcCloseMemHandle", ctypes.c_void_p(address))
    assert rt.cudaIpcCloseMemHandle(ctypes.c_void_p(address)) == 1
    assert rt.cudaMemset(ctypes.c_void_p(address), 0, ctypes.c_size_t(1)) == 1
    send("closed")
    assert receive() == "freed"
    assert open_memory(handle)[0] == 205  # cannot be mapped any more
    os._exit(0)
"""
    )
    run_checked(program, tmp_path, MAYA_TRACE_DIR="")


def test_events(tmp_path: Path) -> None:
    program = (
        PROCESSES
        + """
TIMING_OFF, INTERPROCESS = 2, 4
if child:
    shared, own = event(TIMING_OFF | INTERPROCESS), event(TIMING_OFF)
    handle = Handle()
    assert rt.cudaEventCreateWithFlags(ctypes.byref(ctypes.c_void_p()), INTERPROCESS) == 1
    assert rt.cudaIpcGetEventHandle(ctypes.byref(handle), own) == 400
    call("cudaIpcGetEventHandle", ctypes.byref(handle), shared)
    call("cudaEventRecord", shared, None)
    send(bytes(handle))
    assert os.waitpid(child, 0)[1] == 0
    call("cudaEventDestroy", shared)
    assert rt.cudaIpcGetEventHandle(ctypes.byref(handle), shared) == 400
else:
    imported, s = ctypes.c_void_p(), stream()
    call("cudaIpcOpenEventHandle", ctypes.byref(imported), Handle.from_buffer_copy(receive()))
    call("cudaEventQuery", imported)
    call("cudaStreamWaitEvent", s, imported, 0)
    call("cudaEventRecord", imported, s)
    call("cudaEventSynchronize", imported)
    call("cudaEventDestroy", imported)
    os._exit(0)
"""
    )
    run_checked(program, tmp_path, MAYA_TRACE_DIR="")


@pytest.mark.slow
def test_tensors_go_to_spawned_processes(tmp_path: Path) -> None:
    (tmp_path / "shared_tensors.py").write_text(
        """
import torch

def child(tensors, done):
    received = tensors.get()
    assert received.device.type == "cuda" and received.tolist() == [0, 1, 2, 3], received
    received.copy_(torch.tensor([5, 6, 7, 8]))
    torch.cuda.synchronize()
    done.put("written")
    assert tensors.get() is None
    del received
"""
    )
    program = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch.multiprocessing as mp, torch
        import shared_tensors
        context = mp.get_context("spawn")
        tensors, done = context.Queue(), context.Queue()
        process = context.Process(target=shared_tensors.child, args=(tensors, done))
        process.start()
        sent = torch.arange(4, device="cpu").cuda()
        tensors.put(sent)
        assert done.get(timeout=120) == "written"
        assert sent.tolist() == [5, 6, 7, 8], sent
        tensors.put(None)
        process.join()
        assert process.exitcode == 0
    """
    run_checked(program, tmp_path, preload=True, MAYA_TRACE_DIR="", PYTHONPATH=str(tmp_path))
