"""The traces of a capture: of every captured rank the operations of its steady iterations."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from maya.capture.manifest import Manifest, read_manifest
from maya.collate import host_gaps, operators
from maya.collate.communicators import (
    LocalCommunicator,
    communicators_opened,
    link_communicators,
    name_communicators,
)
from maya.collate.events import Families, find_families, read_events
from maya.collate.grouped_calls import COLLECTIVE_TEXTS, group_rows, is_first_of_group
from maya.collate.hashing import record_keys, sequence_hash
from maya.collate.host_gaps import GapSamples
from maya.collate.iterations import DEVICE_KINDS, Cut, find_iterations
from maya.collate.references import check_references
from maya.collate.waits import bind_waits
from maya.errors import TraceError
from maya.trace import FIELDS, KINDS, Trace, _decoder, read_trace

TIMELINE_KINDS = tuple(kind for kind, number in KINDS.items() if KINDS["kernel"] <= number <= KINDS["free"])
"""Records that are rows of a job; the others mark, name or announce something."""

OPERATOR_KINDS = ("kernel", "gemm", "conv", "attention", "library_op", "memcpy", "memset")


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedRank:
    """The steady part of one captured rank.

    ``ops`` and ``details`` are as in `maya.collate.job.RankTrace`, without what needs other ranks. ``calls``
    has one row for every call of a collective, also for those that share a row of ``ops`` (column ``row``):
    see maya/collate/grouped_calls.py. ``gaps`` has the host gaps of all plain iterations, ``steady_calls``
    the name there of the call of each row of ``ops``.
    """

    rank: int
    ops: pd.DataFrame
    details: dict[str, pd.DataFrame]
    calls: pd.DataFrame
    num_iterations: int
    signature: int  # hash of the device operations of an iteration, without identifiers
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_device_bytes: int
    peak_nccl_bytes: int
    gaps: GapSamples
    steady_calls: np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """All captured ranks of a job, their communicators by rank and local id, and the process groups of the
    world.

    ``families`` is empty where all ranks were captured in one run.
    """

    manifest: Manifest
    ranks: dict[int, CapturedRank]
    communicators: dict[int, dict[int, LocalCommunicator]]
    families: Families

    def family(self, rank: int, communicator: LocalCommunicator) -> int:
        """Family of the process group of one of a rank's communicators."""
        return self.families.family_of[list(self.ranks).index(rank)][communicator.group]

    def distinguished_positions(self) -> dict[int, set[int]]:
        """By family, the positions in its process groups whose ranks do something of their own.

        All of them where a captured rank sends or receives (all-to-alls apart), else the roots of rooted
        operations: a root reads the data that it broadcasts, for one.
        """
        positions: dict[int, set[int]] = defaultdict(set)
        for number, rank in self.ranks.items():
            columns = ["comm", "op", "peer", "is_point_to_point", "is_all_to_all"]
            for call in rank.calls[columns].drop_duplicates().itertuples():
                if call.is_all_to_all or call.peer < 0:
                    continue
                family = self.family(number, self.communicators[number][call.comm])
                if call.is_point_to_point:
                    positions[family].update(range(max(map(len, self.families.groups[family]))))
                else:
                    positions[family].add(call.peer)
        return positions


