"""Collective calls and the NCCL groups that make one device operation of several."""

import numpy as np
import pandas as pd

from maya.collate.hashing import combine, occurrence
from maya.trace import COLLECTIVE_OPS, FIELDS, Trace, _decoder

DTYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
    "float8e4m3", "float8e5m2",
)  # fmt: skip
"""Names of ncclDataType_t by value. Source: nccl.h."""

DTYPE_BYTES = np.array([1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1])

COLLECTIVE_TEXTS = {
    "op": np.array(COLLECTIVE_OPS, dtype=object),
    "dtype": np.array(DTYPES, dtype=object),
}

SEND, RECV, ALL_TO_ALL = (COLLECTIVE_OPS.index(name) for name in ("send", "recv", "all_to_all"))

_PER_RANK = np.isin(COLLECTIVE_OPS, ["all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"])
"""Operations whose count is that of one rank's part."""


def is_first_of_group(trace: Trace) -> np.ndarray:
    """For every collective of a trace, whether it is the first one of its group on its communicator."""
    group = trace.column("collective", "group")
    comm = trace.column("collective", "comm")
    # Every launch of a graph repeats the group ids of its capture.
    positions = trace.positions("collective")
    replay = np.searchsorted(trace.positions("graph_launch"), positions)
    replay[(trace.flags[positions] & _decoder.FROM_GRAPH) == 0] = 0
    place = occurrence(
        combine(combine(group.view(np.uint64), comm.view(np.uint64)), replay.astype(np.uint64))
    )
    return (group <= 0) | (place == 0)  # no group: 0, or missing and so negative


def group_rows(trace: Trace, positions: np.ndarray) -> pd.DataFrame:
    """All collective calls that the rows at the given positions stand for.

    Columns: the fields of `collective` (op and dtype as codes, peer as rank in the communicator), row (of
    ops), num_ranks, bytes (of the call), is_point_to_point, is_all_to_all (sends and receives of a group that
    are an all-to-all together).
    """
    fields = FIELDS["collective"]
    calls = pd.DataFrame(trace.fields("collective"), columns=list(fields))
    of_call = trace.positions("collective")
    first = is_first_of_group(trace)
    # Calls of a group follow its first call, so that each belongs to the newest first call on its
    # communicator.
    codes = pd.factorize(calls["comm"])[0]
    first_index = pd.Series(np.where(first, np.arange(len(calls)), -1)).groupby(codes).cummax().to_numpy()
    of_row = of_call[first_index] if len(calls) else of_call
    row = np.searchsorted(positions, of_row)
    is_steady = np.r_[positions, -1][row] == of_row
    calls["row"] = row
    opened = trace.table("comm_init").set_index("comm")
    calls = calls[is_steady].reset_index(drop=True)
    calls["num_ranks"] = calls["comm"].map(opened["num_ranks"]).astype(np.int64)
    op = calls["op"].to_numpy()
    parts = np.where(_PER_RANK[op], calls["num_ranks"], 1)
    calls["bytes"] = calls["count"] * parts * DTYPE_BYTES[calls["dtype"].to_numpy()]
    calls["is_point_to_point"] = (op == SEND) | (op == RECV)
    calls["is_all_to_all"] = _all_to_alls(calls, calls["comm"].map(opened["rank"]))
    return calls


def _all_to_alls(calls: pd.DataFrame, own_rank: pd.Series) -> np.ndarray:
    """Groups in which a rank exchanges with itself too, or with all of more than two others.

    PyTorch makes an uneven all-to-all of sends and receives, to itself as well, and leaves out empty ones; a
    pipeline stage exchanges with at most two others.
    """
    to_itself = calls["is_point_to_point"] & (calls["peer"] == own_rank)
    peers = calls[calls["is_point_to_point"] & ~to_itself].groupby("row")["peer"].nunique()
    num_peers = calls["row"].map(peers).fillna(0)
    with_itself = calls["row"].isin(calls.loc[to_itself, "row"])
    with_all = (num_peers == calls["num_ranks"] - 1) & (calls["num_ranks"] > 3)
    return (calls["is_point_to_point"] & (with_itself | with_all)).to_numpy()
