"""Rank classes: the coarsest equitable partition of known meshes, and properties of any."""

import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maya.collate.classes import find_classes, partition
from maya.collate.events import Group, RankEvents, find_families

Families = list[list[tuple[int, ...]]]


def mesh(tensor: int, data: int, pipeline: int) -> Families:
    """Tensor, data and pipeline groups, ranks in the order pipeline, data, tensor (tensor fastest)."""
    ranks = np.arange(pipeline * data * tensor).reshape(pipeline, data, tensor)
    by_axis = [ranks, ranks.transpose(0, 2, 1), ranks.transpose(1, 2, 0)]
    return [[tuple(group) for group in axis.reshape(-1, axis.shape[-1]).tolist()] for axis in by_axis]


def test_without_point_to_point_all_ranks_of_a_mesh_are_alike() -> None:
    assert find_classes(8, 8, mesh(2, 2, 2)).tolist() == [0] * 8


def test_pipeline_stages_are_classes() -> None:
    assert find_classes(8, 8, mesh(2, 2, 2), distinguished={2: range(16)}).tolist() == [0] * 4 + [1] * 4
    assert find_classes(16, 8, mesh(2, 2, 4), distinguished={2: range(16)}).tolist() == sorted(
        [0, 1, 2, 3] * 4
    )


def test_roots_are_a_class() -> None:
    families = mesh(4, 2, 1)
    assert find_classes(8, 8, families, distinguished={0: [0]}).tolist() == [0, 1, 1, 1] * 2


def test_group_over_nodes_makes_other_classes() -> None:
    # Data groups of 4 with stride 2 on nodes of 4 GPUs all span two nodes; with nodes of 6 ranks 0..7 of 12
    # lie (0,2,4 | 6) and 8, 10 | ... differently.
    groups = [[(0, 2, 4, 6), (1, 3, 5, 7), (8, 10)]]
    classes = find_classes(12, 6, groups)
    assert classes[0] == classes[1] == classes[6] and classes[8] == classes[10] != classes[0]
    # Pairs within a node against pairs across nodes.
    pairs = [[(0, 1), (2, 3), (4, 5), (6, 7)]]
    assert find_classes(8, 4, pairs).tolist() == [0] * 8
    assert find_classes(8, 3, pairs).tolist() == [0, 0, 1, 1, 0, 0, 0, 0]


def test_membership_separates() -> None:
    # Embedding groups tie the first to the last of four stages.
    families = [*mesh(1, 2, 4), [(0, 6), (1, 7)]]
    assert find_classes(8, 8, families).tolist() == [0, 0, 1, 1, 1, 1, 0, 0]


def test_difference_spreads_to_those_who_meet_it() -> None:
    seed = np.zeros(8, dtype=np.int64)
    seed[0] = 1
    # 0 is odd; its pair 1 meets it; of the four others in pairs nobody does.
    assert find_classes(8, 8, [[(0, 1), (2, 3), (4, 5), (6, 7)]], seed=seed).tolist() == [0, 1] + [2] * 6


def test_sixteen_thousand_ranks_take_under_two_seconds() -> None:
    families = mesh(8, 128, 16)
    start = time.perf_counter()
    classes = find_classes(16384, 8, families, distinguished={2: range(16)})
    assert time.perf_counter() - start < 2
    assert len(np.unique(classes)) == 16


def test_captured_ranks_that_differ_split_their_class() -> None:
    found = partition(4, 8, [[(0, 1, 2, 3)]], {}, {0: 11, 1: 11, 3: 22})
    assert found.class_of.tolist() == [0, 0, 0, 1]
    assert found.representative.tolist() == [0, 3]
    assert found.members(0) == (0, 1, 2)
    assert found.missing() == ()


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, Families]:
    world_size = draw(st.integers(2, 24))
    families: Families = []
    for _ in range(draw(st.integers(0, 4))):
        ranks = draw(st.permutations(range(world_size)))
        cuts = sorted(draw(st.sets(st.integers(1, world_size - 1), max_size=6)))
        groups = [tuple(ranks[a:b]) for a, b in zip([0, *cuts], [*cuts, world_size], strict=True)]
        families.append(draw(st.lists(st.sampled_from(groups), unique=True, min_size=1)))
    return world_size, families


@given(job=jobs(), gpus_per_node=st.integers(1, 8))
@settings(deadline=None)
def test_partition_is_equitable(job: tuple[int, Families], gpus_per_node: int) -> None:
    """Ranks of one class belong to groups with equal node patterns and equal classes of members."""
    world_size, families = job
    classes = find_classes(world_size, gpus_per_node, families)

    def surroundings(rank: int) -> list[object]:
        found: list[object] = []
        for groups in families:
            group = next((group for group in groups if rank in group), ())
            nodes = [member // gpus_per_node for member in group]
            pattern = [list(dict.fromkeys(nodes)).index(node) for node in nodes]
            found.append((pattern, sorted(classes[list(group)].tolist())))
        return found

    by_class: dict[int, list[object]] = {}
    for rank in range(world_size):
        assert by_class.setdefault(int(classes[rank]), surroundings(rank)) == surroundings(rank)


@given(job=jobs(), gpus_per_node=st.integers(1, 8), data=st.data())
@settings(deadline=None)
def test_classes_do_not_depend_on_the_order_of_groups(
    job: tuple[int, Families], gpus_per_node: int, data: st.DataObject
) -> None:
    world_size, families = job
    shuffled = [data.draw(st.permutations(groups)) for groups in families]
    one = find_classes(world_size, gpus_per_node, families)
    assert one.tolist() == find_classes(world_size, gpus_per_node, shuffled).tolist()


def events(*groups: tuple[str, tuple[int, ...]]) -> RankEvents:
    return RankEvents(
        groups=tuple(
            Group(name=str(number), ranks=ranks, description=description)
            for number, (description, ranks) in enumerate(groups)
        ),
        store_keys={},
    )


def test_families_of_call_sites_that_take_turns() -> None:
    plain = "undefined"
    announced = events(
        ("default_pg", (0, 1, 2, 3)),
        (plain, (0, 2)), (plain, (0, 2)), (plain, (1, 3)), (plain, (1, 3)),  # pipeline, embedding, in turns
        ("tensor", (0, 1)), ("tensor", (2, 3)),
    )  # fmt: skip
    families = find_families([announced])
    assert families.groups == [[(0, 1, 2, 3)], [(0, 2), (1, 3)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    assert families.family_of == [[0, 1, 2, 1, 2, 3, 3]]


def test_families_of_ranks_that_know_only_their_own_groups() -> None:
    families = find_families([events(("shard", (0, 1)), ("replicate", (0, 2))), events(("shard", (2, 3)))])
    assert families.groups == [[(0, 1), (2, 3)], [(0, 2)]]
    assert families.family_of == [[0, 1], [0]]
