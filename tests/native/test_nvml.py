"""What monitoring libraries and nvidia-smi see."""

from pathlib import Path

import pytest
from native.emulated import CONTEXT_BYTES, MEMORY_BYTES, run_checked

from maya.capture.environment import TOOLS_DIR

pytestmark = pytest.mark.emulator

pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


def test_memory_processes_and_utilisation(tmp_path: Path) -> None:
    program = f"""
        import os, warnings
        import pynvml, torch
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 2
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        idle = pynvml.nvmlDeviceGetMemoryInfo(device)
        assert (idle.total, idle.used, idle.free) == ({MEMORY_BYTES}, 0, {MEMORY_BYTES})
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(device) == []
        torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
        used = {CONTEXT_BYTES} + (100 << 20)
        assert pynvml.nvmlDeviceGetMemoryInfo(device).used == used
        newer = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
        assert newer.used == used and newer.used + newer.free + newer.reserved == newer.total
        (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
        assert (process.pid, process.usedGpuMemory) == (os.getpid(), used)
        other = pynvml.nvmlDeviceGetHandleByIndex(1)
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(other) == []
        rates = pynvml.nvmlDeviceGetUtilizationRates(device)
        assert (rates.gpu, rates.memory) == (0, 0)
        try: pynvml.nvmlDeviceGetTemperature(device, 0)
        except pynvml.NVMLError_NotSupported: pass
        else: raise AssertionError("there is no sensor")
        try: pynvml.nvmlDeviceGetHandleByIndex(2)
        except pynvml.NVMLError_InvalidArgument: pass
        else: raise AssertionError("there are two devices")
        assert pynvml.nvmlDeviceGetName(device) == torch.cuda.get_device_name(0)
    """
    run_checked(program, tmp_path, preload=True, MAYA_NUM_DEVICES="2")


def test_nvidia_smi_names_the_same_devices(tmp_path: Path) -> None:
    program = f"""
        import subprocess, pynvml
        def query(*arguments):
            command = [{str(TOOLS_DIR / "nvidia-smi")!r}, *arguments]
            return subprocess.check_output(command, text=True).splitlines()
        pynvml.nvmlInit()
        lines = query("--query-gpu=index,uuid,memory.total,driver_version", "--format=csv,noheader,nounits")
        for index, line in enumerate(lines):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            total = pynvml.nvmlDeviceGetMemoryInfo(device).total >> 20
            uuid, version = pynvml.nvmlDeviceGetUUID(device), pynvml.nvmlSystemGetDriverVersion()
            assert line == f"{{index}}, {{uuid}}, {{total}}, {{version}}", line
        assert len(lines) == len(query("-L")) == 2
        assert query("--query-gpu=name", "--format=csv") == ["name", "Test GPU", "Test GPU"]
    """
    run_checked(program, tmp_path, preload=True, MAYA_NUM_DEVICES="2")