def read_capture(trace_dir: Path) -> Capture:
    """Reads a folder that a capture wrote.

    Raises:
        TraceError: it is not complete, damaged, or holds no steady iteration.
    """
    manifest = read_manifest(trace_dir)
    if manifest.out_of_memory is not None:
        raise TraceError(
            f"Rank {manifest.out_of_memory.rank} of {trace_dir} ran out of device memory, so that there are "
            "no whole iterations to bring together. Choose a smaller batch, more GPUs or a GPU with more "
            "memory."
        )
    numbers = sorted(rank.rank for rank in manifest.ranks)
    paths = {number: trace_dir / f"rank{number:05d}.trace" for number in numbers}
    cuts = {number: find_iterations(_read_checked(path)) for number, path in paths.items()}
    num_iterations = min(cut.num_iterations for cut in cuts.values())
    events = {number: read_events(trace_dir / f"rank{number:05d}.events.jsonl") for number in numbers}
    ranks = {}
    opened = {}
    for number, path in paths.items():
        trace = _read_checked(path)
        opened[number] = communicators_opened(trace)
        ranks[number] = read_rank(number, trace, cuts[number].newest(num_iterations))
    _set_host_gaps(list(ranks.values()))
    if manifest.mode == "linked":
        communicators = link_communicators(opened, events)
        families = Families(groups=[], family_of=[])
    else:
        communicators = {
            number: name_communicators(number, opened[number], events[number]) for number in numbers
        }
        families = find_families(list(events.values()))
    return Capture(manifest=manifest, ranks=ranks, communicators=communicators, families=families)


def _read_checked(path: Path) -> Trace:
    trace = read_trace(path)
    check_references(trace)
    return trace


def _set_host_gaps(ranks: list[CapturedRank]) -> None:
    """Fills in gaps and blocked flags; ranks of equal operations share them, as they run the same code."""
    by_signature: dict[int, list[CapturedRank]] = defaultdict(list)
    for rank in ranks:
        by_signature[rank.signature].append(rank)
    for alike in by_signature.values():
        steady = host_gaps.steady_gaps([rank.gaps for rank in alike])
        for rank in alike:
            rank.ops["gap_ns"], is_blocked = steady.of(rank.steady_calls)
            rank.ops["flags"] |= is_blocked * _decoder.BLOCKED


def read_rank(rank: int, trace: Trace, cut: Cut) -> CapturedRank:
    """The steady part of a trace as tables; host gaps are still to be filled in."""
    is_row = np.isin(trace.kind, [KINDS[kind] for kind in TIMELINE_KINDS])
    is_row &= (trace.flags & _decoder.NOT_WORKLOAD) == 0
    is_row[trace.positions("collective")] &= is_first_of_group(trace)
    gap_ns, blocked = host_gaps.carry_gaps(trace, is_row)

    begin, end = int(cut.repeats[0]), int(cut.repeats[-1])
    positions = begin + np.flatnonzero(is_row[begin:end])
    keys = record_keys(trace, positions)
    gaps = host_gaps.sample_gaps(
        keys,
        trace.thread[positions].astype(np.int64),
        np.searchsorted(cut.repeats, positions, side="right") - 1,
        gap_ns[positions],
        blocked[positions],
    )
    is_steady = (positions >= cut.boundaries[0]) & (positions < cut.boundaries[-1])
    positions, keys = positions[is_steady], keys[is_steady]
    iteration = np.searchsorted(cut.boundaries, positions, side="right") - 1
    thread = trace.thread[positions].astype(np.int64)
    kinds = trace.kind[positions]
    ops = pd.DataFrame(
        {
            "kind": _kind_names()[kinds],
            "thread": thread,
            "flags": trace.flags[positions].astype(np.int64) & ~_decoder.BLOCKED,
            "gap_ns": np.zeros(len(positions), dtype=np.int64),
            "stream": np.full(len(positions), -1, dtype=np.int64),
            "iteration": iteration,
            "waits_on": np.full(len(positions), -1, dtype=np.int64),
        }
    )
    details = {}
    for kind in TIMELINE_KINDS:
        rows = np.flatnonzero(kinds == KINDS[kind])
        if not len(rows):
            continue
        details[kind] = _details(trace, kind, positions, rows)
        if "stream" in FIELDS[kind]:
            ops.loc[rows, "stream"] = details[kind]["stream"].to_numpy()
    _bind_waits(trace, positions, kinds, ops)
    _add_operators(trace, cut, positions, keys, ops, details)

    is_device = np.isin(kinds, [KINDS[kind] for kind in DEVICE_KINDS])
    marks = trace.table("mark").groupby("name")["value"].max()
    return CapturedRank(
        rank=rank,
        ops=ops,
        details=details,
        calls=group_rows(trace, positions),
        num_iterations=cut.num_iterations,
        signature=_signature(keys, thread, is_device & (iteration == 0)),
        gaps=gaps,
        steady_calls=gaps.call[is_steady],
        peak_allocated_bytes=int(marks.get("peak_allocated_bytes", 0)),
        peak_reserved_bytes=int(marks.get("peak_reserved_bytes", 0)),
        peak_device_bytes=int(marks.get("peak_device_bytes", 0)),
        peak_nccl_bytes=int(marks.get("peak_nccl_bytes", 0)),
    )


