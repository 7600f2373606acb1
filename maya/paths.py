"""Where Maya's own files are: in a checkout beside the package, in a wheel under ``maya/_data``."""

import hashlib
import os
from pathlib import Path

PACKAGE_DIR = Path(__file__).resolve().parent


def _data_dir(name: str) -> Path:
    bundled = PACKAGE_DIR / "_data" / name
    return bundled if bundled.is_dir() else PACKAGE_DIR.parent / name


def config_dir() -> Path:
    """Folder of the Hydra groups (absolute)."""
    return _data_dir("config")


def workloads_dir() -> Path:
    """Folder of the repository's own training programs (absolute)."""
    return _data_dir("workloads")


def profiling_data_dir() -> Path:
    """Folder of measurements and of shipped regressors, by GPU (absolute)."""
    return _data_dir("profiling_data")


def cache_dir() -> Path:
    """Folder for what can be made again: ``$XDG_CACHE_HOME/maya``, by default ``~/.cache/maya``."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "maya"


def write_whole(path: Path, text: str) -> None:
    """Writes a text file in one step, so that no reader and no crash ever leaves half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def source_digest(*parts: str) -> str:
    """Digest of the source files of parts of Maya: subpackages by name, or "native" for the emulator.

    A rule passes it as a parameter, since Snakemake does not see edits of the package by itself.
    """
    digest = hashlib.sha256()
    for part in parts:
        root = _data_dir("native") / "emulator" if part == "native" else PACKAGE_DIR / part
        for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".cpp", ".h", ".txt", ".j2")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
