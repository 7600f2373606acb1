"""The table of what is emulated holds every function that PyTorch can reach."""

import re
import sys
from pathlib import Path

import pandas as pd
import pytest

from maya import cli
from maya.capture.build_emulator import find_environment, find_sources
from maya.capture.coverage import STATUSES, read_coverage, summarise

pytestmark = pytest.mark.emulator

GENERATOR_DIR = find_sources() / "emulator"
# Of libraries that run as they are; nvshmem_init is linked weakly and no library has it.
REAL_LIBRARIES = r"nvrtc|cupti|nvJitLink|nvshmem_init$"


@pytest.fixture(scope="module")
def coverage() -> pd.DataFrame:
    return read_coverage()


@pytest.fixture(scope="module")
def linked() -> set[str]:
    """CUDA functions that the libraries of PyTorch leave undefined."""
    sys.path.insert(0, str(GENERATOR_DIR))
    try:
        from generate_stubs import PUBLIC_NAME, SHT_DYNSYM, read_symbols
    finally:
        sys.path.remove(str(GENERATOR_DIR))
    libraries = (find_environment().torch_dir / "lib").glob("*.so")
    symbols = [symbol for path in libraries for symbol in read_symbols(path, SHT_DYNSYM)]
    own = {symbol.name for symbol in symbols if symbol.is_defined}
    names = {s.name for s in symbols if s.is_function and PUBLIC_NAME.match(s.name)} - own
    return {name for name in names if not re.match(REAL_LIBRARIES, name)}


def test_every_function_that_pytorch_links_is_listed(coverage: pd.DataFrame, linked: set[str]) -> None:
    assert len(linked) > 300
    assert linked - set(coverage["function"]) == set()


def test_functions_that_pytorch_looks_up_by_name_are_listed(coverage: pd.DataFrame) -> None:
    """c10 opens the driver and NVML itself; the names stand as texts in its library."""
    content = (find_environment().torch_dir / "lib" / "libc10_cuda.so").read_bytes()
    texts = {
        text.decode() for text in re.findall(rb"\0((?:cu[A-Z]|nvml[A-Z])[A-Za-z0-9_]{3,})(?=\0)", content)
    }
    assert "cuMemCreate" in texts
    assert texts - set(coverage["function"]) == set()


def test_a_function_stands_once_with_a_known_status(coverage: pd.DataFrame) -> None:
    assert not coverage["function"].duplicated().any()
    assert set(coverage["status"]) == set(STATUSES)
    is_no_op = coverage["status"] == "no-op"
    assert (coverage.loc[is_no_op, "reason"].str.len() > 10).all()
    assert (coverage.loc[~is_no_op, "reason"] == "").all()


@pytest.mark.parametrize(
    ("function", "library", "status"),
    [
        ("cudaLaunchKernel", "libcudart.so", "modelled"),
        ("cuLaunchKernelEx", "libcuda.so", "modelled"),
        ("ncclAllReduce", "libnccl.so", "modelled"),
        ("nvmlDeviceGetMemoryInfo", "libnvidia-ml.so", "modelled"),
        ("cudaProfilerStart", "libcudart.so", "no-op"),
        ("curandGenerate", "libcurand.so", "not emulated"),
    ],
)
def test_examples(coverage: pd.DataFrame, function: str, library: str, status: str) -> None:
    row = coverage[coverage["function"] == function].iloc[0]
    assert (row["library"], row["status"]) == (library, status)


def test_the_page_lists_all(
    coverage: pd.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["emulator", "coverage", "--page", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert all(f"`{name}`" in page or f"| {name} |" in page for name in coverage["function"])
    assert "libcudnn" in capsys.readouterr().out
    assert summarise(coverage).loc["libcudart.so", "modelled"] > 100
