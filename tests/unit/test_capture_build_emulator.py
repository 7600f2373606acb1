"""Environments for which the emulator cannot be built are refused with what to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def build_error(packages: Path, torch_version: str, cuda_version: str | None, *headers: str) -> str:
    """What `maya emulator build` says where a PyTorch and its CUDA headers are the ones described here."""
    files = {
        "torch/__init__.py": "",
        "torch/version.py": f"__version__ = {torch_version!r}\ncuda: Optional[str] = {cuda_version!r}\n",
        "nvidia/__init__.py": "",
        **{f"nvidia/cuda_runtime/include/{header}": "" for header in headers},
    }
    for name, text in files.items():
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = subprocess.run(
        [sys.executable, "-m", "maya.cli", "emulator", "build"],
        env={**os.environ, "PYTHONPATH": str(packages), "XDG_CACHE_HOME": str(packages / "cache")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def test_build_without_cuda(tmp_path: Path) -> None:
    error = build_error(tmp_path, "2.14.1+cpu", None)
    assert "PyTorch 2.14.1+cpu" in error and "without CUDA" in error and "install the CUDA build" in error


def test_cuda_version_that_is_not_known(tmp_path: Path) -> None:
    error = build_error(tmp_path, "2.6.0+cu118", "11.8")
    assert "PyTorch 2.6.0+cu118" in error and "CUDA 11.8" in error
    assert "PyTorch 2.9 with CUDA 12.8 and PyTorch 2.14 with CUDA 13.0" in error


def test_cuda_headers_are_missing(tmp_path: Path) -> None:
    assert "nvidia-cuda-runtime" in build_error(tmp_path, "2.14.1+cu130", "13.0")


@pytest.mark.parametrize(
    ("cuda_version", "package"),
    [("12.8", "nvidia-cuda-nvcc-cu12==12.8.*"), ("13.0", "nvidia-cuda-crt==13.0.*")],
)
def test_crt_headers_are_missing(tmp_path: Path, cuda_version: str, package: str) -> None:
    error = build_error(tmp_path, "2.14.1", cuda_version, "cuda_runtime_api.h")
    assert f"pip install '{package}'" in error


def test_libraries_of_a_cuda_release_that_does_not_compile(tmp_path: Path) -> None:
    headers = ("cuda_runtime_api.h", "crt/host_config.h")
    error = build_error(tmp_path, "2.99.0+cu139", "13.9", *headers)
    assert "the emulator could not be built" in error and "tested: PyTorch 2.9 with CUDA 12.8" in error
    assert not list((tmp_path / "cache" / "maya" / "emulator").glob("*/*.so*"))
