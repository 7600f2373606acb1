"""What fits on a multiprocessor of each GPU, and launches that do not fit."""

from pathlib import Path

import pytest
from native.cubin_writer import write_cubin
from native.emulated import run_checked

from maya.capture.environment import gpu_properties
from maya.config.compose import compose_target

pytestmark = pytest.mark.emulator

# CUDA Programming Guide, technical specifications: maximum of shared memory per thread block.
OPT_IN_KIB = {
    "v100_sxm_32gb": 96,
    "a100_sxm_80gb": 163,
    "a40": 99,
    "l40s": 99,
    "h100_sxm": 227,
    "b200_sxm": 227,
}

# GPU, registers, static shared bytes, threads, dynamic shared bytes, blocks per multiprocessor.
OCCUPANCY = [
    # CUDA Best Practices Guide, calculating occupancy: 37 registers on compute capability 7.0 give 75 % with
    # 12 blocks of 128 threads, and 63 % with 4 blocks of 320.
    ("v100_sxm_32gb", 37, 0, 128, 0, 12),
    ("v100_sxm_32gb", 37, 0, 320, 0, 4),
    # By the rules of the Programming Guide: 64 warps, 64 Ki registers, 32 blocks; from 8.0 on a block takes
    # 1 KiB of shared memory for the system. 8.6 and 8.9 have 48 warps and 16 or 24 blocks.
    ("a100_sxm_80gb", 32, 0, 1024, 0, 2),
    ("a100_sxm_80gb", 33, 0, 1024, 0, 1),
    ("a100_sxm_80gb", 32, 0, 32, 0, 32),
    ("a100_sxm_80gb", 32, 0, 128, 163 << 10, 1),
    ("a100_sxm_80gb", 32, 16 << 10, 128, 0, 9),
    ("a40", 32, 0, 32, 0, 16),
    ("a40", 32, 0, 1024, 0, 1),
    ("a40", 32, 0, 512, 0, 3),
    ("l40s", 32, 0, 32, 0, 24),
    ("h100_sxm", 168, 0, 384, 0, 1),  # of warp-specialised GEMMs: 3 warp groups of 168 registers fill the SM
    ("h100_sxm", 128, 0, 256, 100 << 10, 2),
    ("h100_sxm", 255, 0, 512, 0, 0),  # 16 warps of 8,192 registers
    ("b200_sxm", 32, 0, 256, 227 << 10, 1),
]


def properties(gpu: str) -> str:
    return gpu_properties(compose_target((f"gpu={gpu}",))[0])


PROGRAM = """
def load(image, name=b"k"):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), image)
    call("cuModuleGetFunction", ctypes.byref(function), module, name)
    return function
def occupancy(function, threads, shared):
    blocks = ctypes.c_int()
    call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(blocks), function, threads,
         ctypes.c_size_t(shared))
    return blocks.value
def attribute(function, number):
    value = ctypes.c_int()
    call("cuFuncGetAttribute", ctypes.byref(value), number, function)
    return value.value
"""


@pytest.mark.parametrize("gpu", sorted(OPT_IN_KIB))
def test_known_occupancies(gpu: str, tmp_path: Path) -> None:
    program = PROGRAM
    for name, registers, static, threads, dynamic, blocks in OCCUPANCY:
        if name == gpu:
            program += f"""
function = load({write_cubin("k", registers, static)!r})
assert attribute(function, 4) == {registers} and attribute(function, 1) == {static}
if {dynamic} > 48 << 10: call("cuFuncSetAttribute", function, 8, {dynamic})
got = occupancy(function, {threads}, {dynamic})
assert got == {blocks}, (got, {(registers, static, threads, dynamic, blocks)})
"""
    program += f"""
limit = {OPT_IN_KIB[gpu]} << 10
function = load({write_cubin("k", 32)!r})
value = ctypes.c_int()
call("cuDeviceGetAttribute", ctypes.byref(value), 97, 0)
assert value.value == limit, value.value
assert rt.cuFuncSetAttribute(function, 8, limit) == 0
assert rt.cuFuncSetAttribute(function, 8, limit + 1) == 1
static = load({write_cubin("k", 32, 1024)!r})
assert rt.cuFuncSetAttribute(static, 8, limit - 1023) == 1
assert rt.cuFuncSetAttribute(static, 8, limit - 1024) == 0
"""
    run_checked(program, tmp_path, MAYA_GPU=properties(gpu))


def test_launches_that_do_not_fit(tmp_path: Path) -> None:
    program = (
        PROGRAM
        + f"""
INVALID_VALUE, OUT_OF_RESOURCES, INVALID_HANDLE, TOO_LARGE = 1, 701, 400, 720
few, many = load({write_cubin("k", 32)!r}), load({write_cubin("k", 128)!r})
assert attribute(few, 0) == 1024
# 128 registers of 32 threads are 4,096 of the 65,536: 16 warps.
assert attribute(many, 0) == 512
def driver_launch(function, blocks, threads, shared=0, name="cuLaunchKernel"):
    extra = () if name == "cuLaunchCooperativeKernel" else (None,)
    return getattr(rt, name)(function, blocks, 1, 1, threads, 1, 1, shared, None, None, *extra)
assert driver_launch(few, 1, 1024) == 0
assert driver_launch(few, 1, 1025) == INVALID_VALUE
assert driver_launch(few, 0, 32) == INVALID_VALUE
assert driver_launch(few, 1, 32, shared=(48 << 10) + 1) == INVALID_VALUE
assert driver_launch(many, 1, 512) == 0
assert driver_launch(many, 1, 544) == OUT_OF_RESOURCES
assert driver_launch(None, 1, 32) == INVALID_HANDLE
# All blocks of a cooperative launch are resident: on 132 multiprocessors, 2 of 1,024 threads each.
assert driver_launch(few, 264, 1024, name="cuLaunchCooperativeKernel") == 0
assert driver_launch(few, 265, 1024, name="cuLaunchCooperativeKernel") == TOO_LARGE
available = ctypes.c_size_t()
k = kernel(b"_Z1kv")
def available_to(num_blocks):
    call("cudaOccupancyAvailableDynamicSMemPerBlock", ctypes.byref(available), k, num_blocks, 128)
    return available.value
assert available_to(2) == 48 << 10
call("cudaFuncSetAttribute", k, 8, 227 << 10)
assert (available_to(2), available_to(1)) == (113 << 10, 227 << 10)
"""
    )
    run = run_checked(program, tmp_path)
    assert len(run.trace().positions("kernel")) == 3
    codes = run.trace().table("code")
    assert codes["num_registers"].tolist() == [32, 128] and codes["name"].tolist() == ["k", "k"]
    assert len(set(run.trace().kernel_codes())) == 2


def test_cooperative_launch_of_the_runtime(tmp_path: Path) -> None:
    program = """
    k = kernel(b"_Z1kv")
    rest = (ctypes.c_void_p * 1)(), ctypes.c_size_t(0), None
    def cooperative(blocks):
        return rt.cudaLaunchCooperativeKernel(k, Dim3(blocks, 1, 1), Dim3(1024, 1, 1), *rest)
    assert cooperative(264) == 0
    assert cooperative(265) == 720 and rt.cudaGetLastError() == 720
    """
    run_checked(program, tmp_path)
