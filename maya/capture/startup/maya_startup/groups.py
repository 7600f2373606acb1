"""Process groups of the program: their members, and the sizes of communicators made by splits."""

import functools
import inspect
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from .session import Session


def record_groups(distributed_c10d: ModuleType, session: Session) -> None:
    """Wraps the functions of ``torch.distributed`` through which every process group comes into being."""
    _wrap_new_group(distributed_c10d, session)
    _wrap_split_group(distributed_c10d, session)


def replace_everywhere(original: Any, replacement: Any) -> None:
    """Puts ``replacement`` where modules of PyTorch hold ``original`` under its name."""
    name = original.__name__
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("torch.distributed") and getattr(module, name, None) is original:
            setattr(module, name, replacement)


def _wrap_new_group(c10d: Any, session: Session) -> None:
    helper = c10d._new_process_group_helper
    signature = inspect.signature(helper)

    @functools.wraps(helper)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs).arguments
        # An empty list stands for the default group.
        ranks = list(call["global_ranks_in_group"]) or list(range(call["group_size"]))
        description = call.get("group_desc") or "undefined"
        session.events.write("group", name=str(call["group_name"]), ranks=ranks, description=description)
        if session.rank in ranks:
            # The colour that PyTorch gives to ncclCommSplit, if it comes to that.
            session.emulator.announce_split(
                c10d._process_group_color(ranks), len(ranks), ranks.index(session.rank)
            )
        return helper(*args, **kwargs)

    replace_everywhere(helper, recorded)


def _wrap_split_group(c10d: Any, session: Session) -> None:
    split_group = c10d.split_group

    @functools.wraps(split_group)
    def recorded(parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        parent = parent_pg or c10d._get_default_group()
        to_global = c10d.get_process_group_ranks(parent)
        groups = [[to_global[member] for member in members] for members in split_ranks or ()]
        for members, ranks in zip(split_ranks or (), groups, strict=True):
            if session.rank in ranks:
                session.emulator.announce_split(split_color(members), len(ranks), ranks.index(session.rank))
        group = split_group(parent_pg, split_ranks, *args, **kwargs)
        for ranks in groups:
            is_own = session.rank in ranks
            session.events.write(
                "group",
                name=str(group.group_name) if is_own else "",
                ranks=ranks,
                description=str(group.group_desc) if is_own else kwargs.get("group_desc") or "undefined",
            )
        return group

    replace_everywhere(split_group, recorded)


def split_color(ranks: Sequence[int]) -> int:
    """The colour that ``ProcessGroupNCCL::split`` gives to these ranks of the parent: the smallest.

    Seen in the colours that PyTorch 2.14 hands to ncclCommSplit.
    """
    return min(ranks)
