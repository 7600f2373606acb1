"""Build the emulator for the PyTorch that is installed, once, and keep it in the user's cache.

The library stands in for the CUDA libraries of one PyTorch release, so it is compiled against the headers
that came with that release. PyTorch itself is found without importing it.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from maya.errors import CaptureError

LIBRARIES = ("libmaya_emulator.so", "libcuda.so.1", "libnvidia-ml.so.1")
COVERAGE = "coverage.csv"
NUM_LOG_LINES = 30
TESTED = "PyTorch 2.9 with CUDA 12.8 and PyTorch 2.14 with CUDA 13.0"
CRT_PACKAGES = {"12": "nvidia-cuda-nvcc-cu12", "13": "nvidia-cuda-crt"}
"""By major CUDA version, the package of the ``crt/`` headers, on which PyTorch itself does not depend."""
SANITIZE_VARIABLE = "MAYA_SANITIZE"
"""Set to 1, it builds with the address and undefined-behaviour sanitizers: for the tests of the emulator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetEnvironment:
    """Where the installed PyTorch and its CUDA libraries are."""

    torch_dir: Path
    torch_version: str  # text of torch/version.py, which names the CUDA version too
    cuda_dirs: tuple[Path, ...]  # below nvidia/, each with include or lib


def emulator_dir() -> Path:
    """Return the folder of `LIBRARIES` and `COVERAGE`, which are built when they are not there yet.

    Raises:
        CaptureError: PyTorch is missing or a CPU build, or the compilation failed.
    """
    environment = find_environment()
    sources = find_sources()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maya" / "emulator"
    built = cache / digest(sources, environment)
    if is_complete(built):
        return built
    cache.mkdir(parents=True, exist_ok=True)
    with locked(built.with_suffix(".lock")):
        if not is_complete(built):
            with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as scratch:
                build(sources, environment, Path(scratch), built)
    return built


def find_environment() -> TargetEnvironment:
    """Locate PyTorch and the packages of its CUDA libraries.

    Raises:
        CaptureError: PyTorch is missing, is a build without CUDA or for a CUDA version that the emulator does
            not know, or headers are missing.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise CaptureError(
            "PyTorch is not installed in this environment: install its CUDA build (pip install torch)"
        )
    torch_dir = Path(spec.origin).parent
    version = (torch_dir / "version.py").read_text()
    cuda_version = check_version(version, torch_dir)
    nvidia = importlib.util.find_spec("nvidia")
    roots = [Path(p) for p in nvidia.submodule_search_locations or ()] if nvidia is not None else []
    cuda_dirs = tuple(
        d
        for root in roots
        for d in sorted(root.iterdir())
        if (d / "include").is_dir() or (d / "lib").is_dir()
    )
    if not has_header(cuda_dirs, "cuda_runtime_api.h"):
        raise CaptureError(
            f"the CUDA headers that belong to PyTorch in {torch_dir} are missing: "
            "reinstall PyTorch with its dependencies (nvidia-cuda-runtime and others)"
        )
    if not has_header(cuda_dirs, "crt/host_config.h"):
        package = CRT_PACKAGES[cuda_version.split(".")[0]]
        raise CaptureError(
            f"the headers crt/ of CUDA {cuda_version} are missing: pip install '{package}=={cuda_version}.*'"
        )
    return TargetEnvironment(torch_dir=torch_dir, torch_version=version, cuda_dirs=cuda_dirs)


def check_version(version: str, torch_dir: Path) -> str:
    """Return the CUDA version, such as ``13.0``, that a ``torch/version.py`` names.

    Raises:
        CaptureError: none, or one whose libraries the emulator cannot stand in for.
    """

    def value(name: str) -> str | None:
        found = re.search(rf"^{name}\b[^=\n]*= '([^']*)'", version, re.MULTILINE)
        return found[1] if found else None

    torch_version, cuda_version = value("__version__"), value("cuda")
    if cuda_version is None:
        raise CaptureError(
            f"PyTorch {torch_version} in {torch_dir} is a build without CUDA: "
            "install the CUDA build (the default one for Linux on the package index)"
        )
    if cuda_version.split(".")[0] not in CRT_PACKAGES:
        raise CaptureError(
            f"PyTorch {torch_version} in {torch_dir} is built for CUDA {cuda_version}, which the emulator "
            f"does not know: install a build for CUDA 12 or 13 (tested: {TESTED})"
        )
    return cuda_version


def has_header(cuda_dirs: tuple[Path, ...], name: str) -> bool:
    """Tell whether one of the CUDA packages brings a header."""
    return any((d / "include" / name).exists() for d in cuda_dirs)


def find_sources() -> Path:
    """Return the folder `native`: beside the package in a checkout, inside it in a wheel."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package.parent / "native", package / "_data" / "native"):
        if (candidate / "emulator" / "CMakeLists.txt").exists():
            return candidate
    raise CaptureError(f"the sources of the emulator are not beside {package}: reinstall maya-sim")


