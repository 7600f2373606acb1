"""What fills the device memory: PyTorch's own record of allocations, with the Python code that made them.

``rank%05d.memory.json`` holds the allocations that are live at the peak of one iteration, or when an
allocation fails, and the course of allocated and reserved bytes over that iteration.
"""

import gc
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

NUM_LARGEST = 10
_NUM_BUCKETS = 500  # of a course: two points each
_BLOCK_BYTES = 512  # PyTorch's allocator rounds sizes to these (kMinBlockSize in CUDACachingAllocator.cpp)
_NO_PYTHON = "autograd engine (no Python frame)"
_PLUMBING = (
    *("torch/nn/modules/module.py", "torch/utils/_contextlib.py", "torch/_ops.py", "torch/_dynamo/"),
    *("torch/autograd/function.py", "torch/nn/modules/container.py", "<frozen"),
)

Frames = Sequence[dict[str, Any]]
Names = dict[int, tuple[str, str]]  # by address: what a block belongs to, and the path of a parameter


class MemoryHistory:
    """Lets PyTorch remember who made each live block, and for one iteration every allocation."""

    def __init__(self, torch: Any, path: Path) -> None:
        self._memory: Any = torch.cuda.memory
        self._record_history = self._memory._record_memory_history
        self._torch = torch
        self._path = path
        self._before: dict[str, Any] | None = None  # snapshot at the beginning of the iteration
        self._is_on = False
        if hasattr(torch.cuda._tls, "is_initializing"):  # its first use makes this process a rank
            self._switch_on()
        else:
            torch.cuda._lazy_call(self._switch_on)

    def _switch_on(self) -> None:
        self._is_on = self._record("state", context="state")
        if self._is_on:
            self._memory._record_memory_history = self._give_way
            self._torch._C._cuda_attach_out_of_memory_observer(self._on_failure)

    def _give_way(self, *args: Any, **options: Any) -> Any:
        """The program uses PyTorch's record for itself."""
        self._is_on = False
        return self._record_history(*args, **options)

    def _record(self, enabled: str | None, **options: Any) -> bool:
        try:
            self._record_history(enabled, stacks="python", **options)
        except RuntimeError as error:  # allocators other than PyTorch's own keep no history
            print(f"maya: who allocates memory is not recorded: {error}", flush=True)
            return False
        return True

    def begin(self) -> None:
        """The iteration begins."""
        if self._is_on:
            self._before = self._memory._snapshot()
            self._is_on = self._record("all", context="alloc", clear_history=True)

    def end(self) -> None:
        """The iteration has ended: writes what filled the memory, and lets PyTorch forget again."""
        if not self._is_on or self._before is None:
            return
        after = self._memory._snapshot()
        self._record(None)
        self._is_on = False
        device = self._torch.cuda.current_device()
        found = at_peak(
            live_blocks(self._before, device),
            sum(segment["total_size"] for segment in _segments(self._before, device)),
            after["device_traces"][device],
            lambda: persistent_tensors(self._torch),
            cublas_workspace_bytes(self._torch.cuda.get_device_capability()),
        )
        self._path.write_text(json.dumps(found))

    def _on_failure(self, device: int, alloc: int, device_alloc: int, device_free: int) -> None:
        snapshot = self._memory._snapshot()
        blocks = live_blocks(snapshot, device)
        found = {
            "allocated_bytes": sum(size for size, _ in blocks.values()),
            "reserved_bytes": sum(segment["total_size"] for segment in _segments(snapshot, device)),
            "time_us": 0,
            "allocations": largest(blocks, persistent_tensors(self._torch)),
            "course": {"time_us": [], "allocated_bytes": [], "reserved_bytes": []},
        }
        self._path.write_text(json.dumps(found))


def cublas_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """Without CUBLAS_WORKSPACE_CONFIG: ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize."""
    return 32 << 20 if compute_capability >= (9, 0) else 4096 * 1024 * 2 + 16 * 1024 * 8


def _segments(snapshot: dict[str, Any], device: int) -> list[dict[str, Any]]:
    return [segment for segment in snapshot["segments"] if segment["device"] == device]


