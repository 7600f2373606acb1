"""Payloads of small collectives between processes, through NCCL's C interface alone.

Each test starts this file once a rank as a program, with the names of cases; the cases check the values that
they receive, worked out by hand beside them.
"""

import ctypes
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.emulator

SUM, PROD, MAX, MIN, AVG = range(5)
INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, E4M3, E5M2 = range(12)
TO_DEVICE, TO_HOST = 1, 2
EXCHANGE_EXIT_CODE = 87
DTYPES = {np.dtype(np.int32): INT32, np.dtype(np.int64): INT64, np.dtype(np.float32): FLOAT32}


@pytest.fixture(scope="module")
def emulator_library() -> Path:
    from maya.capture.build_emulator import emulator_dir

    return emulator_dir() / "libmaya_emulator.so"


class Buffer:
    """Device memory with the content of an array."""

    def __init__(self, lib: ctypes.CDLL, values: np.ndarray) -> None:
        self.lib, self.dtype, self.nbytes = lib, values.dtype, values.nbytes
        self.address = ctypes.c_void_p()
        assert lib.cudaMalloc(ctypes.byref(self.address), ctypes.c_size_t(self.nbytes)) == 0
        self.write(values)

    def write(self, values: np.ndarray) -> None:
        data = np.ascontiguousarray(values)
        host = data.ctypes.data_as(ctypes.c_void_p)
        assert self.lib.cudaMemcpy(self.address, host, ctypes.c_size_t(self.nbytes), TO_DEVICE) == 0

    def read(self) -> np.ndarray:
        values = np.empty(self.nbytes // self.dtype.itemsize, self.dtype)
        host = values.ctypes.data_as(ctypes.c_void_p)
        assert self.lib.cudaMemcpy(host, self.address, ctypes.c_size_t(self.nbytes), TO_HOST) == 0
        return values

    def at(self, index: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.address.value + index * self.dtype.itemsize)


class Rank:
    """This process as a member of one communicator of all ranks."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL(os.environ["MAYA_TEST_LIBRARY"], mode=ctypes.RTLD_GLOBAL)
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.num_communicators = 0

    def buffer(self, values: list[float] | np.ndarray, dtype: type = np.float32) -> Buffer:
        return Buffer(self.lib, np.asarray(values, dtype))

    def communicator(self) -> ctypes.c_void_p:
        self.num_communicators += 1
        unique_id = struct.pack("<q120x", self.num_communicators)

        class UniqueId(ctypes.Structure):
            _fields_ = [("internal", ctypes.c_char * 128)]

        comm = ctypes.c_void_p()
        self.lib.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        code = self.lib.ncclCommInitRank(
            ctypes.addressof(comm), self.world_size, UniqueId.from_buffer_copy(unique_id), self.rank
        )
        assert code == 0
        return comm

    def call(self, name: str, *arguments: object) -> None:
        assert getattr(self.lib, name)(*arguments) == 0, name

    def all_reduce(self, source: Buffer, target: Buffer, op: int, comm: ctypes.c_void_p) -> None:
        count = ctypes.c_size_t(source.nbytes // source.dtype.itemsize)
        dtype = DTYPES[source.dtype]
        self.call("ncclAllReduce", source.address, target.address, count, dtype, op, comm, None)

    def send(self, source: Buffer, peer: int, comm: ctypes.c_void_p) -> None:
        count = ctypes.c_size_t(source.nbytes // source.dtype.itemsize)
        self.call("ncclSend", source.address, count, DTYPES[source.dtype], peer, comm, None)

    def recv(self, target: Buffer, peer: int, comm: ctypes.c_void_p) -> None:
        count = ctypes.c_size_t(target.nbytes // target.dtype.itemsize)
        self.call("ncclRecv", target.address, count, DTYPES[target.dtype], peer, comm, None)

    def synchronize(self) -> None:
        self.call("cudaStreamSynchronize", None)


CASES: dict[str, Callable[[Rank], None]] = {}


def case(function: Callable[[Rank], None]) -> Callable[[Rank], None]:
    CASES[function.__name__] = function
    return function


@case
def reductions(r: Rank) -> None:
    comm = r.communicator()
    own, result = r.buffer([1 + r.rank, -2.0, 3 * r.rank]), r.buffer([0, 0, 0])
    ranks = range(r.world_size)
    for op, function in [
        (SUM, sum),
        (MAX, max),
        (MIN, min),
        (AVG, lambda x: sum(x) / len(x)),
        (PROD, np.prod),
    ]:
        r.all_reduce(own, result, op, comm)
        columns = [[1 + k for k in ranks], [-2.0 for _ in ranks], [3 * k for k in ranks]]
        assert result.read().tolist() == [function(column) for column in columns], op


def bfloat16(value: float) -> int:
    """Bits of a number that bfloat16 holds exactly."""
    return struct.unpack("<I", struct.pack("<f", value))[0] >> 16


@case
def reductions_of_all_types(r: Rank) -> None:
    comm = r.communicator()
    # Bits of 1.5 times 2 to the power of the rank, and of the sums 1.5, 4.5, 10.5, 22.5 over 1 to 4 ranks.
    own, total = 1.5 * 2**r.rank, 1.5 * (2**r.world_size - 1)
    cases = [
        (FLOAT16, np.uint16, lambda x: np.float16(x).view(np.uint16)),
        (BFLOAT16, np.uint16, bfloat16),
        (FLOAT32, np.float32, np.float32),
        (FLOAT64, np.float64, np.float64),
        (E5M2, np.uint8, lambda x: np.float16(x).view(np.uint16) >> 8),
        (E4M3, np.uint8, {1.5: 0x3C, 3.0: 0x44, 4.5: 0x49}.__getitem__),
    ]
    for dtype, storage, encode in cases:
        if dtype in (E5M2, E4M3) and r.world_size > 2:
            continue  # 10.5 needs more than their mantissas
        # 4.5 has one significant bit more than E5M2: a tie between 4 and 5, to even.
        expected = 4.0 if dtype == E5M2 and total == 4.5 else total
        buffer = r.buffer([encode(own)], storage)
        r.call("ncclAllReduce", buffer.address, buffer.address, ctypes.c_size_t(1), dtype, SUM, comm, None)
        assert buffer.read()[0] == encode(expected), dtype
    integers = [(INT8, np.int8), (UINT8, np.uint8), (INT32, np.int32), (UINT32, np.uint32), (INT64, np.int64)]
    for dtype, storage in [*integers, (UINT64, np.uint64)]:
        buffer = r.buffer([100 + r.rank, r.rank], storage)
        r.call("ncclAllReduce", buffer.address, buffer.address, ctypes.c_size_t(2), dtype, SUM, comm, None)
        exact = [100 * r.world_size + sum(range(r.world_size)), sum(range(r.world_size))]
        assert buffer.read().tolist() == np.array(exact).astype(storage).tolist(), dtype  # 8 bits wrap
        # An average must not be taken of a wrapped sum.
        buffer.write(np.array([100, 120], storage))
        r.call("ncclAllReduce", buffer.address, buffer.address, ctypes.c_size_t(2), dtype, AVG, comm, None)
        assert buffer.read().tolist() == [100, 120], dtype


@case
def pre_multiplied_sum(r: Rank) -> None:
    comm = r.communicator()
    factor, op = ctypes.c_float(0.5 * (r.rank + 1)), ctypes.c_int()
    r.call("ncclRedOpCreatePreMulSum", ctypes.byref(op), ctypes.byref(factor), FLOAT32, 1, comm)
    buffer = r.buffer([4, 8])
    r.all_reduce(buffer, buffer, op.value, comm)
    r.call("ncclRedOpDestroy", op.value, comm)
    factors = sum(0.5 * (k + 1) for k in range(r.world_size))
    assert buffer.read().tolist() == [4 * factors, 8 * factors]


@case
def gathers_and_scatters(r: Rank) -> None:
    comm, n = r.communicator(), r.world_size
    one, zero = ctypes.c_size_t(1), [0] * n
    # Rank k holds 10 k + i for rank i.
    own = r.buffer([10 * r.rank + i for i in range(n)], np.int32)

    gathered = r.buffer(zero, np.int32)
    r.call("ncclAllGather", own.address, gathered.address, one, INT32, comm, None)
    assert gathered.read().tolist() == [10 * k for k in range(n)]

    in_place = r.buffer([7 + r.rank if i == r.rank else -1 for i in range(n)], np.int32)
    r.call("ncclAllGather", in_place.at(r.rank), in_place.address, one, INT32, comm, None)
    assert in_place.read().tolist() == [7 + k for k in range(n)]

    exchanged = r.buffer(zero, np.int32)
    r.call("ncclAlltoAll", own.address, exchanged.address, one, INT32, comm, None)
    assert exchanged.read().tolist() == [10 * k + r.rank for k in range(n)]

    reduced = r.buffer([0], np.int32)
    r.call("ncclReduceScatter", own.address, reduced.address, one, INT32, SUM, comm, None)
    assert reduced.read().tolist() == [sum(10 * k + r.rank for k in range(n))]

    root = n - 1
    at_root = r.buffer(zero, np.int32)
    r.call("ncclGather", own.address, at_root.address, one, INT32, root, comm, None)
    assert at_root.read().tolist() == ([10 * k for k in range(n)] if r.rank == root else zero)

    scattered = r.buffer([0], np.int32)
    r.call("ncclScatter", own.address, scattered.address, one, INT32, root, comm, None)
    assert scattered.read().tolist() == [10 * root + r.rank]

    at_root = r.buffer([0], np.int32)
    r.call("ncclReduce", own.address, at_root.address, one, INT32, SUM, root, comm, None)
    assert at_root.read().tolist() == [sum(10 * k for k in range(n)) if r.rank == root else 0]

    r.call("ncclBroadcast", own.address, own.address, ctypes.c_size_t(n), INT32, root, comm, None)
    assert own.read().tolist() == [10 * root + i for i in range(n)]


@case
def chained_collectives(r: Rank) -> None:
    """A call whose input is a pending output: its contribution leaves when the peers have come, in order."""
    comm = r.communicator()
    if r.rank == 0:
        time.sleep(0.3)  # the others are far ahead
    buffer = r.buffer([1], np.int64)
    for _ in range(10):
        r.all_reduce(buffer, buffer, SUM, comm)
    assert buffer.read().tolist() == [r.world_size**10]


@case
def contributions_of_a_busy_rank(r: Rank) -> None:
    """Rank 0 makes its calls and looks at nothing; what it owes leaves all the same once it can."""
    comm = r.communicator()
    buffer = r.buffer([1], np.int64)
    flag = Path(os.environ["MAYA_TEST_DIR"]) / "done"
    if r.rank > 0:
        time.sleep(0.2)
    for _ in range(3):
        r.all_reduce(buffer, buffer, SUM, comm)
    while r.rank == 0 and not flag.exists():
        time.sleep(0.01)
    assert buffer.read().tolist() == [r.world_size**3]
    flag.touch()


@case
def early_receive(r: Rank) -> None:
    """A receive that was posted early holds up neither synchronisations nor other streams' payloads."""
    comm, peer = r.communicator(), 1 - r.rank
    token, answer, number = r.buffer([41 + r.rank]), r.buffer([0]), r.buffer([r.rank])
    if r.rank == 0:
        r.recv(answer, peer, comm)
        r.synchronize()
        assert number.read().tolist() == [0]
        r.send(token, peer, comm)
        assert answer.read().tolist() == [42]
    else:
        r.recv(answer, peer, comm)
        assert answer.read().tolist() == [41]
        r.send(token, peer, comm)


@case
def ring(r: Rank) -> None:
    comm, n = r.communicator(), r.world_size
    for step in range(3):
        own, left = r.buffer([100 * step + r.rank], np.int64), r.buffer([-1], np.int64)
        r.call("ncclGroupStart")
        r.recv(left, (r.rank - 1) % n, comm)
        r.send(own, (r.rank + 1) % n, comm)
        r.call("ncclGroupEnd")
        own.write(np.array([-5]))  # after the call the buffer may be used again, in stream order
        assert left.read().tolist() == [100 * step + (r.rank - 1) % n]


@case
def message_to_self(r: Rank) -> None:
    comm = r.communicator()
    own, copy = r.buffer([3 + r.rank]), r.buffer([0])
    r.call("ncclGroupStart")
    r.send(own, r.rank, comm)
    r.recv(copy, r.rank, comm)
    r.call("ncclGroupEnd")
    assert copy.read().tolist() == [3 + r.rank]


@case
def splits(r: Rank) -> None:
    parent = r.communicator()
    for color, members in [(r.rank % 2, range(r.rank % 2, r.world_size, 2)), (7, range(r.world_size))]:
        child, rank, count = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        # Keys fall with the rank: the order is reversed.
        r.call("ncclCommSplit", parent, color, -r.rank, ctypes.byref(child), None)
        r.call("ncclCommUserRank", child, ctypes.byref(rank))
        r.call("ncclCommCount", child, ctypes.byref(count))
        expected = list(reversed(members))
        assert (rank.value, count.value) == (expected.index(r.rank), len(expected))
        gathered = r.buffer([0] * count.value)
        own = r.buffer([r.rank])
        r.call("ncclAllGather", own.address, gathered.address, ctypes.c_size_t(1), FLOAT32, child, None)
        assert gathered.read().tolist() == expected
        r.call("ncclCommDestroy", child)
    child = ctypes.c_void_p(1)
    color = -1 if r.rank == 0 else 5
    r.call("ncclCommSplit", parent, color, 0, ctypes.byref(child), None)
    assert (child.value is None) == (r.rank == 0)


@case
def barrier_aligns(r: Rank) -> None:
    comm = r.communicator()
    one = r.buffer([1])
    flag = Path(os.environ["MAYA_TEST_DIR"]) / f"{r.rank}"
    time.sleep(0.2 * r.rank)
    flag.touch()
    r.all_reduce(one, one, SUM, comm)
    r.synchronize()
    assert all((flag.parent / str(k)).exists() for k in range(r.world_size))


@case
def large_payloads_move_nothing(r: Rank) -> None:
    comm, peer = r.communicator(), (r.rank + 1) % r.world_size
    count = ctypes.c_size_t(8 << 30)  # 32 GiB
    address = ctypes.c_void_p()
    assert r.lib.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(32 << 30)) == 0
    for _ in range(3):
        r.call("ncclAllReduce", address, address, count, FLOAT32, SUM, comm, None)
        r.call("ncclSend", address, count, FLOAT32, peer, comm, None)
    r.synchronize()  # nobody has to wait for those that have not arrived yet
    resident_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    assert resident_bytes < 1 << 30


