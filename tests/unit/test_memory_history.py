"""What fills the memory, from a hand-made record of the allocator."""

from typing import Any

from maya.capture.startup.maya_startup.memory_history import at_peak, cublas_workspace_bytes, place, thinned


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


SITE = "/env/lib/python3.11/site-packages/"
LINEAR = [
    frame(f"{SITE}torch/nn/modules/linear.py", 134, "forward"),
    frame(f"{SITE}torch/nn/modules/module.py", 1794, "_call_impl"),
    frame("/home/me/model.py", 7, "forward"),
    frame("/home/me/train.py", 30, "main"),
]
TRAIN = [frame("/home/me/train.py", 12, "step")]


def entry(
    action: str, time_us: int, address: int, size: int, frames: list[Any] | None = None
) -> dict[str, Any]:
    return {"action": action, "time_us": time_us, "addr": address, "size": size, "frames": frames or []}


def test_live_allocations_at_the_peak() -> None:
    before = {
        10: (4096, LINEAR),  # a parameter, which stays
        20: (1024, TRAIN),  # freed before the peak; another block takes its place
        30: (32 << 20, LINEAR),  # stays, and has no name
    }
    trace = [
        entry("free_requested", 1000, 20, 1024),
        entry("free_completed", 1000, 20, 1024),
        entry("alloc", 1001, 20, 4, LINEAR),  # rounded to 512
        entry("segment_alloc", 1002, 0, 2 << 20),
        entry("alloc", 1003, 40, 2048, LINEAR),
        entry("alloc", 1004, 50, 1000),  # the peak: 4096 + 32 MiB + 512 + 2048 + 1024
        entry("free_requested", 1005, 40, 2048),
        entry("alloc", 1006, 60, 1024),
        entry("free_requested", 1007, 50, 1000),
        entry("free_requested", 1008, 20, 4),
        entry("alloc", 1009, 20, 512, TRAIN),
    ]
    persistent = {10: ("parameters", "layers.0.weight"), 20: ("gradients", "layers.0.weight")}
    found = at_peak(before, 40 << 20, trace, lambda: persistent, 32 << 20)
    assert found["allocated_bytes"] == 4096 + (32 << 20) + 512 + 2048 + 1024
    assert (found["reserved_bytes"], found["time_us"]) == (42 << 20, 4)
    linear = "torch/nn/modules/linear.py:134 forward, from model.py:7 forward"
    assert found["allocations"] == [
        {"bytes": 32 << 20, "count": 1, "made_by": f"{linear}, cuBLAS workspace"},
        {"bytes": 4096, "count": 1, "made_by": "parameters layers.0.weight"},
        {"bytes": 2560, "count": 2, "made_by": linear},
        {"bytes": 1024, "count": 1, "made_by": "autograd engine (no Python frame)"},
    ]
    course = found["course"]
    base = 4096 + (32 << 20)
    assert course["allocated_bytes"] == (
        *(base + 1024, base, base + 512, base + 512, base + 2560, base + 3584, base + 1536),
        *(base + 2560, base + 1536, base + 1024, base + 1536),
    )
    assert course["time_us"] == (0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)


def test_a_peak_at_the_beginning_has_what_was_there() -> None:
    trace = [entry("free_requested", 5, 1, 512), entry("alloc", 6, 2, 512, TRAIN)]
    found = at_peak({1: (1024, LINEAR), 3: (512, TRAIN)}, 2 << 20, trace, dict, 0)
    assert (found["allocated_bytes"], found["time_us"]) == (1536, 0)
    assert [row["made_by"] for row in found["allocations"]] == [
        "torch/nn/modules/linear.py:134 forward, from model.py:7 forward",
        "train.py:12 step, kept between iterations",
    ]


def test_places() -> None:
    assert place([]) == "autograd engine (no Python frame)"
    assert place(TRAIN) == "train.py:12 step"
    assert place(LINEAR[:2]) == "torch/nn/modules/linear.py:134 forward"


def test_a_long_course_keeps_its_extremes() -> None:
    course = [(time, (time * 7919) % 100_003, 0) for time in range(20_000)]
    kept = thinned(course)
    assert len(kept) <= 1000
    assert max(point[1] for point in kept) == max(point[1] for point in course)
    assert kept == sorted(kept)


def test_workspace_sizes() -> None:
    assert cublas_workspace_bytes((9, 0)) == 32 << 20
    assert cublas_workspace_bytes((8, 0)) == 8_519_680  # 8.125 MiB
