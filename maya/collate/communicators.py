"""Who is in each NCCL communicator of each rank, and which communicators of several ranks are one."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from maya.collate.events import Group, RankEvents
from maya.errors import TraceError
from maya.trace import FIELDS, MISSING, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalCommunicator:
    """A communicator as one rank sees it.

    ``identity`` is equal on all its members and on no other communicator. ``group`` is the process group it
    belongs to, counted in the rank's events (-1 where that is not needed: all ranks were captured in one
    run), and ``channel`` tells communicators of one process group apart ("0", or "2:3" for a pair of its
    ranks).
    """

    ranks: tuple[int, ...]
    label: str
    identity: tuple[object, ...]
    group: int
    channel: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CommInit:
    """The record of a communicator that was opened."""

    comm: int
    unique_id: int
    num_ranks: int
    rank: int
    parent: int  # negative where it was not split off
    color: int
    split_index: int


def communicators_opened(trace: Trace) -> list[CommInit]:
    """The communicators that a rank opened, in the order of the calls."""
    fields = FIELDS["comm_init"]
    table = np.where(trace.fields("comm_init") == MISSING, -1, trace.fields("comm_init"))
    # A unique id is a hash and may be any number, a missing one too.
    table[:, fields.index("unique_id")] = trace.column("comm_init", "unique_id")
    return [CommInit(**dict(zip(fields, row, strict=True))) for row in table.tolist()]


def link_communicators(
    opened: dict[int, list[CommInit]], events: dict[int, RankEvents]
) -> dict[int, dict[int, LocalCommunicator]]:
    """Communicators by rank and local id where every rank was captured in one run: joined by unique id.

    Raises:
        TraceError: a communicator has members that were not captured.
    """
    members: dict[int, dict[int, int]] = defaultdict(dict)
    sizes: dict[int, int] = {}
    for rank, inits in opened.items():
        for init in inits:
            members[init.unique_id][init.rank] = rank
            sizes[init.unique_id] = init.num_ranks
    labels: dict[tuple[int, ...], str] = {}
    for rank_events in events.values():
        for group in rank_events.groups:
            labels.setdefault(group.ranks, group.label)
    linked: dict[int, LocalCommunicator] = {}
    for unique_id, by_position in members.items():
        if sorted(by_position) != list(range(sizes[unique_id])):
            raise TraceError(
                f"A communicator of {sizes[unique_id]} ranks was opened by ranks "
                f"{sorted(by_position.values())} alone: the traces of the others are missing or ended early. "
                "Capture all ranks again."
            )
        ranks = tuple(by_position[position] for position in range(sizes[unique_id]))
        linked[unique_id] = LocalCommunicator(
            ranks=ranks,
            label=labels.get(ranks, "ranks " + ", ".join(map(str, ranks))),
            identity=("unique_id", unique_id),
            group=-1,
            channel="",
        )
    return {rank: {init.comm: linked[init.unique_id] for init in inits} for rank, inits in opened.items()}


def name_communicators(rank: int, inits: list[CommInit], events: RankEvents) -> dict[int, LocalCommunicator]:
    """Communicators by local id of a rank that was captured alone.

    The store key through which a unique id went names the process group; a communicator that was split off
    belongs to the process group whose ranks give its colour.

    Raises:
        TraceError: the process group of a communicator cannot be told.
    """
    own_groups = {number: group for number, group in enumerate(events.groups) if rank in group.ranks}
    taken: set[int] = set()  # groups that have a communicator of their own already
    named: dict[int, LocalCommunicator] = {}
    for init in inits:
        key = events.store_keys.get(init.unique_id)
        if key is not None:
            named[init.comm] = _from_store_key(key, init, own_groups)
        else:
            parent = named.get(init.parent)
            number = _group_by_members(rank, init, parent, own_groups, taken)
            ranks = own_groups[number].ranks
            # Members make the communicators that they share in the same order.
            repeat = sum(known.identity[:2] == ("members", ranks) for known in named.values())
            named[init.comm] = LocalCommunicator(
                ranks=ranks,
                label=own_groups[number].label,
                identity=("members", ranks, repeat),
                group=number,
                channel=f"members {repeat}",
            )
        if ":" not in named[init.comm].channel:
            taken.add(named[init.comm].group)
    return named


def _from_store_key(key: str, init: CommInit, own_groups: dict[int, Group]) -> LocalCommunicator:
    """Keys are "<prefixes>/<group name>/<device>/<channel>"; a channel "1:2" is a pair of group ranks."""
    *prefixes, channel = [part for part in key.split("/") if part]
    numbers = {group.name: number for number, group in own_groups.items()}
    number = next((numbers[part] for part in reversed(prefixes) if part in numbers), None)
    if number is None:
        raise TraceError(
            f"The unique id of communicator {init.comm} of {init.num_ranks} ranks went through the store key "
            f"{key}, which names no process group of this rank. Capture the job linked (capture.mode=linked)."
        )
    ranks = own_groups[number].ranks
    if ":" in channel:
        ranks = tuple(ranks[int(position)] for position in channel.split(":"))
    return LocalCommunicator(
        ranks=ranks,
        label=own_groups[number].label,
        identity=("store", key, ranks),
        group=number,
        channel=channel,
    )


def _group_by_members(
    rank: int, init: CommInit, parent: LocalCommunicator | None, own_groups: dict[int, Group], taken: set[int]
) -> int:
    candidates = [
        number
        for number, group in own_groups.items()
        if len(group.ranks) == init.num_ranks and group.ranks[init.rank] == rank
    ]
    by_color = [
        number for number in candidates if init.color in split_colors(own_groups[number].ranks, parent)
    ]
    # Ids made from several unique ids (above 128 ranks) have no key and no colour: groups in their order
    # then.
    chosen = by_color or candidates
    if not chosen:
        raise TraceError(
            f"No process group of rank {rank} has {init.num_ranks} members with it at position {init.rank}, "
            f"as communicator {init.comm} has. Capture the job linked (capture.mode=linked)."
        )
    return next((number for number in chosen if number not in taken), chosen[-1])


def split_colors(ranks: tuple[int, ...], parent: LocalCommunicator | None) -> tuple[int, ...]:
    """The colours PyTorch may give to the split of ``parent`` that makes a group of these ranks.

    new_group hashes the ranks (_process_group_color in torch/distributed/distributed_c10d.py), split_group
    takes the smallest position in the parent (as seen in the colours that PyTorch 2.14 hands to
    ncclCommSplit).
    """
    if parent is None or not set(ranks) <= set(parent.ranks):
        return ()
    return abs(hash(ranks)) % 2**31, min(parent.ranks.index(rank) for rank in ranks)