@case
def many_payloads(r: Rank) -> None:
    """More payload than the mailbox holds at once: blocks are used again."""
    comm = r.communicator()
    own = r.buffer(np.full(16384, 1, np.float32))  # 64 KiB, the largest payload
    for step in range(400):
        own.write(np.full(16384, step, np.float32))
        r.all_reduce(own, own, SUM, comm)
        assert own.read()[-1] == step * r.world_size
    used_bytes = Path(os.environ["MAYA_EXCHANGE"]).stat().st_blocks * 512
    # 400 payloads of a rank would take 50 MiB; the heads of the hash chains up to a page for each.
    assert used_bytes < 4 * r.world_size * 2 * 65536 + 400 * 4096 + (1 << 20)


@case
def unequal_counts(r: Rank) -> None:
    comm = r.communicator()
    own = r.buffer([1.0] * (4 if r.rank == 0 else 5))
    r.all_reduce(own, own, SUM, comm)
    r.synchronize()


@case
def unequal_operations(r: Rank) -> None:
    comm = r.communicator()
    own = r.buffer([1.0] * 4)
    if r.rank == 0:
        r.all_reduce(own, own, SUM, comm)
    else:
        r.call("ncclBroadcast", own.address, own.address, ctypes.c_size_t(4), FLOAT32, 0, comm, None)
    r.synchronize()


