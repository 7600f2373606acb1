"""Operators whose results are computed besides being launched on the emulated device.

Emulated kernels compute nothing. Inside of `computing`, an operator of which all inputs are known
(native/emulator/known_bytes.h) is done once more on the CPU, straight on the memory behind the emulated
device: so index arithmetic, such as the routing of tokens to experts, comes out right once its beginning is
known. What is launched and recorded stays the same, and the time this takes is taken out of the host gaps.
"""

import contextlib
import ctypes
import functools
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .data_dependent import deciding_inputs, intermediate_reads
from .native import Emulator, emulator
from .value_rules import Rule

PROGRAM, RULE, ABSENT, KERNEL = range(4)  # Origin in native/emulator/known_bytes.h

_MAX_BYTES = 64 << 20  # of a result, and of an input that is copied for it: as large as index tensors may be
# Operators that depend on no value of the tensors among their arguments. What the first ones give needs no
# memory to be written: it is zero, or the program writes over it.
_ZEROS = (
    *("zeros", "zeros_like", "new_zeros", "zero_"),
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
)
_CONSTANTS = (
    *("ones", "full", "arange", "eye", "scalar_tensor", "fill_"),
    *("ones_like", "full_like", "new_ones", "new_full"),
)

_active = threading.local()


@contextlib.contextmanager
def computing(rules: Sequence[Rule] = ()) -> Iterator[None]:
    """Computes what is known on this thread, and answers the operators that ``rules`` name."""
    stack = _active.__dict__.setdefault("rules", [])
    stack.append(rules)
    try:
        if len(stack) > 1:
            yield
        else:
            with _mode_class()(emulator(), stack):
                yield
    finally:
        stack.pop()


@dataclass
class _Computation:
    """Results on the CPU and what they were computed from: pairs of device tensors and copies."""

    results: Any
    origin: int
    inputs: list[tuple[Any, Any]]


class DeviceMemory:
    """The memory of emulated devices as tensors on the CPU."""

    def __init__(self, torch: Any, device: Emulator) -> None:
        self._torch = torch
        self._emulator = device

    def on_cpu(self, tensor: Any) -> Any:
        """The same memory as a CPU tensor."""
        if not tensor.is_cuda:
            return tensor
        if tensor.numel() == 0:
            return self._torch.empty(tensor.size(), dtype=tensor.dtype)
        address, num_bytes = _extent(tensor)
        self._emulator.complete_collectives(address, num_bytes)
        memory = (ctypes.c_char * num_bytes).from_address(address)
        return self._torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.size(), tensor.stride())

    def origin(self, tensor: Any) -> int:
        if not tensor.is_cuda or tensor.numel() == 0:
            return PROGRAM
        address, num_bytes = _extent(tensor)
        self._emulator.complete_collectives(address, num_bytes)
        return self._emulator.origin(address, num_bytes)

    def zero(self, tensor: Any) -> None:
        """Makes a tensor without gaps zero, and touches no memory that is."""
        if tensor.is_cuda and tensor.numel() > 0:
            address, num_bytes = _extent(tensor)
            if num_bytes == tensor.numel() * tensor.element_size():
                self._emulator.keep_zeros(address, num_bytes)

    def write(self, tensor: Any, values: Any, origin: int) -> None:
        """Gives a tensor the values of one on the CPU."""
        if tensor.numel() == 0:
            return
        self.on_cpu(tensor).copy_(values)
        if tensor.is_cuda:
            self._emulator.keep_known(*_extent(tensor), origin)