def digest(sources: Path, environment: TargetEnvironment) -> str:
    """Return the key of a build: what the library is made of and for."""
    state = hashlib.sha256(environment.torch_version.encode())
    state.update(str(environment.torch_dir).encode())
    state.update(os.environ.get(SANITIZE_VARIABLE, "").encode())
    for folder in ("emulator", "trace"):
        for path in sorted((sources / folder).iterdir()):
            if path.is_file():
                state.update(path.name.encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:12]


def is_complete(built: Path) -> bool:
    """Tell whether all libraries are there."""
    return all((built / name).exists() for name in (*LIBRARIES, COVERAGE))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, against builds by other processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(sources: Path, environment: TargetEnvironment, scratch: Path, target: Path) -> None:
    """Compile in `scratch` and move the libraries to `target` in one step."""
    objects = scratch / "objects"
    include_dirs = [d / "include" for d in environment.cuda_dirs if (d / "include").is_dir()]
    lib_dirs = [d / "lib" for d in environment.cuda_dirs if (d / "lib").is_dir()]
    configure = [
        tool("cmake"),
        "-G",
        "Ninja",
        "-S",
        str(sources / "emulator"),
        "-B",
        str(objects),
        f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        f"-DMAYA_TORCH_LIB_DIR={environment.torch_dir / 'lib'}",
        f"-DMAYA_SANITIZE={'ON' if os.environ.get(SANITIZE_VARIABLE) == '1' else 'OFF'}",
        "-DMAYA_CUDA_INCLUDE_DIRS=" + ";".join(map(str, include_dirs)),
        "-DMAYA_CUDA_LIB_DIRS=" + ";".join(map(str, lib_dirs)),
    ]
    run(configure, "configure")
    run([tool("cmake"), "--build", str(objects)], "compile")
    libraries = scratch / "libraries"
    libraries.mkdir()
    for name in (*LIBRARIES, COVERAGE):
        shutil.copy2(objects / name, libraries / name)
    (libraries / "libcuda.so").symlink_to("libcuda.so.1")  # the name by which Triton of 2025 links it
    if target.exists():  # incomplete, from a disk that was full
        shutil.rmtree(target)
    libraries.rename(target)


def tool(name: str) -> str:
    """Return the path of `cmake` or `ninja`: of the package in this environment, else on PATH."""
    for folder in (Path(sys.executable).parent, Path(sys.prefix) / "bin"):
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise CaptureError(f"{name} is needed to build the emulator and is not installed: pip install {name}")
    return found


def run(command: list[str], step: str) -> None:
    """Run one step of the build; its output goes into the error when it fails."""
    environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    result = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if result.returncode != 0:
        lines = [line for line in result.stdout.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise CaptureError(
            f"the emulator could not be built (step: {step}); a C++20 compiler is needed, and a PyTorch "
            f"whose CUDA libraries the emulator knows (tested: {TESTED}):\n"
            + "\n".join(errors[:NUM_LOG_LINES])
        )