@case
def absent_rank(r: Rank) -> None:
    comm = r.communicator()
    own = r.buffer([1.0] * 4)
    if r.rank != 1:
        r.all_reduce(own, own, SUM, comm)
        r.synchronize()


@case
def same_rank_twice(r: Rank) -> None:
    r.rank = 0
    r.communicator()


@case
def sizes_disagree(r: Rank) -> None:
    r.world_size += r.rank
    r.communicator()


@case
def recorded(r: Rank) -> None:
    comm = r.communicator()
    child = ctypes.c_void_p()
    r.call("ncclCommSplit", comm, 3, 0, ctypes.byref(child), None)
    x = r.buffer([1, 2, 3])
    r.all_reduce(x, x, MAX, comm)
    r.call("ncclGroupStart")
    r.all_reduce(x, x, SUM, comm)
    r.call("ncclGroupStart")
    r.all_reduce(x, x, SUM, child)
    r.call("ncclGroupEnd")  # an inner one launches nothing
    r.call("ncclReduce", x.address, x.address, ctypes.c_size_t(2), FLOAT32, AVG, 0, comm, None)
    r.call("ncclGroupEnd")
    r.call("ncclAllGather", None, None, ctypes.c_size_t(0), FLOAT32, comm, None)  # empty: nothing is launched
    r.call("ncclAllGather", x.address, x.address, ctypes.c_size_t(1), FLOAT32, comm, None)
    r.call("ncclCommDestroy", child)
    r.lib.maya_flush()