def _extent(tensor: Any) -> tuple[int, int]:
    """Address, and bytes from the first to the last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


@functools.cache
def _traits(func: Any) -> tuple[str, bool, tuple[int | str, ...]]:
    """An operator's name, whether it only makes a view, and the arguments that it writes to."""
    arguments = func._schema.arguments
    written = tuple(
        argument.name if argument.kwarg_only else position
        for position, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    is_view = not written and any(argument.alias_info is not None for argument in arguments)
    return func._schema.name.removeprefix("aten::"), is_view, written


@functools.cache
def _mode_class() -> type:
    """Made late, as its base class is PyTorch's."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves, tree_map

    overhead_ns = _mode_overhead_ns(torch, TorchDispatchMode)

    def tensors_of(values: Any) -> list[Any]:
        return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]

    class ComputedValues(TorchDispatchMode):
        def __init__(self, device: Emulator, rules: list[Sequence[Rule]]) -> None:
            super().__init__()
            self._emulator = device
            self._rules = rules
            self._memory = DeviceMemory(torch, device)

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            begin_ns = time.perf_counter_ns()
            kwargs = kwargs or {}
            name, is_view, written = _traits(func)
            rule = None if is_view else self._find_rule(name)
            computation, reads = None, []
            if not is_view and name not in _ZEROS and func.namespace == "aten":
                replaced = self._replaced_inputs(name, args, rule)
                computation = self._compute(func, args, kwargs, replaced)
                reads = intermediate_reads(name, args, list(replaced.values()))
            if reads:
                self._emulator.answer_reads(reads)
            self._emulator.discount(time.perf_counter_ns() - begin_ns + overhead_ns)
            results = func(*args, **kwargs)
            begin_ns = time.perf_counter_ns()
            if reads:
                self._emulator.answer_reads(())
            if name in _ZEROS and func.namespace == "aten":
                self._memory.zero(results)
            if computation is not None:
                outputs = [kwargs[key] if isinstance(key, str) else args[key] for key in written]
                results = self._write(computation, outputs, results)
            if rule is not None and not deciding_inputs(name, args):
                results = self._answer(rule, func, args, kwargs, results)
            self._emulator.discount(time.perf_counter_ns() - begin_ns)
            return results

        def _find_rule(self, name: str) -> Rule | None:
            for rules in reversed(self._rules):
                for rule in rules:
                    if rule.names(name):
                        return rule
            return None

        def _replaced_inputs(self, name: str, args: tuple[Any, ...], rule: Rule | None) -> dict[int, Any]:
            """Values of the inputs that decide on the size of a result, by the identity of the tensors.

            Empty for operators of fixed size, and where these values are neither known nor given by a rule.
            """
            replaced = {}
            for tensor in deciding_inputs(name, args):
                if rule is not None and rule.applies_to(tensor.nbytes):
                    num_choices = args[2] if name == "bincount" and len(args) > 2 else 1
                    replaced[id(tensor)] = rule.values_like(torch, tensor, num_choices)
                elif self._memory.origin(tensor) < KERNEL and tensor.nbytes <= _MAX_BYTES:
                    replaced[id(tensor)] = self._memory.on_cpu(tensor).clone()
                else:
                    return {}
            return replaced

        def _compute(
            self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], replaced: dict[int, Any]
        ) -> _Computation | None:
            name, _, _ = _traits(func)
            inputs = tensors_of((args, kwargs))
            is_constant = name in _CONSTANTS
            device = kwargs.get("device")
            if not any(tensor.is_cuda for tensor in inputs) and (device is None or device.type != "cuda"):
                return None
            if not inputs and not is_constant:
                return None
            origin = PROGRAM
            for tensor in inputs:
                if tensor.nbytes > _MAX_BYTES:
                    return None
                if is_constant or (name == "copy_" and tensor is args[0]):
                    continue
                origin = max(origin, self._memory.origin(tensor))
                if origin == KERNEL and id(tensor) not in replaced:
                    return None
            copies: dict[int, Any] = {}

            def on_cpu(value: Any) -> Any:
                if isinstance(value, torch.device):
                    return torch.device("cpu")
                if not isinstance(value, torch.Tensor):
                    return value
                if id(value) not in copies:
                    copies[id(value)] = replaced.get(id(value), self._memory.on_cpu(value).clone())
                return copies[id(value)]

            cpu_args, cpu_kwargs = tree_map(on_cpu, (args, kwargs))
            try:
                results = _run(func, name, cpu_args, cpu_kwargs)
            except (RuntimeError, IndexError):
                return None  # the CPU has no such operator, or the program's own call will fail as well
            pairs = [(tensor, copies[id(tensor)]) for tensor in inputs if id(tensor) in copies]
            return _Computation(results, RULE if origin == KERNEL else origin, pairs)

        def _write(self, computation: _Computation, outputs: list[Any], results: Any) -> Any:
            """Puts what was computed in its place; returns the results, with scalars from the computation."""
            memory = self._memory
            for tensor, values in computation.inputs:
                is_output = any(tensor is output for output in outputs)
                # The kernel may have cost an input its value, where it is not known what a kernel writes.
                if is_output or (tensor.is_cuda and memory.origin(tensor) == KERNEL):
                    memory.write(tensor, values, computation.origin)
            if outputs:
                return results
            if not tensors_of(results):
                return computation.results
            for tensor, values in zip(tensors_of(results), tensors_of(computation.results), strict=True):
                if tensor.size() == values.size() and tensor.nbytes <= _MAX_BYTES:
                    memory.write(tensor, values, computation.origin)
            return results

        def _answer(
            self, rule: Rule, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any
        ) -> Any:
            name, _, _ = _traits(func)
            names = [argument.name for argument in func._schema.arguments]
            arguments = dict(zip(names, args, strict=False)) | kwargs
            if name == "_local_scalar_dense":
                tensor = arguments["self"]
                return rule.values_like(torch, tensor).item() if rule.applies_to(tensor.nbytes) else results
            for tensor in tensors_of(results):
                values = (
                    rule.result(torch, name, arguments, tensor) if rule.applies_to(tensor.nbytes) else None
                )
                if values is not None:
                    self._memory.write(tensor, values, RULE)
            return results

    return ComputedValues


def _run(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator on the CPU."""
    kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
    if name == "histc" and not args[0].is_floating_point():  # has no integers on the CPU
        return func(args[0].double(), *args[1:], **kwargs).to(args[0].dtype)
    return func(*args, **kwargs)


def _mode_overhead_ns(torch: Any, mode: Any) -> int:
    """Time that it takes PyTorch to call an operator through a mode that does nothing."""

    class Idle(mode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    value = torch.zeros(1)

    def median_ns() -> float:
        times = []
        for _ in range(200):
            begin_ns = time.perf_counter_ns()
            torch.neg(value)
            times.append(time.perf_counter_ns() - begin_ns)
        return statistics.median(times)

    plain_ns = median_ns()
    with Idle():
        return max(round(median_ns() - plain_ns), 0)
