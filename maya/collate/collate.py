"""From the traces of a capture to a job."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from maya.collate.captured import CapturedRank, read_capture
from maya.collate.classes import Partition, find_partition
from maya.collate.grouped_calls import ALL_TO_ALL, COLLECTIVE_TEXTS, DTYPE_BYTES, SEND
from maya.collate.job import Job, RankTrace
from maya.collate.memory_profile import MemoryProfile, profile_path, read_profile
from maya.collate.rendezvous import find_rendezvous
from maya.errors import TraceError
from maya.trace import read_triton_kernels


def collate(trace_dir: Path) -> Job:
    """Brings the traces of a capture together.

    Raises:
        TraceError: the capture is damaged or incomplete, a rank class has no captured rank, or ranks
        disagree.
    """
    capture = read_capture(Path(trace_dir))
    partition = find_partition(capture)
    if partition.missing():
        raise TraceError(
            f"The ranks captured in {trace_dir} do not stand for all {capture.manifest.world_size} ranks. "
            f"Capture also one rank of each other class, alone: {', '.join(map(str, partition.missing()))}."
        )
    rendezvous = find_rendezvous(capture, partition)
    by_rank = dict(tuple(rendezvous.calls.groupby("rank")))
    ranks = [
        _rank_trace(
            capture.ranks[int(rank)],
            by_rank.get(int(rank), rendezvous.calls[:0]),
            partition,
            number,
            read_profile(profile_path(Path(trace_dir), int(rank))),
        )
        for number, rank in enumerate(partition.representative)
    ]
    manifest = capture.manifest
    return Job(
        world_size=manifest.world_size,
        gpus_per_node=manifest.gpus_per_node,
        gpu=manifest.gpu,
        ranks=ranks,
        communicators=rendezvous.communicators,
        rendezvous_arrivals=rendezvous.arrivals,
        unemulated_calls=_total([rank.unemulated for rank in manifest.ranks]),
        made_up_reads=manifest.made_up_reads,
        calls=_total([rank.calls for rank in manifest.ranks]),
        triton_kernels=read_triton_kernels(trace_dir),
    )


def _total(counts: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def _rank_trace(
    rank: CapturedRank,
    calls: pd.DataFrame,
    partition: Partition,
    number: int,
    memory_profile: MemoryProfile | None,
) -> RankTrace:
    meetings = calls[["row", "rendezvous"]].drop_duplicates()
    meetings = meetings.sort_values("row", kind="stable")
    rows = np.arange(len(rank.ops))
    ops = rank.ops.copy()
    ops["rendezvous_begin"] = np.searchsorted(meetings["row"], rows, side="left")
    ops["rendezvous_end"] = np.searchsorted(meetings["row"], rows, side="right")
    details = dict(rank.details)
    if "collective" in details:
        details["collective"] = _collective_details(details["collective"], calls)
    return RankTrace(
        rank=rank.rank,
        members=partition.members(number),
        ops=ops,
        details=details,
        rendezvous=meetings["rendezvous"].to_numpy(dtype=np.int64),
        num_iterations=rank.num_iterations,
        peak_allocated_bytes=rank.peak_allocated_bytes,
        peak_reserved_bytes=rank.peak_reserved_bytes,
        peak_device_bytes=rank.peak_device_bytes,
        peak_nccl_bytes=rank.peak_nccl_bytes,
        memory_profile=memory_profile,
    )


def _collective_details(details: pd.DataFrame, calls: pd.DataFrame) -> pd.DataFrame:
    """Details of rows that may stand for several calls.

    Links carry both directions at once, so of sends and receives the larger sum counts.
    """
    is_send = (calls["op"] == SEND).to_numpy()
    is_receive = calls["is_point_to_point"].to_numpy() & ~is_send
    sums = (
        pd.DataFrame(
            {
                "all": np.where(is_send | is_receive, 0, calls["bytes"]),
                "sent": np.where(is_send, calls["bytes"], 0),
                "received": np.where(is_receive, calls["bytes"], 0),
            }
        )
        .groupby(calls["row"].to_numpy())
        .sum()
        .loc[details.index]
    )
    first = calls.drop_duplicates("row").set_index("row").loc[details.index]
    details = details.copy()
    details["bytes"] = sums["all"] + sums[["sent", "received"]].max(axis=1)
    num_calls = calls.groupby("row").size().loc[details.index]
    num_elements = details["bytes"] // DTYPE_BYTES[first["dtype"].to_numpy()]
    details["count"] = details["count"].where(num_calls == 1, num_elements)
    details["op"] = details["op"].mask(first["is_all_to_all"], COLLECTIVE_TEXTS["op"][ALL_TO_ALL])
    details["communicator"] = first["communicator"]
    details["peer"] = first["peer_rank"]
    return details