@case
def solo_split(r: Rank) -> None:
    parent, child, rank, count = r.communicator(), ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    r.lib.maya_announce_split(11, 2, 1)
    for color, expected in [(11, (1, 2)), (12, (2, 4))]:  # of one not announced: all of the parent
        r.call("ncclCommSplit", parent, color, 0, ctypes.byref(child), None)
        r.call("ncclCommUserRank", child, ctypes.byref(rank))
        r.call("ncclCommCount", child, ctypes.byref(count))
        assert (rank.value, count.value) == expected


@case
def uneven_exchange_alone(r: Rank) -> None:
    """What the others send cannot be told from parts that differ; it stops when the host reads it."""
    comm, one = r.communicator(), ctypes.c_size_t(1)
    own, result = r.buffer([1, 20, 300, 4000], np.int32), r.buffer([0] * 4, np.int32)
    r.call("ncclAlltoAll", own.address, result.address, one, INT32, comm, None)
    result.read()


@case
def solo_values(r: Rank) -> None:
    """Rank 2 of 4 alone: the others are taken to hold the same data."""
    comm, one = r.communicator(), ctypes.c_size_t(1)
    for op, expected in [(SUM, 12), (PROD, 81), (MAX, 3), (MIN, 3), (AVG, 3)]:
        x = r.buffer([3])
        r.all_reduce(x, x, op, comm)
        assert x.read().tolist() == [expected]
    own, result = r.buffer([1, 20, 300, 4000], np.int32), r.buffer([0] * 4, np.int32)
    r.call("ncclAllGather", own.at(1), result.address, one, INT32, comm, None)
    assert result.read().tolist() == [20] * 4
    alike, received = r.buffer([5] * 4, np.int32), r.buffer([0] * 4, np.int32)
    r.call("ncclAlltoAll", alike.address, received.address, one, INT32, comm, None)
    assert received.read().tolist() == [5] * 4
    r.call("ncclReduceScatter", own.address, result.address, one, INT32, SUM, comm, None)
    assert result.read()[0] == 4 * 300
    r.call("ncclBroadcast", own.address, result.address, one, INT32, 0, comm, None)
    assert result.read()[0] == 1
    # Messages of neighbours are like one's own of that size, else zeros.
    sent, received, longer = r.buffer([7, 8]), r.buffer([-1, -1]), r.buffer([-1, -1, -1])
    r.call("ncclGroupStart")
    r.recv(received, 1, comm)
    r.send(sent, 3, comm)
    r.recv(longer, 1, comm)
    r.call("ncclGroupEnd")
    assert received.read().tolist() == [7, 8]
    assert longer.read().tolist() == [0, 0, 0]


