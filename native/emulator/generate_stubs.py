"""Write what the emulator's sources leave open: harmless functions, stubs, and a table of all functions.

A function in `no_ops.csv` does nothing and succeeds; the reason stands beside it. Any other function of the
CUDA libraries that no object file of the emulator defines becomes a stub, which records the call and returns
its library's own code for an unsupported function. Without it the call would reach the real library, which
knows nothing of the emulated devices.
"""

import argparse
import csv
import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TORCH_LIBRARIES = (
    "libtorch_cuda.so",
    "libc10_cuda.so",
    "libtorch_python.so",
    "libtorch_nvshmem.so",
    "libtorch_cuda_linalg.so",
    "libcaffe2_nvrtc.so",
)

# Library file prefix -> value for "not supported", from each library's header. CUPTI and NVRTC are not
# here: they run as they are.
NOT_SUPPORTED_CODES = {
    "libcuda.so": 801,  # CUDA_ERROR_NOT_SUPPORTED
    "libcudart.so": 801,  # cudaErrorNotSupported
    "libcublas.so": 15,  # CUBLAS_STATUS_NOT_SUPPORTED
    "libcublasLt.so": 15,
    "libcudnn.so": 3000,  # CUDNN_STATUS_NOT_SUPPORTED
    "libnccl.so": 5,  # ncclInvalidUsage
    "libcusparse.so": 10,  # CUSPARSE_STATUS_NOT_SUPPORTED
    "libcusparseLt.so": 10,
    "libcufft.so": 16,  # CUFFT_NOT_SUPPORTED
    "libcurand.so": 999,  # CURAND_STATUS_INTERNAL_ERROR
    "libcusolver.so": 9,  # CUSOLVER_STATUS_NOT_SUPPORTED
    "libcufile.so": 5007,  # CU_FILE_PLATFORM_NOT_SUPPORTED
    "libnvshmem_host.so": 7,  # NVSHMEMX_ERROR_INTERNAL
}

# Of these only what PyTorch imports: they are loaded beside the emulator and call themselves.
PARTLY_STUBBED = ("libcufile.so", "libnvshmem_host.so")
PUBLIC_NAME = re.compile(
    r"(__cuda|cuda|cu[A-Z]|cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|pnccl|nvml|nvshmem|nvtx)"
)
DRIVER_NAME = re.compile(r"cu(?!File)[A-Z]")
DRIVER = "libcuda.so"

SHT_SYMTAB, SHT_DYNSYM = 2, 11
SHN_UNDEF = 0
STB_GLOBAL, STB_WEAK = 1, 2
STT_NOTYPE, STT_FUNC, STT_IFUNC = 0, 2, 10


@dataclass(frozen=True, slots=True)
class Symbol:
    """An entry of an ELF symbol table."""

    name: str
    is_defined: bool
    is_function: bool


def read_symbols(path: Path, table_type: int) -> Iterator[Symbol]:
    """Yield the global symbols of a 64-bit little-endian ELF file's table (`SHT_SYMTAB` or `SHT_DYNSYM`)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise SystemExit(f"{path} is not a 64-bit little-endian ELF file")
        section_offset = struct.unpack_from("<Q", data, 0x28)[0]
        entry_bytes, num_sections = struct.unpack_from("<HH", data, 0x3A)
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", data, section_offset + i * entry_bytes)
            for i in range(num_sections)
        ]
        for _, kind, _, _, offset, size, link, _, _, _ in sections:
            if kind != table_type:
                continue
            text_offset = sections[link][4]
            for name_offset, info, _, section, _, _ in struct.iter_unpack(
                "<IBBHQQ", data[offset : offset + size]
            ):
                if info >> 4 not in (STB_GLOBAL, STB_WEAK):
                    continue
                begin = text_offset + name_offset
                name = data[begin : data.find(b"\0", begin)].decode()
                yield Symbol(
                    name=name,
                    is_defined=section != SHN_UNDEF,
                    is_function=info & 15 in (STT_NOTYPE, STT_FUNC, STT_IFUNC),
                )


def imported_symbols(torch_lib_dir: Path) -> set[str]:
    """Names that the CUDA part of PyTorch leaves undefined."""
    names: set[str] = set()
    for library in TORCH_LIBRARIES:
        path = torch_lib_dir / library
        if path.exists():
            names.update(s.name for s in read_symbols(path, SHT_DYNSYM) if not s.is_defined)
    return names


def exported_symbols(lib_dirs: list[Path], imported: set[str]) -> dict[str, str]:
    """Functions of the CUDA libraries and the file prefix of the library that each is in."""
    libraries: dict[str, str] = {}
    for lib_dir in lib_dirs:
        for path in sorted(lib_dir.glob("lib*.so*")):
            library = path.name[: path.name.find(".so") + 3]
            if library not in NOT_SUPPORTED_CODES:
                continue
            for symbol in read_symbols(path, SHT_DYNSYM):
                is_wanted = library not in PARTLY_STUBBED or symbol.name in imported
                if symbol.is_defined and symbol.is_function and is_wanted and PUBLIC_NAME.match(symbol.name):
                    libraries[symbol.name] = library
    return libraries


def driver_functions(include_dirs: list[Path]) -> dict[str, str]:
    """Functions of the driver, which is no package: those that cuda.h declares, and their versions."""
    names: set[str] = set()
    for header in (folder / "cuda.h" for folder in include_dirs):
        if header.exists():
            names.update(re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", header.read_text(errors="replace")))
    return dict.fromkeys(names, DRIVER)


def read_no_ops() -> dict[str, str]:
    """Functions that do nothing, and why that is harmless."""
    with Path(__file__).with_name("no_ops.csv").open(newline="") as file:
        return {row["function"]: row["reason"] for row in csv.DictReader(file)}


def defined_symbols(objects: list[Path]) -> set[str]:
    """Global names that the emulator's object files define."""
    return {s.name for path in objects for s in read_symbols(path, SHT_SYMTAB) if s.is_defined}


