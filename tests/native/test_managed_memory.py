"""Managed memory: the host reads and writes it directly."""

from pathlib import Path

import pytest
from native.emulated import run_checked

pytestmark = pytest.mark.emulator


def test_host_and_device_share_the_bytes(tmp_path: Path) -> None:
    program = """
    class Location(ctypes.Structure): _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
    DEVICE, HOST = Location(1, 0), Location(2, 0)
    INVALID_VALUE, INVALID_DEVICE, READ_MOSTLY, PREFERRED, ACCESSED_BY = 1, 101, 1, 3, 5
    def size(n): return ctypes.c_size_t(n)
    def managed(count, flags=1):
        address = ctypes.c_void_p()
        return rt.cudaMallocManaged(ctypes.byref(address), size(count), flags), address
    code, block = managed(1000)
    assert code == 0
    assert managed(0)[0] == INVALID_VALUE and managed(1000, flags=0)[0] == INVALID_VALUE
    ctypes.memmove(block.value, b"from the host", 13)
    device, back = malloc(1000), ctypes.create_string_buffer(13)
    call("cudaMemcpy", device, block, size(13), 4)
    call("cudaMemcpy", back, device, size(13), 2)
    assert back.raw == b"from the host"
    call("cudaMemset", block, ord("d"), size(4))
    call("cudaDeviceSynchronize")
    assert ctypes.string_at(block.value, 13) == b"dddd the host"
    prefetch, advise = rt.cudaMemPrefetchAsync, rt.cudaMemAdvise
    for where in (DEVICE, HOST): assert prefetch(block, size(1000), where, 0, None) == 0
    assert prefetch(block, size(1001), DEVICE, 0, None) == INVALID_VALUE
    assert prefetch(block, size(0), DEVICE, 0, None) == INVALID_VALUE
    assert prefetch(device, size(1000), DEVICE, 0, None) == INVALID_VALUE
    assert prefetch(block, size(1000), Location(1, 3), 0, None) == INVALID_DEVICE
    for advice in (READ_MOSTLY, PREFERRED, ACCESSED_BY): assert advise(block, size(1000), advice, DEVICE) == 0
    assert advise(block, size(1000), 9, DEVICE) == INVALID_VALUE
    assert advise(block, size(1000), PREFERRED, Location(1, 3)) == INVALID_DEVICE
    assert advise(device, size(1000), PREFERRED, DEVICE) == INVALID_VALUE
    # More than the device has stays with the host.
    code, large = managed(20 << 30)
    assert code == 0
    call("cudaFree", large); call("cudaFree", block)
    assert rt.cudaFree(block) == INVALID_VALUE
    """
    run_checked(program, tmp_path)