def live_blocks(snapshot: dict[str, Any], device: int) -> dict[int, tuple[int, Frames]]:
    """Size and frames of the blocks in use, by address."""
    return {
        block["address"]: (block["size"], block["frames"])
        for segment in _segments(snapshot, device)
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


def at_peak(
    before: dict[int, tuple[int, Frames]],
    reserved_bytes: int,
    trace: Sequence[dict[str, Any]],
    name_persistent: Callable[[], Names],
    workspace_bytes: int,
) -> dict[str, Any]:
    """What is live at the peak of an iteration, and the course of the memory.

    Args:
        before: blocks at its beginning; ``reserved_bytes``: of all segments then.
        trace: what the allocator did, as in a snapshot's ``device_traces``.
        name_persistent: names of tensors that are live at the end, by address.
        workspace_bytes: size of PyTorch's cuBLAS workspaces, which it keeps for each thread and stream.
    """
    allocated = sum(size for size, _ in before.values())
    course = [(0, allocated, reserved_bytes)]
    start_us = trace[0]["time_us"] if trace else 0
    live, peak, at_the_peak = dict(before), allocated, before
    is_rising = False
    for entry in trace:
        action = entry["action"]
        if action == "alloc":
            size = -(-entry["size"] // _BLOCK_BYTES) * _BLOCK_BYTES
            live[entry["addr"]] = (size, entry["frames"])
            allocated += size
            is_rising = is_rising or allocated > peak
            peak = max(peak, allocated)
        elif action == "free_requested":
            if is_rising:
                at_the_peak, is_rising = dict(live), False
            allocated -= live.pop(entry["addr"], (0, ()))[0]
        elif action in ("segment_alloc", "segment_map"):
            reserved_bytes += entry["size"]
        elif action in ("segment_free", "segment_unmap"):
            reserved_bytes -= entry["size"]
        else:
            continue
        course.append((entry["time_us"] - start_us, allocated, reserved_bytes))
    if is_rising:
        at_the_peak = dict(live)
    persistent = name_persistent()
    names: Names = {}
    for address, block in at_the_peak.items():
        if live.get(address) is not block:  # freed since, whatever is there now
            continue
        if address in persistent:
            names[address] = persistent[address]
        elif before.get(address) is block:
            kept = "cuBLAS workspace" if block[0] == workspace_bytes else "kept between iterations"
            names[address] = (f"{place(block[1])}, {kept}", "")
    time_us, _, reserved_then = max(course, key=lambda point: (point[1], -point[0]))
    return {
        "allocated_bytes": peak,
        "reserved_bytes": reserved_then,
        "time_us": time_us,
        "allocations": largest(at_the_peak, names),
        "course": dict(
            zip(
                ("time_us", "allocated_bytes", "reserved_bytes"),
                zip(*thinned(course), strict=True),
                strict=True,
            )
        ),
    }


def thinned(course: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Of a long course the least and the most allocated point of each bucket, in their order."""
    if len(course) <= 2 * _NUM_BUCKETS:
        return list(course)
    kept = []
    for number in range(_NUM_BUCKETS):
        begin, end = (len(course) * (number + step) // _NUM_BUCKETS for step in (0, 1))
        positions = range(begin, end)
        extremes = {choose(positions, key=lambda at: course[at][1]) for choose in (min, max)}
        kept += [course[position] for position in sorted(extremes)]
    return kept


def largest(blocks: dict[int, tuple[int, Frames]], names: Names) -> list[dict[str, Any]]:
    """The makers of most bytes: ``bytes``, ``count`` of blocks and ``made_by``, a name or a place in code."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for address, (size, frames) in blocks.items():
        group, path = names.get(address) or (place(frames), "")
        groups.setdefault(group, []).append((size, path))
    rows: list[dict[str, Any]] = []
    for group, members in groups.items():
        _, path = max(members)
        text = f"{group}, the largest of {path}" if path and len(members) > 1 else f"{group} {path}".rstrip()
        rows.append({"bytes": sum(size for size, _ in members), "count": len(members), "made_by": text})
    return sorted(rows, key=lambda row: (-row["bytes"], row["made_by"]))[:NUM_LARGEST]


def place(frames: Frames) -> str:
    """The innermost Python frame that is no plumbing, and the innermost one of the program itself."""
    told = [frame for frame in frames if not any(part in frame["filename"] for part in _PLUMBING)]
    if not told:
        return _NO_PYTHON
    own = next((frame for frame in told if "site-packages" not in frame["filename"]), None)
    if own is None or own is told[0]:
        return _text(told[0])
    return f"{_text(told[0])}, from {_text(own)}"


def _text(frame: dict[str, Any]) -> str:
    path = frame["filename"]
    short = path.rsplit("site-packages/", 1)[-1] if "site-packages/" in path else Path(path).name
    return f"{short}:{frame['line']} {frame['name']}"


def persistent_tensors(torch: Any) -> Names:
    """Names of parameters, gradients, buffers and optimizer states by the address of their storage."""
    modules, optimizers = _instances(torch.nn.Module), _instances(torch.optim.Optimizer)
    children = {id(child) for module in modules for child in module._modules.values()}
    parameter_names: dict[int, str] = {}
    names: Names = {}

    def name(tensor: Any, group: str, path: str) -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        if isinstance(local, torch.Tensor) and local.is_cuda:
            names.setdefault(local.untyped_storage().data_ptr(), (group, path))

    for module in modules:
        if id(module) in children:
            continue
        for path, parameter in module.named_parameters():
            parameter_names[id(parameter)] = path
            name(parameter, "parameters", path)
            name(parameter.grad, "gradients", path)
            name(getattr(parameter, "main_grad", None), "gradients", path)  # Megatron's
        for path, buffer in module.named_buffers():
            name(buffer, "buffers", path)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name(parameter, "the optimizer's copies of parameters", "")
                name(parameter.grad, "the optimizer's copies of gradients", "")
        for parameter, state in optimizer.state.items():
            path = parameter_names.get(id(parameter), "")
            for key, value in state.items() if isinstance(state, dict) else ():
                name(value, f"optimizer state {key}", path)
    return names


def _instances(kind: type) -> list[Any]:
    # By type, since asking an object for its class runs code of lazy proxies.
    found: Iterable[Any] = (item for item in gc.get_objects() if issubclass(type(item), kind))
    return list(found)
