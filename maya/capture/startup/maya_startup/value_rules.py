"""Rules of the configuration that say what operators of PyTorch give inside of certain functions.

A site is ``path/of/file.py:function``, both shell patterns; the path matches the end of a file's path, the
function a qualified name (``Router.forward``). Functions of a site are found when their module is imported,
and wrapped; nothing else in the program costs anything.
"""

import importlib.abc
import importlib.machinery
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from .imports import CallbackLoader

# What "balanced" answers; maya/config/validate.py refuses others.
CHOOSING_OPERATORS = ("topk", "sort", "argmax", "argmin")
COUNTING_OPERATORS = ("bincount", "histc")


@dataclass(frozen=True)
class Rule:
    """One rule; fields as in maya/config/schema.py."""

    sites: tuple[str, ...]
    operators: tuple[str, ...]
    answer: str
    name: str = ""
    mode: str = "any"
    value: float = 0.0
    low: float = 0.0
    high: float = 1.0
    mean: float = 0.0
    std: float = 1.0
    seed: int = 0
    min_bytes: int = 0
    max_bytes: int | None = None

    def names(self, operator: str) -> bool:
        """Whether it answers for an operator, given as PyTorch registers it (without ``aten::``)."""
        operator = {"_local_scalar_dense": "item", "_unique2": "unique"}.get(operator, operator)
        return any(fnmatchcase(operator, pattern) for pattern in self.operators)

    def applies_to(self, num_bytes: int) -> bool:
        return self.min_bytes <= num_bytes and (self.max_bytes is None or num_bytes <= self.max_bytes)

    def values_like(self, torch: Any, tensor: Any, num_choices: int = 1) -> Any:
        """What it answers in place of a tensor, on the CPU. ``num_choices``: how many balanced ones."""
        size, dtype = tensor.size(), tensor.dtype
        if self.answer == "fraction":  # evenly spread
            steps = torch.arange(tensor.numel() + 1, dtype=torch.float64).mul(self.value).floor()
            return steps.diff().reshape(size).to(dtype)
        if self.answer in ("uniform", "normal"):
            generator = torch.Generator().manual_seed(self.seed)
            numbers = torch.empty(size, dtype=torch.float64)
            if self.answer == "uniform":
                return numbers.uniform_(self.low, self.high, generator=generator).to(dtype)
            return numbers.normal_(self.mean, self.std, generator=generator).to(dtype)
        if self.answer == "balanced":
            return torch.arange(tensor.numel()).remainder(max(num_choices, 1)).reshape(size).to(dtype)
        constant = {"zeros": 0, "ones": 1, "true": 1}.get(self.answer, self.value)
        return torch.full(size, constant, dtype=torch.float64).to(dtype)

    def result(self, torch: Any, operator: str, arguments: dict[str, Any], tensor: Any) -> Any:
        """What it answers for a result of an operator, on the CPU; None: nothing."""
        if self.answer != "balanced":
            return self.values_like(torch, tensor)
        if operator in COUNTING_OPERATORS:
            return _spread(torch, arguments["self"].numel(), tensor)
        if operator in CHOOSING_OPERATORS and tensor.dtype == torch.int64:  # not the chosen values
            return _balanced_indices(torch, arguments["self"], arguments.get("dim", -1), tensor)
        return None


def _balanced_indices(torch: Any, source: Any, dim: int | None, tensor: Any) -> Any:
    """Indices that choose the positions of a dimension equally often, with the remainder at the first ones.

    Row after row goes on where the one before has ended.
    """
    is_reduced = tensor.dim() < source.dim()
    num_choices = source.numel() if dim is None or source.dim() == 0 else source.size(dim)
    indices = torch.arange(tensor.numel()) % max(num_choices, 1)
    if is_reduced or tensor.dim() == 0:
        return indices.reshape(tensor.size())
    return indices.reshape(tensor.transpose(dim, -1).size()).transpose(dim, -1)


def _spread(torch: Any, total: int, counts: Any) -> Any:
    share, remainder = divmod(total, max(counts.numel(), 1))
    return (share + (torch.arange(counts.numel()) < remainder).long()).reshape(counts.size()).to(counts.dtype)


def read_rules(text: str) -> list[Rule]:
    """The rules of ``MAYA_VALUES``: a JSON list of objects with the fields of `Rule`."""
    rules: list[dict[str, Any]] = json.loads(text or "[]")
    return [
        Rule(**rule | {"sites": tuple(rule["sites"]), "operators": tuple(rule["operators"])})
        for rule in rules
    ]


Wrapper = Callable[[Callable[..., Any], Sequence[Rule]], Callable[..., Any]]


class SiteWatch(importlib.abc.MetaPathFinder):
    """Has the functions that rules name wrapped, as their modules are imported."""

    def __init__(self, rules: Sequence[Rule], wrap: Wrapper) -> None:
        self._rules = rules
        self._wrap = wrap
        self._paths = [_split(site)[0] for rule in rules for site in rule.sites]
        self._being_found: set[str] = set()

    def start(self) -> None:
        if not self._rules:
            return
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType):
                self.wrap_functions(module)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self._being_found or not any(_may_be_at(fullname, path) for path in self._paths):
            return None
        self._being_found.add(fullname)
        try:
            specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path)
            spec = next((spec for spec in specs if spec is not None), None)
        finally:
            self._being_found.discard(fullname)
        if spec is None or spec.loader is None or spec.origin is None:
            return spec
        if any(_is_at(spec.origin, path) for path in self._paths):
            spec.loader = CallbackLoader(spec.loader, self.wrap_functions)
        return spec

    def wrap_functions(self, module: ModuleType) -> None:
        """Wraps the functions and methods of a module that rules name."""
        file = vars(module).get("__file__") or ""
        functions = [
            (path_functions, rule)
            for rule in self._rules
            for path, path_functions in map(_split, rule.sites)
            if _is_at(file, path)
        ]
        if not functions:
            return
        wrapped: dict[Any, Any] = {}
        namespaces: list[Any] = [module]
        namespaces += [
            value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        for namespace in namespaces:
            for name, value in list(vars(namespace).items()):
                function = getattr(value, "__func__", value)  # of static and class methods
                if not isinstance(function, FunctionType) or function.__module__ != module.__name__:
                    continue
                rules = [rule for pattern, rule in functions if fnmatchcase(function.__qualname__, pattern)]
                if not rules or _is_special(name) or inspect.isgeneratorfunction(function):
                    continue
                if function not in wrapped:
                    wrapped[function] = self._wrap(function, rules)
                replacement = wrapped[function]
                setattr(namespace, name, replacement if value is function else type(value)(replacement))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name != "__call__"


def _split(site: str) -> tuple[str, str]:
    """Path and function of a site; all functions where it names none."""
    path, _, function = site.partition(":")
    return path, function or "*"


def _is_at(file: str, path: str) -> bool:
    """Whether the pattern ``path`` matches the end of a file's path."""
    patterns, parts = path.split("/"), Path(file).parts
    return len(patterns) <= len(parts) and all(
        fnmatchcase(part, pattern) for part, pattern in zip(parts[-len(patterns) :], patterns, strict=True)
    )


def _may_be_at(module_name: str, path: str) -> bool:
    """What can be told from the name of a module, before its file is looked for."""
    patterns = path.removesuffix(".py").split("/")
    names = module_name.split(".")
    return all(
        fnmatchcase(name, pattern) for name, pattern in zip(reversed(names), reversed(patterns), strict=False)
    )