def run_ranks(
    names: list[str], library: Path, folder: Path, num_ranks: int, **env: str
) -> list[tuple[int, str]]:
    """Exit code and output of each rank."""
    from emulated import GPU  # not in the ranks, which start faster without

    gpu = GPU | {"memory_bytes": 80 << 30}
    ranks = []
    for rank in range(num_ranks):
        rank_env = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "MAYA_MODE": "linked",
            "MAYA_EXCHANGE": str(folder / "exchange"),
            "MAYA_GPU": ";".join(f"{key}={value}" for key, value in gpu.items()),
            "MAYA_NUM_DEVICES": "8",
            "MAYA_TEST_LIBRARY": str(library),
            "MAYA_TEST_DIR": str(folder),
            **env,
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, __file__, *names],
                env=rank_env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=60)[0] for process in ranks]
    return [(process.returncode, output) for process, output in zip(ranks, outputs, strict=True)]


VALUES = [
    "reductions",
    "reductions_of_all_types",
    "pre_multiplied_sum",
    "gathers_and_scatters",
    "chained_collectives",
    "ring",
    "message_to_self",
    "splits",
    "barrier_aligns",
    "large_payloads_move_nothing",
    "many_payloads",
]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_values(num_ranks: int, emulator_library: Path, tmp_path: Path) -> None:
    for code, output in run_ranks(VALUES, emulator_library, tmp_path, num_ranks):
        assert code == 0, output