def library_of(name: str) -> str:
    """The library of a function that the emulator defines and no package has."""
    prefixes = {"nvml": "libnvidia-ml.so", "nvtx": "NVTX", "cuda": "libcudart.so", "__cuda": "libcudart.so"}
    return next((library for prefix, library in prefixes.items() if name.startswith(prefix)), DRIVER)


def source(no_ops: list[str], stubs: dict[str, str]) -> str:
    """C++ text of both; stubs that give a text (`...String`, `...Name`) return one."""
    lines = ["// Generated by generate_stubs.py.", '#include "recorder.h"', "", 'extern "C" {']
    for name in sorted(no_ops):
        lines.append(f"long {name}() {{ MAYA_COUNT_CALL(); return 0; }}")
    for name, library in sorted(stubs.items()):
        if name.endswith(("String", "Name")):
            lines.append(f'const char* {name}() {{ maya::unemulated("{name}"); return "not emulated"; }}')
        else:
            code = NOT_SUPPORTED_CODES[library]
            lines.append(f'long {name}() {{ maya::unemulated("{name}"); return {code}; }}')
    lines += ['}  // extern "C"', ""]
    return "\n".join(lines)


def write_coverage(
    path: Path, libraries: dict[str, str], no_ops: dict[str, str], defined: set[str], imported: set[str]
) -> None:
    """Writes the table of `maya emulator coverage`: library, function, status, reason, used_by_pytorch."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("library", "function", "status", "reason", "used_by_pytorch"))
        for name, library in sorted(libraries.items(), key=lambda item: (item[1], item[0])):
            status = "no-op" if name in no_ops else "modelled" if name in defined else "not emulated"
            writer.writerow((library, name, status, no_ops.get(name, ""), int(name in imported)))


def main() -> None:
    """Read the libraries, write the source and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--coverage", type=Path, required=True)
    parser.add_argument("--torch-lib-dir", type=Path, required=True)
    parser.add_argument("--cuda-include-dirs", type=Path, nargs="+", required=True)
    parser.add_argument("--cuda-lib-dirs", type=Path, nargs="+", required=True)
    parser.add_argument("--objects", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()

    imported = imported_symbols(arguments.torch_lib_dir)
    exported = exported_symbols(arguments.cuda_lib_dirs, imported)
    driver = driver_functions(arguments.cuda_include_dirs)
    defined = {name for name in defined_symbols(arguments.objects) if PUBLIC_NAME.match(name)}
    no_ops = read_no_ops()
    stubs = exported | {name: DRIVER for name in imported if DRIVER_NAME.match(name) and name not in exported}
    open_ = {name: library for name, library in stubs.items() if name not in defined and name not in no_ops}
    arguments.output.write_text(source(list(no_ops), open_))
    libraries = {name: library_of(name) for name in defined | no_ops.keys()} | driver | stubs
    write_coverage(arguments.coverage, libraries, no_ops, defined, imported)


if __name__ == "__main__":
    main()
