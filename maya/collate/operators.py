"""The PyTorch operator around each device operation, from the iteration that announces them."""

import re

import numpy as np

from maya.collate.hashing import combine, occurrence
from maya.trace import KINDS, Trace

NO_OPERATOR = ("", "")

# "aten::addmm, op_id = 123, sizes = [[768], [8, 768], []], input_op_ids = [(120,0)]": every part but the
# name may be absent; backward functions carry "seq = 5" after the name.
# Source: getNvtxStr in torch/csrc/profiler/util.cpp.
_RANGE = re.compile(
    r"(?P<name>.*?)(?:, seq = -?\d+)?(?:, op_id = \d+)?(?:, sizes = (?P<sizes>\[(?:\[[\d, ]*\](?:, )?)*\]))?"
    r"(?:, input_op_ids = .*)?",
    re.DOTALL,
)


def parse_range(text: str) -> tuple[str, str]:
    """Name and sizes ("" where it carries none) of the range text of an operator."""
    match = _RANGE.fullmatch(text)
    assert match is not None  # the name takes whatever the other parts leave
    return match["name"], match["sizes"] or ""


def operators_around(trace: Trace, positions: np.ndarray, begin: int, end: int) -> list[tuple[str, str]]:
    """Operator and sizes around each of the given positions in [begin, end).

    It is the innermost range of the launching thread that has sizes; where all dimensions of those are empty,
    as of an operator on Python scalars alone, the next one outwards with dimensions, if any.
    """
    push, pop = KINDS["range_push"], KINDS["range_pop"]
    relevant = np.flatnonzero((trace.kind[begin:end] == push) | (trace.kind[begin:end] == pop)) + begin
    events = np.union1d(relevant, positions)
    kinds = trace.kind[events].tolist()
    threads = trace.thread[events].tolist()
    rows = trace.row[events].tolist()
    names = trace.column("range_push", "name").tolist()
    parsed: dict[int, tuple[str, str]] = {}
    stacks: dict[int, list[tuple[str, str]]] = {}
    result = []
    for kind, thread, row in zip(kinds, threads, rows, strict=True):
        stack = stacks.setdefault(thread, [])
        if kind == push:
            text_id = names[row]
            if text_id not in parsed:
                parsed[text_id] = parse_range(trace.strings[text_id])
            stack.append(parsed[text_id])
        elif kind == pop:
            if stack:
                stack.pop()
        else:
            result.append(_innermost(stack))
    return result


def _innermost(stack: list[tuple[str, str]]) -> tuple[str, str]:
    innermost = NO_OPERATOR
    for operator in reversed(stack):
        sizes = operator[1]
        if not sizes:
            continue
        if any(character.isdigit() for character in sizes):
            return operator
        if innermost is NO_OPERATOR:
            innermost = operator
    return innermost


def transfer(
    operators: list[tuple[str, str]],
    known_key: np.ndarray,
    known_thread: np.ndarray,
    key: np.ndarray,
    thread: np.ndarray,
    iteration: np.ndarray,
) -> np.ndarray:
    """Index into ``operators`` for every device operation of the steady part, -1 where none fits.

    The n-th operation of a key in a thread and iteration gets what the n-th of that key and thread had in the
    announcing iteration. One that has no counterpart, as iterations differ, gets that of the last one of its
    key.
    """
    known_call = combine(known_key, known_thread.astype(np.uint64))
    known = combine(known_call, occurrence(known_call).astype(np.uint64))
    call = combine(key, thread.astype(np.uint64))
    position = occurrence(combine(call, iteration.astype(np.uint64)))
    index = _look_up(known, combine(call, position.astype(np.uint64)))
    missing = index < 0
    index[missing] = _look_up(known_key, key[missing])
    return index


def _look_up(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Index of the last element of ``known`` equal to each wanted one, -1 where there is none."""
    if not len(known):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(known, kind="stable")
    place = np.searchsorted(known[order], wanted, side="right") - 1
    index = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (known[index] == wanted), index, -1)
