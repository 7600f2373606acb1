"""Case O8: the preloaded library itself, in the places where such libraries have failed their users."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from maya.capture import read_manifest
from maya.capture.build_emulator import emulator_dir
from maya.capture.environment import LIBRARY_NAME, gpu_properties
from maya.config.compose import gpu_config
from maya.trace import read_trace

pytestmark = pytest.mark.emulator

CNN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(8 * 30 * 30, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(10, (64,)))
    for _ in range(8):
        for method in ("fork", "spawn"):
            loader = DataLoader(data, batch_size=32, num_workers=1, multiprocessing_context=method)
            for images, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(method, "done")
"""

CPU_ONLY = """
import os, time, torch
start = time.process_time()
assert not torch.cuda.is_available()
x = torch.ones(256, 256, requires_grad=True)
loss = torch.nn.functional.conv2d(x[None, None], torch.ones(1, 1, 3, 3)).relu().sum() + (x @ x).sum()
loss.backward()
assert loss.item() == 254 * 254 * 9 + 256**3 and x.grad is not None
print("cpu seconds", time.process_time() - start)
"""

# A library of another tool that stands before dlsym, as those that share a GPU do.
OTHER_PRELOAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
static int calls;
void* dlsym(void* handle, const char* name) {
  static void* (*real)(void*, const char*);
  if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  if (!real) real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  ++calls;
  return real(handle, name);
}
int other_calls(void) { return calls; }
"""


def run_python(program: str, env: dict[str, str], cwd: Path | None = None) -> str:
    """Runs a program, which must end well within a minute; returns what it prints."""
    result = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def preloaded() -> dict[str, str]:
    """The environment of a process on an emulated GPU that records nothing."""
    env = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    return env | {
        "LD_PRELOAD": LIBRARY_NAME,
        "LD_LIBRARY_PATH": str(emulator_dir()),
        "MAYA_GPU": gpu_properties(gpu_config("h100_sxm")),
    }


@pytest.mark.slow
def test_a_cnn_with_data_loaders_from_a_relative_folder_with_spaces(tmp_path: Path) -> None:
    program = tmp_path / "my programs" / "train cnn.py"
    program.parent.mkdir()
    program.write_text(CNN)
    built = emulator_dir()
    moved = tmp_path / "a cache" / "maya" / "emulator" / built.name
    shutil.copytree(built, moved)
    result = subprocess.run(
        [
            *(sys.executable, "-m", "maya.cli", "capture", "--gpu", "h100_sxm", "--strict"),
            *("--output", "the traces", "capture.iterations=1", "capture.timeout_s=300"),
            *("--", "python", "my programs/train cnn.py"),
        ],
        cwd=tmp_path,
        env=os.environ | {"XDG_CACHE_HOME": "a cache"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert result.returncode == 0, result.stderr
    log = (tmp_path / "the traces" / "logs" / "rank00000.log").read_text()
    assert "fork done" in log and "spawn done" in log
    rank = read_manifest(tmp_path / "the traces").ranks[0]
    assert rank.status == "ok" and not rank.unemulated
    assert len(read_trace(tmp_path / "the traces" / "rank00000.trace").table("conv")) > 0


@pytest.mark.parametrize("hidden", [True, False], ids=["devices hidden", "no GPU named"])
def test_cpu_programs_are_not_disturbed(preloaded: dict[str, str], hidden: bool) -> None:
    env = dict(preloaded)
    if hidden:
        env["CUDA_VISIBLE_DEVICES"] = ""
    else:
        del env["MAYA_GPU"]
    seconds = float(run_python(CPU_ONLY, env).split()[-1])
    assert seconds < 20  # it computes; it does not spin


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "behind"])
def test_another_preloaded_library(preloaded: dict[str, str], tmp_path: Path, is_first: bool) -> None:
    source, other = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text(OTHER_PRELOAD)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", other, source, "-ldl"], check=True)
    order = (str(other), LIBRARY_NAME) if is_first else (LIBRARY_NAME, str(other))
    program = """
import ctypes, torch
x = torch.nn.Conv2d(3, 8, 3).cuda()(torch.randn(1, 3, 8, 8).cuda())
assert x.shape == (1, 8, 6, 6) and "H100" in torch.cuda.get_device_name()
assert ctypes.CDLL(None).other_calls() > 0
print("done")
"""
    assert run_python(program, preloaded | {"LD_PRELOAD": " ".join(order)}) == "done\n"


def test_a_child_without_the_variable(preloaded: dict[str, str]) -> None:
    """It finds no GPU, or the library by its folder; either way it ends in good order."""
    program = """
import os, subprocess, sys, torch
assert torch.cuda.is_available()
child = "import torch; print(torch.cuda.is_available())"
env = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
result = subprocess.run([sys.executable, "-c", child], env=env, capture_output=True, text=True, timeout=60)
print(result.returncode, result.stdout.strip(), len(result.stderr.strip().splitlines()))
"""
    code, available, _ = run_python(program, preloaded).split()
    assert (code, available) == ("0", "False")
