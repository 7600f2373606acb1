"""Types of the compiled engine (native/simulator/bindings.cpp)."""

from numpy import ndarray

UNITS: tuple[str, ...]
HOST_WAITS: tuple[str, ...]
STREAM_KINDS: tuple[str, ...]

def simulate(
    *, launch_latency_ns: int, dependency_gap_ns: int, queue_depth: int, **columns: ndarray | int
) -> tuple[ndarray, ndarray, ndarray, ndarray]: ...
