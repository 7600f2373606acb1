"""What the start-up hook noted beside a trace: process groups, and the store keys of NCCL unique ids."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from maya.errors import TraceError


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A process group of the program."""

    name: str  # "" where the rank is not a member and did not learn it
    ranks: tuple[int, ...]
    description: str

    @property
    def label(self) -> str:
        """What people call the group."""
        if self.description != "undefined":
            return self.description
        return f"group {self.name}" if self.name else "group of ranks " + ", ".join(map(str, self.ranks))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEvents:
    """The events of one rank, in their order."""

    groups: tuple[Group, ...]
    store_keys: dict[int, str]  # by hash of the NCCL unique id


def read_events(path: Path) -> RankEvents:
    """Reads ``rank%05d.events.jsonl``.

    Raises:
        TraceError: the file is missing or damaged.
    """
    groups: list[Group] = []
    store_keys: dict[int, str] = {}
    is_complete = False
    try:
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if event["type"] == "group":
                groups.append(
                    Group(name=event["name"], ranks=tuple(event["ranks"]), description=event["description"])
                )
            elif event["type"] == "unique_id":
                store_keys[event["hash"]] = event["key"]
            elif event["type"] == "end":
                is_complete = True
    except FileNotFoundError:
        raise TraceError(
            f"{path} is missing, so the capture is not complete. Capture the job again."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"{path} is damaged ({error}). Capture the job again.") from None
    if not is_complete:
        raise TraceError(f"{path} ends before its last event. Capture the job again.")
    return RankEvents(groups=tuple(groups), store_keys=store_keys)


@dataclass(frozen=True, kw_only=True, slots=True)
class Families:
    """Process groups of the world, ordered into families of disjoint groups made by one call site."""

    groups: list[list[tuple[int, ...]]]  # by family
    family_of: list[list[int]]  # by the position of a rank's events in the input, then by group


def find_families(events: list[RankEvents]) -> Families:
    """Orders the process groups that one or several ranks announced into families.

    A group joins the first family of its description that none of its members is in yet, so that call sites
    which take turns (a pipeline's group, then its embedding group, for one pipeline after another) stay
    apart. Every rank makes the groups in the same order; families of several ranks, which may each know only
    their own groups, are one by description and number.
    """
    numbers: dict[tuple[str, int], int] = {}
    groups: list[dict[tuple[int, ...], None]] = []
    family_of: list[list[int]] = []
    for rank_events in events:
        of_description: dict[str, list[set[int]]] = defaultdict(list)
        family_of.append([])
        for group in rank_events.groups:
            taken = of_description[group.description]
            place = next((n for n, ranks in enumerate(taken) if ranks.isdisjoint(group.ranks)), len(taken))
            if place == len(taken):
                taken.append(set())
            taken[place].update(group.ranks)
            family = numbers.setdefault((group.description, place), len(numbers))
            if family == len(groups):
                groups.append({})
            groups[family][group.ranks] = None
            family_of[-1].append(family)
    return Families(groups=[list(family) for family in groups], family_of=family_of)
