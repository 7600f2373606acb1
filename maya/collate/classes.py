"""Rank classes: ranks that do the same work at the same place of the job, of which one is simulated.

A partition of the ranks is equitable when two ranks of a class have equal operation sequences and, in every
family of process groups, belong to groups of equal placement whose members are of the same classes. With
deterministic durations all ranks of a class then have equal times for every operation (by induction over
simulated time: the meeting of a collective ends at a function of its members' arrivals, which are the same
multiset), so one of them stands for all.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from maya.collate.captured import Capture, read_capture
from maya.collate.hashing import combine, mix

Groups = Sequence[tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Family:
    """Disjoint groups as flat arrays: members of group g are members[starts[g]:starts[g + 1]]."""

    members: np.ndarray
    group: np.ndarray  # of each member
    role: np.ndarray  # uint64 of each member: its position if that is distinguished, else the same for all
    starts: np.ndarray
    placement: np.ndarray  # uint64 by group


def find_classes(
    world_size: int,
    gpus_per_node: int,
    families: Sequence[Groups],
    distinguished: Mapping[int, Collection[int]] = MappingProxyType({}),
    seed: np.ndarray | None = None,
) -> np.ndarray:
    """Class of every rank: the coarsest equitable partition that ``seed`` and the process groups allow.

    Args:
        families: process groups, by family; the groups of a family are disjoint.
        distinguished: by family, the positions in its groups whose ranks do something of their own: all of
            them where ranks send and receive, the roots of broadcasts and the like. Ranks at other positions
            are alike.
        seed: int64[world_size], ranks with different values are of different classes.

    Returns:
        int64[world_size], classes numbered in the order of their first ranks.

    Colour refinement: a rank's new colour is a hash of its colour and, by family, of the placement of its
    group, the multiset of its members' colours and, where it is distinguished, its own position; until the
    number of colours stands still.
    """
    flat = [
        _flatten(groups, gpus_per_node, distinguished.get(number, ()))
        for number, groups in enumerate(families)
    ]
    colour = mix(np.zeros(world_size, dtype=np.uint64) if seed is None else seed.astype(np.uint64))
    num_classes = len(np.unique(colour))
    while True:
        refined = colour.copy()
        for family in flat:
            # A sum of mixed values is a hash of a multiset.
            colours = np.add.reduceat(mix(colour[family.members]), family.starts)
            signature = combine(combine(family.placement, colours)[family.group], family.role)
            in_family = np.zeros(world_size, dtype=np.uint64)
            in_family[family.members] = signature
            refined = combine(refined, in_family)
        previous, num_classes, colour = num_classes, len(np.unique(refined)), refined
        if num_classes == previous:
            break
    _, first, inverse = np.unique(colour, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]


def _flatten(groups: Groups, gpus_per_node: int, distinguished: Collection[int]) -> _Family:
    sizes = np.array([len(group) for group in groups])
    members = np.concatenate([np.asarray(group, dtype=np.int64) for group in groups])
    starts = np.cumsum(sizes) - sizes
    group = np.repeat(np.arange(len(groups)), sizes)
    position = (np.arange(len(members)) - starts[group]).astype(np.uint64)
    # Nodes and places in a node, numbered as they first occur in the group: what durations depend on.
    node = _numbered_by_occurrence(group, members // gpus_per_node)
    rail = _numbered_by_occurrence(group, members % gpus_per_node)
    placement = np.add.reduceat(combine(combine(position, node), rail), starts)
    is_distinguished = np.isin(position, np.array(list(distinguished), dtype=np.uint64))
    role = np.where(is_distinguished, position + np.uint64(1), np.uint64(0))
    return _Family(members=members, group=group, role=role, starts=starts, placement=placement)


def _numbered_by_occurrence(group: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values renamed to 0, 1, ... within each group (which are contiguous), as they first occur."""
    _, first, inverse = np.unique(group * (values.max() + 1) + values, return_index=True, return_inverse=True)
    by_occurrence = np.argsort(first)
    groups = group[first[by_occurrence]]
    number = np.empty(len(first), dtype=np.uint64)
    number[by_occurrence] = np.arange(len(first)) - np.searchsorted(groups, groups)
    return number[inverse]


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Classes of a job and the captured rank that stands for each.

    ``representative[c]`` is the first captured rank of class c, -1 where none was captured.
    """

    class_of: np.ndarray  # int64[world_size]
    representative: np.ndarray  # int64[num_classes]

    def members(self, number: int) -> tuple[int, ...]:
        """Global ranks of a class."""
        return tuple(np.flatnonzero(self.class_of == number).tolist())

    def missing(self) -> tuple[int, ...]:
        """The first rank of every class of which none was captured."""
        first = np.unique(self.class_of, return_index=True)[1]
        return tuple(first[self.representative < 0].tolist())


def partition(
    world_size: int,
    gpus_per_node: int,
    families: Sequence[Groups],
    distinguished: Mapping[int, Collection[int]],
    signatures: dict[int, int],
) -> Partition:
    """Classes that agree with what the captured ranks did.

    ``signatures`` holds a hash of the operations of every captured rank. Where two captured ranks of a class
    differ, the later one leaves it, and the classes are refined from there.
    """
    seed = np.zeros(world_size, dtype=np.int64)
    while True:
        class_of = find_classes(world_size, gpus_per_node, families, distinguished, seed)
        representative = np.full(int(class_of.max()) + 1, -1, dtype=np.int64)
        odd = []
        for rank in sorted(signatures):
            of_class = representative[class_of[rank]]
            if of_class < 0:
                representative[class_of[rank]] = rank
            elif signatures[rank] != signatures[int(of_class)]:
                odd.append(rank)
        if not odd:
            return Partition(class_of=class_of, representative=representative)
        by_signature = {signatures[rank]: None for rank in odd}
        number = {signature: int(seed.max()) + 1 + place for place, signature in enumerate(by_signature)}
        for rank in odd:
            seed[rank] = number[signatures[rank]]


def every_rank_alone(world_size: int) -> Partition:
    """The partition of a job of which all ranks were captured and are simulated."""
    return Partition(class_of=np.arange(world_size), representative=np.arange(world_size))


def find_partition(capture: Capture) -> Partition:
    """Classes of a captured job; every rank is its own where all were captured."""
    if len(capture.ranks) == capture.manifest.world_size:
        return every_rank_alone(capture.manifest.world_size)
    return partition(
        capture.manifest.world_size,
        capture.manifest.gpus_per_node,
        capture.families.groups,
        capture.distinguished_positions(),
        {number: rank.signature for number, rank in capture.ranks.items()},
    )


def representatives(trace_dir: Path) -> tuple[int, ...]:
    """Ranks still to capture, given the ranks captured alone so far, so that every class has one.

    Called again after those were captured, until none is missing: their traces may show that a process group
    carries sends and receives or has a root, or that ranks thought alike are not.
    """
    return find_partition(read_capture(trace_dir)).missing()
