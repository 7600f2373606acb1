"""Several ranks: communicators, meetings, rank classes in a job."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trace_writer import TraceWriter, write_job

from maya.collate import collate, read_job
from maya.collate import write_job as write_collated
from maya.collate.captured import read_capture
from maya.collate.classes import representatives
from maya.errors import TraceError

FLOAT32, BFLOAT16 = 7, 9
ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV = 0, 1, 3, 4, 8, 9


def collective(writer: TraceWriter, op: int, count: int, comm: int = 0, **fields: int) -> None:
    values = {"stream": 3, "dtype": FLOAT32, "reduce_op": 0, "peer": -1, "sequence": 0, "group": 0} | fields
    writer.record("collective", comm=comm, op=op, count=count, **values)


def run(
    writer: TraceWriter, iteration: Callable[[TraceWriter], None], num_iterations: int = 4
) -> TraceWriter:
    """Three marks and more: the newest ``num_iterations - 2`` iterations are steady."""
    for number in range(1, num_iterations + 1):
        iteration(writer)
        writer.iteration(number)
    return writer


def linked(size: int, unique_id: int = 77) -> list[TraceWriter]:
    """Writers of ranks that share one communicator, local id 0."""
    writers = [TraceWriter(rank=rank) for rank in range(size)]
    for rank, writer in enumerate(writers):
        writer.group("0", list(range(size)), "default_pg")
        writer.record("comm_init", comm=0, unique_id=unique_id, num_ranks=size, rank=rank)
    return writers


def test_all_members_meet_at_the_nth_call(tmp_path: Path) -> None:
    writers = linked(2)
    for writer in writers:

        def iteration(w: TraceWriter) -> None:
            collective(w, ALL_REDUCE, 100)
            collective(w, ALL_GATHER, 10, dtype=BFLOAT16)

        run(writer, iteration)
    job = collate(write_job(tmp_path, writers))
    assert [(c.ranks, c.label) for c in job.communicators] == [((0, 1), "default_pg")]
    # 2 iterations of 2 calls, each met by both.
    assert job.rendezvous_arrivals.tolist() == [2, 2, 2, 2]
    first, second = job.ranks
    assert sorted(first.rendezvous.tolist()) == [0, 1, 2, 3]
    assert first.rendezvous.tolist() == second.rendezvous.tolist()
    assert first.ops["rendezvous_begin"].tolist() == [0, 1, 2, 3]
    assert first.ops["rendezvous_end"].tolist() == [1, 2, 3, 4]
    details = first.details["collective"]
    assert details["op"].tolist() == ["all_reduce", "all_gather"] * 2
    assert details["dtype"].tolist() == ["float32", "bfloat16"] * 2
    # all_gather: the total output, 2 ranks of 10 bfloat16.
    assert details["bytes"].tolist() == [400, 40] * 2
    assert details["peer"].tolist() == [-1] * 4
    assert details["communicator"].tolist() == [0] * 4
    assert (first.members, second.members) == ((0,), (1,))


def test_mismatch_names_both_ranks_and_calls(tmp_path: Path) -> None:
    writers = linked(2)
    run(writers[0], lambda w: collective(w, ALL_REDUCE, 100))
    run(writers[1], lambda w: collective(w, REDUCE_SCATTER, 50))
    with pytest.raises(
        TraceError,
        match=r"Ranks 0 and 1 disagree about call 0 on the communicator of default_pg \(ranks 0, 1\).* "
        r"rank 0 calls all_reduce of 100 float32, rank 1 calls reduce_scatter of 50 float32",
    ):
        collate(write_job(tmp_path, writers))


def test_rank_that_calls_less_leaves_a_meeting_open(tmp_path: Path) -> None:
    writers = linked(2)
    run(writers[0], lambda w: (collective(w, ALL_REDUCE, 8), collective(w, ALL_REDUCE, 8)))
    run(writers[1], lambda w: (collective(w, ALL_REDUCE, 8), w.kernel("k")))
    job = collate(write_job(tmp_path, writers))
    assert job.rendezvous_arrivals.tolist() == [2] * 4
    assert len(job.ranks[1].rendezvous) == 2


def test_missing_member_is_named(tmp_path: Path) -> None:
    writers = linked(3)[:2]
    for writer in writers:
        run(writer, lambda w: collective(w, ALL_REDUCE, 8))
    with pytest.raises(TraceError, match=r"communicator of 3 ranks was opened by ranks \[0, 1\] alone"):
        collate(write_job(tmp_path, writers))


def test_sends_meet_receives_in_their_order(tmp_path: Path) -> None:
    writers = linked(2)

    def stage0(w: TraceWriter) -> None:
        collective(w, SEND, 10, peer=1)
        collective(w, SEND, 20, peer=1)
        collective(w, RECV, 30, peer=1)

    def stage1(w: TraceWriter) -> None:
        collective(w, RECV, 10, peer=0)
        collective(w, RECV, 20, peer=0)
        collective(w, SEND, 30, peer=0)

    run(writers[0], stage0, num_iterations=3)
    run(writers[1], stage1, num_iterations=3)
    job = collate(write_job(tmp_path, writers))
    first, second = job.ranks
    assert first.rendezvous.tolist() == second.rendezvous.tolist()
    assert len(set(first.rendezvous.tolist())) == 3
    assert job.rendezvous_arrivals.tolist() == [2, 2, 2]
    assert first.details["collective"]["peer"].tolist() == [1, 1, 1]
    assert first.details["collective"]["op"].tolist() == ["send", "send", "recv"]
    assert second.details["collective"]["bytes"].tolist() == [40, 80, 120]


def test_group_of_calls_is_one_operation(tmp_path: Path) -> None:
    """A ring: every rank sends to the next and receives from the previous one in one NCCL group."""
    writers = linked(3)
    for rank, writer in enumerate(writers):

        def iteration(w: TraceWriter, rank: int = rank) -> None:
            group = w.num_records
            collective(w, SEND, 10, peer=(rank + 1) % 3, group=group)
            collective(w, RECV, 10, peer=(rank - 1) % 3, group=group)
            w.kernel("k")

        run(writer, iteration, num_iterations=3)
    job = collate(write_job(tmp_path, writers))
    assert job.rendezvous_arrivals.tolist() == [2, 2, 2]
    for rank in job.ranks:
        assert rank.ops["kind"].tolist() == ["collective", "kernel"]
        assert (rank.ops["rendezvous_end"] - rank.ops["rendezvous_begin"]).tolist() == [2, 0]
        # Both directions of a link carry 40 bytes at once.
        assert rank.details["collective"]["bytes"].tolist() == [40]
        assert rank.details["collective"]["op"].tolist() == ["send"]
    sent = [set(rank.rendezvous.tolist()) for rank in job.ranks]
    assert all(len(sent[a] & sent[b]) == 1 for a, b in [(0, 1), (1, 2), (2, 0)])


def test_collectives_of_a_group_are_one_operation_with_the_sum_of_bytes(tmp_path: Path) -> None:
    writers = linked(2)
    for writer in writers:
        for number in range(1, 4):
            for count in (10, 20, 30):
                collective(writer, ALL_REDUCE, count, group=number)
            writer.iteration(number)
    job = collate(write_job(tmp_path, writers))
    rank = job.ranks[0]
    assert rank.ops["kind"].tolist() == ["collective"]
    assert rank.details["collective"][["bytes", "count"]].to_numpy().tolist() == [[240, 60]]
    assert job.rendezvous_arrivals.tolist() == [2, 2, 2]
    assert sorted(rank.rendezvous.tolist()) == [0, 1, 2]


def test_every_launch_of_a_graph_has_its_own_group(tmp_path: Path) -> None:
    writers = linked(2)
    for writer in writers:

        def iteration(w: TraceWriter) -> None:
            for _ in range(2):
                w.record("graph_launch", stream=0, graph=1, num_operations=2)
                for count in (10, 20):
                    collective(w, ALL_REDUCE, count, group=5, flags=2)

        run(writer, iteration, num_iterations=3)
    job = collate(write_job(tmp_path, writers))
    assert job.ranks[0].ops["kind"].tolist() == ["graph_launch", "collective"] * 2
    assert job.ranks[0].details["collective"]["count"].tolist() == [30, 30]
    assert job.rendezvous_arrivals.tolist() == [2] * 4


def test_sends_to_everybody_are_an_all_to_all(tmp_path: Path) -> None:
    writers = linked(2)
    for rank, writer in enumerate(writers):
        for number in range(1, 4):
            for peer in range(2):
                collective(writer, SEND, 10 + rank + peer, peer=peer, group=number)
                collective(writer, RECV, 10 + rank + peer, peer=peer, group=number)
            writer.iteration(number)
    job = collate(write_job(tmp_path, writers))
    details = job.ranks[0].details["collective"]
    assert details["op"].tolist() == ["all_to_all"]
    assert details["bytes"].tolist() == [4 * (10 + 11)]
    # 0 to 0, 0 to 1, 1 to 0, 1 to 1; a rank meets itself within one operation.
    assert sorted(job.rendezvous_arrivals.tolist()) == [1, 1, 2, 2]
    assert [len(rank.rendezvous) for rank in job.ranks] == [3, 3]


def test_split_communicators_are_joined_by_their_hash(tmp_path: Path) -> None:
    writers = linked(4)
    for rank, writer in enumerate(writers):
        half = rank // 2
        writer.group(f"h{half}", [2 * half, 2 * half + 1], "half")
        writer.record(
            "comm_init",
            comm=1,
            unique_id=500 + half,
            num_ranks=2,
            rank=rank % 2,
            parent=0,
            color=half,
            split_index=0,
        )
        run(writer, lambda w: collective(w, ALL_REDUCE, 8, comm=1), num_iterations=3)
    job = collate(write_job(tmp_path, writers))
    assert [(c.ranks, c.label) for c in job.communicators] == [((0, 1), "half"), ((2, 3), "half")]
    assert job.rendezvous_arrivals.tolist() == [2, 2]


def test_communicators_split_off_a_rank_alone_are_told_by_colour(tmp_path: Path) -> None:
    """Colours as PyTorch makes them: new_group hashes the ranks, split_group takes the smallest."""
    writer = TraceWriter(rank=5)
    for name, ranks, description in [
        ("0", [0, 1, 2, 3, 4, 5, 6, 7], "default_pg"), ("a", [5, 4], "never used"), ("b", [1, 5], "split"),
        ("c", [3, 5], "new"), ("", [0, 2], "of others"),
    ]:  # fmt: skip
        writer.group(name, ranks, description)
    writer.unique_id(11, "default_pg/0//cuda//0")
    writer.record("comm_init", comm=0, unique_id=11, num_ranks=8, rank=5)
    new_color = abs(hash((3, 5))) % 2**31
    for comm, color in [(1, new_color), (2, 1)]:
        writer.record(
            "comm_init",
            comm=comm,
            unique_id=comm,
            num_ranks=2,
            rank=1,
            parent=0,
            color=color,
            split_index=comm,
        )
    run(writer, lambda w: w.kernel("k"))
    capture = read_capture(write_job(tmp_path, [writer], world_size=8, mode="solo"))
    named = capture.communicators[5]
    assert [(named[comm].label, named[comm].ranks) for comm in (0, 1, 2)] == [
        ("default_pg", (0, 1, 2, 3, 4, 5, 6, 7)), ("new", (3, 5)), ("split", (1, 5))
    ]  # fmt: skip


# --- ranks captured alone: tensor 2 x pipeline 2 x data 2 -----------------------------------------


def mesh_groups() -> dict[str, list[list[int]]]:
    """Ranks 0..7 = pipeline * 4 + data * 2 + tensor, as Megatron orders them."""
    return {
        "tensor": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "data": [[0, 2], [1, 3], [4, 6], [5, 7]],
        "pipeline": [[0, 4], [1, 5], [2, 6], [3, 7]],
    }


def solo_rank(rank: int, odd: bool = False) -> TraceWriter:
    """A rank of the mesh run alone: unique ids are random numbers of its own, told by store keys."""
    writer = TraceWriter(rank=rank)
    writer.group("0", list(range(8)), "default_pg")
    number = 1
    for description, groups in mesh_groups().items():
        for ranks in groups:
            writer.group(str(number), ranks, description)
            if rank in ranks:
                comm = ["tensor", "data", "pipeline"].index(description)
                unique_id = hash((rank, description)) >> 1
                channel = "0:1" if description == "pipeline" else "0"
                writer.unique_id(unique_id, f"default_pg/0//{number}//cuda//{channel}")
                writer.record(
                    "comm_init", comm=comm, unique_id=unique_id, num_ranks=2, rank=ranks.index(rank)
                )
            number += 1
    stage = rank // 4

    def iteration(w: TraceWriter) -> None:
        if stage == 1:
            collective(w, RECV, 5, comm=2, peer=0)
        w.kernel("odd" if odd else "layer")
        collective(w, ALL_REDUCE, 100, comm=0)
        if stage == 0:
            collective(w, SEND, 5, comm=2, peer=1)
        collective(w, ALL_REDUCE, 1000, comm=1)

    return run(writer, iteration, num_iterations=3)


def solo_job(folder: Path, ranks: list[int], odd: int = -1, gpus_per_node: int = 8) -> Path:
    writers = [solo_rank(rank, rank == odd) for rank in ranks]
    return write_job(folder, writers, world_size=8, gpus_per_node=gpus_per_node, mode="solo")


def test_probe_tells_which_ranks_to_capture(tmp_path: Path) -> None:
    assert representatives(solo_job(tmp_path / "probe", [0])) == (4,)
    assert representatives(solo_job(tmp_path / "both", [0, 4])) == ()


def test_root_of_a_broadcast_is_captured_apart(tmp_path: Path) -> None:
    writer = TraceWriter(rank=0)
    writer.group("0", [0, 1, 2, 3], "default_pg")
    writer.unique_id(5, "default_pg/0//cuda//0")
    writer.record("comm_init", comm=0, unique_id=5, num_ranks=4, rank=0)
    run(writer, lambda w: collective(w, BROADCAST, 8, peer=0))
    assert representatives(write_job(tmp_path, [writer], world_size=4, mode="solo")) == (1,)


def test_odd_rank_leaves_its_class(tmp_path: Path) -> None:
    # Rank 2 differs from rank 0. Its data-parallel peer 0, tensor peer 3 and pipeline peer 6 meet an odd
    # rank and so are of their own classes: what follows from where a rank stands to rank 2.
    missing = representatives(solo_job(tmp_path, [0, 2, 4], odd=2))
    assert missing == (1, 3, 5, 6, 7)


def test_uncaptured_class_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"do not stand for all 8 ranks.* alone: 4\."):
        collate(solo_job(tmp_path, [0]))


def test_representatives_meet_for_their_classes(tmp_path: Path) -> None:
    # Rank 5 stands for the second stage: its pipeline group (1, 5) is not that of rank 0, but the same
    # between classes.
    job = collate(solo_job(tmp_path, [0, 5]))
    assert [rank.members for rank in job.ranks] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [rank.rank for rank in job.ranks] == [0, 5]
    by_label = {(c.label, c.ranks) for c in job.communicators}
    assert by_label == {
        ("tensor", (0, 1)), ("data", (0, 2)), ("pipeline", (0, 4)), ("tensor", (4, 5)), ("data", (5, 7))
    }  # fmt: skip
    first, second = job.ranks
    assert first.details["collective"]["peer"].tolist() == [-1, 4, -1]
    assert second.details["collective"]["peer"].tolist() == [1, -1, -1]
    shared = set(first.rendezvous.tolist()) & set(second.rendezvous.tolist())
    assert shared == {int(first.rendezvous[1])} == {int(second.rendezvous[0])}
    # In all other meetings a class meets only itself.
    arrivals = np.array([1] * len(job.rendezvous_arrivals))
    arrivals[list(shared)] = 2
    assert job.rendezvous_arrivals.tolist() == arrivals.tolist()


def test_all_ranks_captured_alone_are_simulated_in_full(tmp_path: Path) -> None:
    job = collate(solo_job(tmp_path, list(range(8))))
    assert [rank.members for rank in job.ranks] == [(rank,) for rank in range(8)]
    assert job.rendezvous_arrivals.tolist() == [2] * len(job.rendezvous_arrivals)
    # 8 ranks make 4 tensor, 4 data and 4 pipeline meetings, as there is one steady iteration.
    assert len(job.rendezvous_arrivals) == 12


def test_job_survives_its_files(tmp_path: Path) -> None:
    job = collate(solo_job(tmp_path / "traces", [0, 5]))
    write_collated(job, tmp_path / "job")
    write_collated(job, tmp_path / "job")  # replaces
    copy = read_job(tmp_path / "job")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert copy.communicators == job.communicators
    assert copy.rendezvous_arrivals.tolist() == job.rendezvous_arrivals.tolist()
    assert (copy.world_size, copy.gpu, copy.calls) == (8, "h100_sxm", job.calls)
    for one, other in zip(job.ranks, copy.ranks, strict=True):
        assert (one.rank, one.members, one.num_iterations) == (
            other.rank,
            other.members,
            other.num_iterations,
        )
        assert one.ops.equals(other.ops)
        assert set(one.details) == set(other.details)
        assert all(details.equals(other.details[kind]) for kind, details in one.details.items())
        assert one.rendezvous.tolist() == other.rendezvous.tolist()


def test_other_folders_are_no_job(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no collated job"):
        read_job(tmp_path)


@pytest.mark.parametrize("damage", ["rank00005/ops.parquet", "rank00005/rank.json", "job.json"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_damaged_jobs_are_refused(tmp_path: Path, damage: str, is_missing: bool) -> None:
    write_collated(collate(solo_job(tmp_path / "traces", [0, 5])), tmp_path / "job")
    file = tmp_path / "job" / damage
    file.unlink()
    if not is_missing:
        file.write_bytes(b"")
    with pytest.raises(TraceError, match="Collate the traces"):
        read_job(tmp_path / "job")


def test_cut_events_are_refused(tmp_path: Path) -> None:
    folder = write_job(tmp_path, [run(TraceWriter(), lambda w: w.kernel("k"))])
    (folder / "rank00000.events.jsonl").write_text("")
    with pytest.raises(TraceError, match=r"rank00000\.events\.jsonl ends before its last event"):
        collate(folder)


def test_job_out_of_memory_has_no_iterations(tmp_path: Path) -> None:
    writers = [run(TraceWriter(), lambda w: w.kernel("k"))]
    with pytest.raises(TraceError, match=r"Rank 0 of .* ran out of device memory"):
        collate(write_job(tmp_path, writers, status="oom"))