def _kind_names() -> np.ndarray:
    names = np.full(256, "", dtype=object)
    for name, number in KINDS.items():
        names[number] = name
    return names


def _details(trace: Trace, kind: str, positions: np.ndarray, rows: np.ndarray) -> pd.DataFrame:
    fields = trace.fields(kind)[trace.row[positions[rows]]]
    columns = {}
    for number, name in enumerate(FIELDS[kind]):
        values = fields[:, number]
        if name == "name":
            columns[name] = trace.texts(values)
        elif kind == "collective" and name in COLLECTIVE_TEXTS:
            columns[name] = COLLECTIVE_TEXTS[name][values]
        else:
            columns[name] = values
    if kind == "kernel":
        columns["code"] = trace.kernel_codes()[trace.row[positions[rows]]]
    return pd.DataFrame(columns, index=rows)


def _bind_waits(trace: Trace, positions: np.ndarray, kinds: np.ndarray, ops: pd.DataFrame) -> None:
    records = np.flatnonzero(kinds == KINDS["event_record"])
    for kind in ("stream_wait_event", "event_sync"):
        waits = np.flatnonzero(kinds == KINDS[kind])
        bound = bind_waits(trace, positions[records], positions[waits], kind)
        ops.loc[waits, "waits_on"] = np.where(bound >= 0, np.r_[records, -1][bound], -1)


def _add_operators(
    trace: Trace,
    cut: Cut,
    positions: np.ndarray,
    keys: np.ndarray,
    ops: pd.DataFrame,
    details: dict[str, pd.DataFrame],
) -> None:
    kinds = [KINDS[kind] for kind in OPERATOR_KINDS]
    begin, end = cut.shapes
    known = begin + np.flatnonzero(np.isin(trace.kind[begin:end], kinds))
    around = operators.operators_around(trace, known, begin, end)
    rows = np.flatnonzero(np.isin(trace.kind[positions], kinds))
    index = operators.transfer(
        around,
        record_keys(trace, known),
        trace.thread[known],
        keys[rows],
        ops["thread"].to_numpy()[rows],
        ops["iteration"].to_numpy()[rows],
    )
    # Operations expanded from a graph launch have no operator around them.
    from_graph = (ops["flags"].to_numpy()[rows] & _decoder.FROM_GRAPH) != 0
    texts = np.array([*around, operators.NO_OPERATOR], dtype=object).reshape(-1, 2)
    chosen = texts[np.where(from_graph, len(around), index)]
    by_row = pd.DataFrame(chosen, index=rows, columns=["operator", "shapes"])
    for kind in OPERATOR_KINDS:
        if kind in details:
            details[kind][["operator", "shapes"]] = by_row.loc[details[kind].index]


def _signature(keys: np.ndarray, thread: np.ndarray, selected: np.ndarray) -> int:
    """A hash of the sequences of the threads, in the order in which the threads first do something."""
    keys, thread = keys[selected], thread[selected]
    _, first, inverse = np.unique(thread, return_index=True, return_inverse=True)
    return sequence_hash(keys[np.argsort(first[inverse], kind="stable")])
