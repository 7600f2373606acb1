"""A job: the traces of one training run brought together, ready for durations and simulation."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from maya.collate.memory_profile import MemoryProfile
from maya.trace import TritonKernel

Array = np.ndarray


@dataclass(frozen=True, kw_only=True, slots=True)
class Communicator:
    """One NCCL communicator as seen by the simulated ranks.

    ``ranks`` are the global ranks in communicator order (all of them, also those not simulated).
    """

    ranks: tuple[int, ...]
    label: str  # process-group name or description where known, e.g. "TENSOR_MODEL_PARALLEL_GROUP"


@dataclass(kw_only=True, slots=True)
class RankTrace:
    """The steady iterations of one captured rank, with host gaps as in host_gaps.py.

    ``ops`` has one row per record that matters to the timeline, in global call order, with columns kind (str,
    a kind of native/trace/format.h), thread (int), flags (int), gap_ns (int64), stream (int64, -1 where the
    call has none), iteration (int, 0-based within the job), waits_on (int64: row of the event_record that a
    stream_wait_event or event_sync refers to, -1 for none), rendezvous_begin, rendezvous_end (int64: slice of
    ``rendezvous``; empty for all but collectives). Calls of one NCCL group on one communicator are one row,
    the first of them; its details row holds the summed byte count (of sends and receives, which go both ways
    at once, the larger sum). ``details[kind]`` has the fields of that kind (native/trace/format.h), one row
    per operation, indexed by the row number in ``ops``; kernel and range names are texts there. ``operator``
    and ``shapes`` of kernel, gemm, conv, attention, library_op, memcpy and memset details are the innermost
    PyTorch operator around the launch and the text of its input sizes ("" where unknown), e.g. "aten::add"
    and "[[2048, 4096], [2048, 4096], []]"; ``sequence`` numbers of backward operators are dropped.
    ``details["collective"]`` carries ``communicator`` (index into Job.communicators), ``op`` (text, as
    CollectiveOp), ``dtype`` (text, as NCCL names it: bfloat16, float32, uint8, ...), ``count`` and ``bytes``
    (as nccl-tests counts size: all_gather total output, reduce_scatter total input,
    all_reduce/all_to_all/send/recv the buffer) and ``peer`` (global rank, -1 for none). ``details["kernel"]``
    carries ``code``: the key in Job.triton_kernels of kernels that Triton made, another number elsewhere.
    """

    rank: int  # the representative
    members: tuple[int, ...]  # global ranks it stands for, itself among them
    ops: pd.DataFrame
    details: dict[str, pd.DataFrame]
    rendezvous: Array  # int64 rendezvous ids, sliced by rendezvous_begin/end
    num_iterations: int
    peak_allocated_bytes: int  # of PyTorch's caching allocator
    peak_reserved_bytes: int
    peak_device_bytes: int  # of all that the process took from the device, context left out
    peak_nccl_bytes: int  # of communicators
    memory_profile: MemoryProfile | None = None


@dataclass(kw_only=True, slots=True)
class Job:
    """All simulated ranks of a run. ``rendezvous_arrivals[i]`` simulated ranks meet at rendezvous i."""

    world_size: int
    gpus_per_node: int
    gpu: str
    ranks: list[RankTrace]
    communicators: list[Communicator]
    rendezvous_arrivals: Array  # int64[num_rendezvous]
    unemulated_calls: dict[str, int] = field(default_factory=dict)
    made_up_reads: list[dict[str, Any]] = field(default_factory=list)  # as in the manifest, of all ranks
    calls: dict[str, int] = field(default_factory=dict)
    triton_kernels: dict[int, TritonKernel] = field(default_factory=dict)  # by ``code`` of kernel details
