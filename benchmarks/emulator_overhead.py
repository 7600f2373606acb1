"""Measure what one call into the emulator costs the program, with recording on.

The calls are timed in a compiled loop, one by one: median and 99th percentile of the time inside a call, and
calls per second back to back. Run: ``python benchmarks/emulator_overhead.py``.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from maya.capture.build_emulator import emulator_dir, find_environment
from maya.capture.environment import gpu_properties
from maya.config.compose import gpu_config
from maya.trace import read_trace

SOURCE = Path(__file__).with_suffix(".cpp")
MAX_MEDIAN_NS = 500.0  # the most that a call may cost at the median


def compile_benchmark(library_dir: Path, target: Path) -> None:
    """Compile the timing loop against the emulator."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise SystemExit("A C++ compiler is needed: set CXX or install g++.")
    includes = [f"-isystem{d / 'include'}" for d in find_environment().cuda_dirs if (d / "include").is_dir()]
    library = library_dir / "libmaya_emulator.so"
    command = [
        compiler,
        "-std=c++20",
        "-O2",
        *includes,
        str(SOURCE),
        str(library),
        f"-Wl,-rpath,{library_dir}",
    ]
    subprocess.run([*command, "-o", str(target)], check=True)


def measure() -> tuple[dict[str, tuple[float, float, float]], float]:
    """Return median ns, 99th percentile ns and calls per second of each call, and the bytes of a record."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "emulator_overhead"
        compile_benchmark(emulator_dir(), program)
        gpu = gpu_properties(gpu_config("h100_sxm"))
        environment = {**os.environ, "MAYA_GPU": gpu, "MAYA_TRACE_DIR": folder}
        output = subprocess.run(
            [str(program)], env=environment, check=True, capture_output=True, text=True
        ).stdout
        trace = Path(folder) / "rank00000.trace"
        bytes_per_record = trace.stat().st_size / read_trace(trace).num_records
    rows = (line.split() for line in output.splitlines())
    times = {name: (float(median), float(p99), float(rate)) for name, median, p99, rate in rows}
    return times, bytes_per_record


def main() -> None:
    """Print the table; fail when the median of a call is above the limit."""
    rows, bytes_per_record = measure()
    print(f"{'call':<20} {'median ns':>10} {'99 % ns':>10} {'calls/s':>12}")
    for name, (median_ns, p99_ns, calls_per_s) in rows.items():
        print(f"{name:<20} {median_ns:>10.0f} {p99_ns:>10.0f} {calls_per_s:>12,.0f}")
    print(f"{bytes_per_record:.0f} bytes of trace a call")
    slow = [name for name, (median_ns, _, _) in rows.items() if median_ns > MAX_MEDIAN_NS]
    if slow:
        raise SystemExit(f"above {MAX_MEDIAN_NS:.0f} ns at the median: {', '.join(slow)}")


if __name__ == "__main__":
    main()
