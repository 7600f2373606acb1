"""Where simulated ranks meet: all members in the n-th call on a communicator, or two in the n-th send."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from maya.collate.captured import Capture, CapturedRank
from maya.collate.classes import Partition
from maya.collate.communicators import LocalCommunicator
from maya.collate.grouped_calls import DTYPES, SEND
from maya.collate.hashing import combine, occurrence
from maya.collate.job import Communicator
from maya.errors import TraceError
from maya.trace import COLLECTIVE_OPS


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """All meetings of a job. ``calls`` has the calls of all simulated ranks with the columns of
    maya/collate/grouped_calls.py and rank, communicator, peer_rank (global, -1 for none) and rendezvous."""

    communicators: list[Communicator]
    calls: pd.DataFrame
    arrivals: np.ndarray  # int64 by rendezvous: rows that have to arrive


def find_rendezvous(capture: Capture, partition: Partition) -> Rendezvous:
    """Matches the calls of the representatives of all classes.

    Ranks stand for their classes: a communicator between classes is the one process group of its family that
    they have in common, and a class that sends to itself receives its own send.

    Raises:
        TraceError: two ranks disagree about what the n-th call on a communicator is.
    """
    table = _Communicators(capture, partition)
    of_ranks = [table.locate(capture.ranks[int(rank)]) for rank in partition.representative]
    calls = pd.concat(of_ranks, ignore_index=True)
    is_pair = (calls["is_point_to_point"] & ~(calls["is_all_to_all"] & table.is_quotient)).to_numpy()
    own, peer = calls["class"].to_numpy(), calls["peer_class"].to_numpy()
    sends = (calls["op"] == SEND).to_numpy()
    # A meeting is named by communicator, direction (-1, -1 where all members meet) and number; receives count
    # apart from sends, so that both of a class that sends to itself get the same numbers.
    source = np.where(is_pair, np.where(sends, own, peer), -1)
    target = np.where(is_pair, np.where(sends, peer, own), -1)
    place = _hash(calls["communicator"].to_numpy(), source, target)
    # The calls of a group that is an all-to-all are one meeting.
    one_meeting = (calls["is_all_to_all"] & ~is_pair).to_numpy()
    counted = ~one_meeting | ~calls.duplicated(["rank", "row", "is_all_to_all"]).to_numpy()
    number = np.full(len(calls), -1, dtype=np.int64)
    number[counted] = occurrence(_hash(place, own, np.where(is_pair, sends, 0))[counted])
    number = (
        pd.Series(number)
        .groupby([calls["rank"], calls["row"], one_meeting])
        .transform("max")
        .where(one_meeting, number)
    )
    calls["number"] = number
    rendezvous, _ = pd.factorize(_hash(place, number.to_numpy()))
    calls["rendezvous"] = rendezvous
    first = np.unique(rendezvous, return_index=True)[1]
    _check_agreement(calls, first, is_pair, one_meeting, table.communicators)
    arrivals = np.where(
        is_pair[first], _pair_arrivals(calls, source, target, len(first)), table.num_classes(calls, first)
    )
    return Rendezvous(communicators=table.communicators, calls=calls, arrivals=arrivals.astype(np.int64))


def _hash(*columns: np.ndarray) -> np.ndarray:
    key = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        key = combine(key, column.astype(np.int64).view(np.uint64))
    return key


class _Communicators:
    """The communicators of all simulated ranks, numbered in the order in which ranks bring them."""

    def __init__(self, capture: Capture, partition: Partition) -> None:
        self._capture = capture
        self._partition = partition
        self._numbers: dict[tuple[object, ...], int] = {}
        self._classes: list[int] = []  # number of classes in each
        self.communicators: list[Communicator] = []
        self.is_quotient = len(partition.representative) < len(partition.class_of)

    def locate(self, rank: CapturedRank) -> pd.DataFrame:
        """The calls of a rank with communicator, classes and global ranks."""
        calls = rank.calls.copy()
        own = self._capture.communicators[rank.rank]
        number = {comm: self._number(rank.rank, own[comm]) for comm in calls["comm"].unique()}
        calls["rank"] = rank.rank
        calls["class"] = int(self._partition.class_of[rank.rank])
        calls["communicator"] = calls["comm"].map(number).astype(np.int64)
        peers = calls[["comm", "peer"]].drop_duplicates()
        peers["peer_rank"] = [
            own[comm].ranks[peer] if peer >= 0 else -1 for comm, peer in peers.itertuples(index=False)
        ]
        calls = calls.merge(peers, on=["comm", "peer"], how="left")
        peer_rank = calls["peer_rank"].to_numpy(dtype=np.int64)
        calls["peer_rank"] = peer_rank
        calls["peer_class"] = np.where(peer_rank >= 0, self._partition.class_of[peer_rank], -1)
        return calls

    def _number(self, rank: int, communicator: LocalCommunicator) -> int:
        classes = sorted(set(self._partition.class_of[list(communicator.ranks)].tolist()))
        if self.is_quotient:
            family = self._capture.family(rank, communicator)
            identity: tuple[object, ...] = (family, communicator.channel, tuple(classes))
        else:
            identity = communicator.identity
        if identity not in self._numbers:
            self._numbers[identity] = len(self.communicators)
            self._classes.append(len(classes))
            self.communicators.append(Communicator(ranks=communicator.ranks, label=communicator.label))
        return self._numbers[identity]

    def num_classes(self, calls: pd.DataFrame, index: np.ndarray) -> np.ndarray:
        """Simulated ranks in the communicator of each of the calls."""
        return np.array(self._classes, dtype=np.int64)[calls["communicator"].to_numpy()[index]]


def _pair_arrivals(calls: pd.DataFrame, source: np.ndarray, target: np.ndarray, size: int) -> np.ndarray:
    """Two; or where a class meets itself the rows in which it does, one if both calls share a group."""
    arrivals = np.full(size, 2, dtype=np.int64)
    with_itself = calls[(source == target) & (source >= 0)]
    rows = with_itself.groupby("rendezvous")["row"].nunique()
    arrivals[rows.index] = rows
    return arrivals


def _check_agreement(
    calls: pd.DataFrame,
    first: np.ndarray,
    is_pair: np.ndarray,
    one_meeting: np.ndarray,
    communicators: list[Communicator],
) -> None:
    rendezvous = calls["rendezvous"].to_numpy()
    op = np.where(is_pair, SEND, calls["op"].to_numpy())
    differs = np.zeros(len(calls), dtype=bool)
    for values in (op, calls["count"].to_numpy(), calls["dtype"].to_numpy()):
        differs |= values != values[first][rendezvous]
    differs &= ~one_meeting  # parts of an uneven all-to-all
    if not differs.any():
        return
    second = int(np.argmax(differs))
    one, other = calls.iloc[int(first[rendezvous[second]])], calls.iloc[second]
    communicator = communicators[int(other["communicator"])]
    raise TraceError(
        f"Ranks {one['rank']} and {other['rank']} disagree about call {int(other['number'])} on the "
        f"communicator of {communicator.label} (ranks {', '.join(map(str, communicator.ranks))}) in the "
        f"steady iterations: rank {one['rank']} calls {_describe(one)}, rank {other['rank']} calls "
        f"{_describe(other)}. The program would hang or give wrong results on real devices; or its ranks "
        "were captured with different settings: then capture the job again."
    )


def _describe(call: pd.Series) -> str:
    text = f"{COLLECTIVE_OPS[int(call['op'])]} of {int(call['count'])} {DTYPES[int(call['dtype'])]}"
    return f"{text} with rank {int(call['peer_rank'])}" if call["is_point_to_point"] else text