def test_progress(emulator_library: Path, tmp_path: Path) -> None:
    names = ["early_receive", "contributions_of_a_busy_rank"]
    for code, output in run_ranks(names, emulator_library, tmp_path, 2, MAYA_EXCHANGE_TIMEOUT_S="5"):
        assert code == 0, output


SOLO = {"MAYA_MODE": "solo", "RANK": "2", "WORLD_SIZE": "4"}


@pytest.mark.parametrize("case_name", ["solo_values", "solo_split"])
def test_solo(case_name: str, emulator_library: Path, tmp_path: Path) -> None:
    ((code, output),) = run_ranks([case_name], emulator_library, tmp_path, 1, **SOLO)
    assert code == 0, output


def fnv1a(data: bytes) -> int:
    """FNV-1a of 64 bits as a signed number (http://www.isthe.com/chongo/tech/comp/fnv/)."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value - 2**64 if value >= 2**63 else value


def test_records(emulator_library: Path, tmp_path: Path) -> None:
    from maya.trace import COLLECTIVE_OPS, MISSING, read_trace

    ((code, output),) = run_ranks(["recorded"], emulator_library, tmp_path, 1, MAYA_TRACE_DIR=str(tmp_path))
    assert code == 0, output
    trace = read_trace(tmp_path / "rank00000.trace")
    parent_id = fnv1a(struct.pack("<q120x", 1))
    child_id = fnv1a(struct.pack("<qqq", parent_id, 0, 3))
    assert trace.fields("comm_init").tolist() == [
        [0, parent_id, 1, 0, MISSING, MISSING, MISSING],
        [1, child_id, 1, 0, 0, 3, 0],
    ]
    all_reduce, reduce, all_gather = (
        COLLECTIVE_OPS.index(op) for op in ("all_reduce", "reduce", "all_gather")
    )
    # stream, communicator, op, count, dtype, reduce_op, peer, sequence, group
    assert trace.fields("collective").tolist() == [
        [0, 0, all_reduce, 3, FLOAT32, MAX, -1, 0, 0],
        [0, 0, all_reduce, 3, FLOAT32, SUM, -1, 1, 1],
        [0, 1, all_reduce, 3, FLOAT32, SUM, -1, 0, 1],
        [0, 0, reduce, 2, FLOAT32, AVG, 0, 1, 1],
        [0, 0, all_gather, 1, FLOAT32, -1, -1, 2, 0],
    ]
    assert trace.fields("comm_destroy").tolist() == [[1]]


def diagnosis(case_name: str, library: Path, folder: Path, num_ranks: int) -> str:
    """All output of ranks of which at least one ends with the exchange's exit code."""
    results = run_ranks([case_name], library, folder, num_ranks, MAYA_EXCHANGE_TIMEOUT_S="1")
    assert any(code == EXCHANGE_EXIT_CODE for code, _ in results), results
    return "".join(output for _, output in results)


