"""Collectives worked out by hand, on a node of 8 GPUs with 8 NICs of 50 GB/s (50e9 x 0.9 achieved)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from job_builder import make_cluster, make_gpu

from maya.estimators.collectives import IntraNodeModel, bus_factor
from maya.estimators.network import BASE_US, NetworkModel, Placement

GPU = make_gpu(nvlink_bytes_per_s=500e9, pcie_bytes_per_s=60e9)
CLUSTER = make_cluster(
    nic_bytes_per_s=50e9, nic_efficiency_ratio=0.9, intra_node_latency_us=1.0, inter_node_latency_us=5.0
)
# A table of one op: 10 us up to 1 MB, then 100 GB/s of algorithm bandwidth.
SIZES = np.array([1e3, 1e6, 1e8])
TABLE = {("all_reduce", "fp16", n): (SIZES, np.log([10.0, 10.0, 1000.0])) for n in (2, 4, 8)}


def network(tables: dict | None = None, **cluster: object) -> NetworkModel:
    intra_node = IntraNodeModel(gpu=GPU, tables=tables or {})
    changed = make_cluster(**(vars(CLUSTER) | cluster))
    return NetworkModel(gpu=GPU, cluster=changed, intra_node=intra_node)


def us(
    model: NetworkModel, op: str, num_bytes: float, ranks: tuple[int, ...], dtype: str = "bfloat16"
) -> float:
    return model.predict_us(op, dtype, num_bytes, Placement.of(ranks, 8))[0]


def test_placement() -> None:
    assert Placement.of((0, 1, 2, 8), 8) == Placement(
        num_ranks=4, num_nodes=2, ranks_per_node=3, is_bridged_pair=False
    )
    assert Placement.of((2, 3), 8).is_bridged_pair
    assert not Placement.of((1, 2), 8).is_bridged_pair


def test_bus_factors() -> None:
    assert bus_factor("all_reduce", 8) == 1.75
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == 0.875
    assert bus_factor("broadcast", 8) == 1


def test_alone_nothing_moves_but_a_copy_on_the_device() -> None:
    model = network(TABLE)
    assert us(model, "all_reduce", 1e6, (3,)) == us(model, "broadcast", 1e6, (3,)) == 0
    assert us(model, "all_gather", 1e9, (3,)) == pytest.approx(
        GPU.min_kernel_us + 2e9 / GPU.hbm_bytes_per_s * 1e6
    )


def test_inside_a_node_the_table_decides() -> None:
    model = network(TABLE)
    assert us(model, "all_reduce", 1e6, tuple(range(8))) == pytest.approx(10)
    # Halfway between 1e6 and 1e8 in logarithms: halfway between 10 and 1000.
    assert us(model, "all_reduce", 1e7, tuple(range(8))) == pytest.approx(100)
    # Beyond the table the bandwidth stays.
    assert us(model, "all_reduce", 3e8, tuple(range(8))) == pytest.approx(3000)
    assert us(model, "all_reduce", 1e6, (0, 1, 2)) == pytest.approx(10)


def test_without_a_table_the_fastest_ring_protocol() -> None:
    # 8 GPUs, Simple: 8.4 + 14 steps x 3.4 + 1.75 GB / (500e9 x 0.8); LL and LL128 move less per byte.
    expected = 8.4 + 14 * 3.4 + 1.75e9 / 400e9 * 1e6
    assert us(network(), "all_reduce", 1e9, tuple(range(8))) == pytest.approx(expected)
    # A few bytes: LL, 6.6 + 14 x 0.6.
    assert us(network(), "all_reduce", 8, tuple(range(8))) == pytest.approx(6.6 + 8.4, rel=1e-3)


def test_pcie_nodes_use_pcie() -> None:
    expected = 8.4 + 14 * 5.7 + 1.75e9 / (60e9 * 0.54) * 1e6
    assert us(network(intra_node="pcie"), "all_reduce", 1e9, tuple(range(8))) == pytest.approx(expected)


def test_all_gather_over_nodes_is_a_ring_through_the_nics() -> None:
    # One rank on each of 4 nodes, one NIC each: 3 steps over the network, 3/4 of the bytes at 45 GB/s.
    expected = BASE_US + 3 * 5.0 + 0.75e9 / 45e9 * 1e6
    assert us(network(), "all_gather", 1e9, (0, 8, 16, 24)) == pytest.approx(expected)


def test_all_reduce_over_nodes_is_a_tree() -> None:
    # 8 ranks on each of 2 nodes: 2 steps of 5, and the slower of
    # 2 x 1/2 GB over 8 x 45 GB/s and 10,000 us inside the node.
    model = network(TABLE)
    ranks = tuple(range(16))
    assert us(model, "all_reduce", 1e9, ranks) == pytest.approx(BASE_US + 10 + 10_000)
    # One rank a node has nothing to do inside: 1 GB over 45 GB/s.
    assert us(model, "all_reduce", 1e9, (0, 8)) == pytest.approx(BASE_US + 10 + 1e9 / 45e9 * 1e6)


def test_all_to_all_over_nodes() -> None:
    # Each of 8 ranks sends half of its 160 MB to the other node, through 8 NICs: 640 MB at 360 GB/s.
    expected = BASE_US + 5.0 + 8 * 160e6 / 2 / 360e9 * 1e6
    assert us(network(), "all_to_all", 160e6, tuple(range(16))) == pytest.approx(expected)


def test_pairs() -> None:
    assert us(network(), "send", 1e9, (3, 11)) == pytest.approx(BASE_US + 5 + 1e9 / 45e9 * 1e6)
    assert us(network(), "recv", 1e9, (3, 4)) == pytest.approx(BASE_US + 1 + 1e9 / 375e9 * 1e6)


def test_two_gpus_that_share_a_nic_get_half_each() -> None:
    assert us(network(nics_per_node=4), "send", 1e9, (3, 11)) == pytest.approx(
        BASE_US + 5 + 1e9 / 22.5e9 * 1e6
    )


@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "reduce"]),
    st.sampled_from([(0, 1), tuple(range(6)), tuple(range(16)), (0, 8, 16)]),
    st.floats(1, 1e10),
    st.floats(1.0, 100.0),
)
def test_more_bytes_never_take_less(op: str, ranks: tuple[int, ...], num_bytes: float, factor: float) -> None:
    model = network(TABLE)
    # A rounding error of interpolated logarithms is no fault.
    assert us(model, op, num_bytes * factor, ranks) >= us(model, op, num_bytes, ranks) * (1 - 1e-9)
