"""With MAYA_SANITIZE=1 the emulator is built with sanitizers, and all programs here run under them."""

import os
import subprocess

from maya.capture.build_emulator import SANITIZE_VARIABLE, find_environment


def pytest_configure() -> None:
    if os.environ.get(SANITIZE_VARIABLE) != "1":
        return
    paths = [
        subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in ("libasan.so", "libubsan.so")
    ]
    os.environ["LD_PRELOAD"] = " ".join(path.strip() for path in paths)
    # The sanitizer's dlopen does not know the folder of the library that calls it.
    os.environ["LD_LIBRARY_PATH"] = str(find_environment().torch_dir / "lib")
    # Leaks are not looked for: the interpreter and PyTorch leave memory to the end of the process.
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0:protect_shadow_gap=0:abort_on_error=1"
    os.environ["UBSAN_OPTIONS"] = "print_stacktrace=1"