def test_different_counts_are_diagnosed(emulator_library: Path, tmp_path: Path) -> None:
    text = diagnosis("unequal_counts", emulator_library, tmp_path, 2)
    assert "rank 0" in text and "rank 1" in text and "disagree" in text
    assert "all_reduce of 4 x float32 (sum)" in text and "all_reduce of 5 x float32 (sum)" in text


def test_different_operations_are_diagnosed(emulator_library: Path, tmp_path: Path) -> None:
    text = diagnosis("unequal_operations", emulator_library, tmp_path, 2)
    assert "all_reduce of 4 x float32 (sum)" in text and "broadcast of 4 x float32 with root 0" in text


def test_absent_rank_is_named(emulator_library: Path, tmp_path: Path) -> None:
    text = diagnosis("absent_rank", emulator_library, tmp_path, 3)
    assert (
        "waits in all_reduce of 4 x float32 (sum), number 0 on communicator 0 (3 ranks) for rank 1," in text
    )


def test_a_rank_alone_does_not_make_up_uneven_parts(emulator_library: Path, tmp_path: Path) -> None:
    results = run_ranks(["uneven_exchange_alone"], emulator_library, tmp_path, 1, **SOLO)
    assert results[0][0] == EXCHANGE_EXIT_CODE
    assert "what absent ranks sent it in all_to_all of 1 x int32" in results[0][1]
    assert "capture.mode=linked" in results[0][1]


def test_sizes_of_a_communicator_are_compared(emulator_library: Path, tmp_path: Path) -> None:
    assert "disagree on the size of a communicator" in diagnosis(
        "sizes_disagree", emulator_library, tmp_path, 2
    )


def test_ranks_of_a_communicator_are_compared(emulator_library: Path, tmp_path: Path) -> None:
    text = diagnosis("same_rank_twice", emulator_library, tmp_path, 2)
    assert "both initialise communicator rank 0 of 2" in text


def test_missing_member_of_a_new_communicator_is_named(emulator_library: Path, tmp_path: Path) -> None:
    results = run_ranks(["ring"], emulator_library, tmp_path, 1, WORLD_SIZE="2", MAYA_EXCHANGE_TIMEOUT_S="1")
    assert results[0][0] == EXCHANGE_EXIT_CODE
    assert "rank 0 waits in ncclCommInitRank for communicator rank 1," in results[0][1]


if __name__ == "__main__":
    this_rank = Rank()
    for name in sys.argv[1:]:
        CASES[name](this_rank)
