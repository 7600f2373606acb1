"""Several devices in one process."""

from pathlib import Path

import pytest
from native.emulated import run_checked

pytestmark = pytest.mark.emulator

PEER_TO_PEER = 4  # MemcpyDirection


def test_peer_access(tmp_path: Path) -> None:
    program = """
    INVALID_VALUE, INVALID_DEVICE, ALREADY_ENABLED, NOT_ENABLED = 1, 101, 704, 705
    can = ctypes.c_int()
    def access(device, peer):
        code = rt.cudaDeviceCanAccessPeer(ctypes.byref(can), device, peer)
        return code or bool(can.value)
    assert access(0, 1) is True and access(0, 0) is False
    assert access(0, 2) == INVALID_DEVICE and access(-1, 0) == INVALID_DEVICE
    assert rt.cudaDeviceDisablePeerAccess(1) == NOT_ENABLED
    assert rt.cudaDeviceEnablePeerAccess(1, 1) == INVALID_VALUE
    assert rt.cudaDeviceEnablePeerAccess(0, 0) == INVALID_DEVICE
    assert rt.cudaDeviceEnablePeerAccess(1, 0) == 0
    assert rt.cudaDeviceEnablePeerAccess(1, 0) == ALREADY_ENABLED
    call("cudaSetDevice", 1)
    assert rt.cudaDeviceEnablePeerAccess(0, 0) == 0  # the other direction is one of its own
    call("cudaSetDevice", 0)
    assert rt.cudaDeviceDisablePeerAccess(1) == 0
    """
    run_checked(program, tmp_path, MAYA_NUM_DEVICES="2")


def test_copies_between_devices(tmp_path: Path) -> None:
    program = """
    here, back = malloc(16), ctypes.create_string_buffer(16)
    call("cudaMemcpy", here, b"0123456789abcdef", ctypes.c_size_t(16), 1)
    call("cudaSetDevice", 1)
    there = malloc(16)
    call("cudaMemcpyPeerAsync", there, 1, here, 0, ctypes.c_size_t(16), stream())
    assert rt.cudaMemcpyPeerAsync(there, 1, here, 0, ctypes.c_size_t(17), None) == 1
    call("cudaMemcpy", back, there, ctypes.c_size_t(16), 2)
    assert back.raw == b"0123456789abcdef"
    """
    copies = run_checked(program, tmp_path, MAYA_NUM_DEVICES="2").trace().table("memcpy")
    assert copies["direction"].tolist() == [0, PEER_TO_PEER, 1]


def test_tensors_move_between_devices(tmp_path: Path) -> None:
    program = """
        import torch
        x = torch.tensor([1.0, 2.0, 3.0]).to("cuda:0")
        y = x.to("cuda:1")
        assert y.device.index == 1 and y.tolist() == [1, 2, 3]
        assert torch.cuda.can_device_access_peer(0, 1)
        assert torch.cuda.memory_allocated(1) == 512
    """
    copies = run_checked(program, tmp_path, preload=True, MAYA_NUM_DEVICES="2").trace().table("memcpy")
    assert PEER_TO_PEER in copies["direction"].tolist()
