"""Durations of collectives from where their ranks sit: a hierarchical alpha-beta model.

Inside a node `collectives` decides. Between nodes each node sends through the NICs of the ranks that take
part; both stages are pipelined, so the slower one sets the bandwidth, and the steps add latency.

    n ranks on N nodes, L = ranks of the fullest node, S = size in bytes as nccl-tests counts it
    W = NIC rate x efficiency x NICs of L GPUs: a node's rate, in each direction
    B = bus bandwidth of the stage inside the node at this size, from `collectives`

NICs are dealt to GPUs evenly. Ranks of other groups on the node are taken to communicate at the same time
through the NICs of their own GPUs, as data- and pipeline-parallel groups do, so a group does not use them.
"""

from dataclasses import dataclass

import numpy as np

from maya.config.schema import ClusterConfig, GpuConfig
from maya.estimators.collectives import PCIE_RING_RATIO, IntraNodeModel, bus_factor, ring_steps
from maya.estimators.fits import MODEL

# Start-up of a collective or a point-to-point transfer over the network: NCCL's ring LL and Simple
# (NVIDIA/nccl@5067397, 2.30.7, src/graph/tuning.cc).
BASE_US = 6.6
# Point-to-point channels that work at a time, from NCCL's start-up message on 8 GPU nodes ("32 p2p").
P2P_CHANNELS = 32
# Rate of a send/recv pair over the data-sheet rate: 340 of 450 GB/s on H100, 224 of 300 on A100 (NVLink,
# above 30 MB, microsoft/vidur@7d47513). PCIe: as a ring.
P2P_NVLINK_RATIO = 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """How the ranks of a communicator are spread."""

    num_ranks: int
    num_nodes: int
    ranks_per_node: int  # of the fullest node
    is_bridged_pair: bool  # two neighbours, as NVLink bridges join them on PCIe nodes

    @classmethod
    def of(cls, ranks: tuple[int, ...], gpus_per_node: int) -> "Placement":
        nodes, counts = np.unique(np.asarray(ranks) // gpus_per_node, return_counts=True)
        pair = len(ranks) == 2 and len(nodes) == 1 and ranks[0] // 2 == ranks[1] // 2
        return cls(
            num_ranks=len(ranks), num_nodes=len(nodes), ranks_per_node=int(counts.max()), is_bridged_pair=pair
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkModel:
    gpu: GpuConfig
    cluster: ClusterConfig
    intra_node: IntraNodeModel

    def predict_us(self, op: str, dtype: str, num_bytes: float, placement: Placement) -> tuple[float, int]:
        """Duration and basis of one collective, or of one send/recv pair (its two ranks as placement)."""
        if placement.num_ranks == 1:
            # NCCL copies the buffer on the device, or does nothing in place (ncclLaunchOneRank), as PyTorch
            # calls these.
            if op in ("all_reduce", "broadcast", "reduce"):
                return 0.0, int(MODEL)
            return self.gpu.min_kernel_us + 2 * num_bytes / self.gpu.hbm_bytes_per_s * 1e6, int(MODEL)
        if op in ("send", "recv"):
            return self._pair_us(num_bytes, placement), int(MODEL)
        if placement.num_nodes == 1:
            link = self._link(placement)
            return self.intra_node.predict_us(op, dtype, placement.num_ranks, num_bytes, link)
        match op:
            case "all_reduce":
                tree_us = self._tree_us(dtype, num_bytes, placement)
                return min(tree_us, self._ring_us(op, dtype, num_bytes, placement)), int(MODEL)
            case "all_to_all" | "gather" | "scatter":
                return self._all_to_all_us(num_bytes, placement), int(MODEL)
            case _:
                return self._ring_us(op, dtype, num_bytes, placement), int(MODEL)

    def _link(self, placement: Placement) -> str:
        has_nvlink = self.gpu.nvlink_bytes_per_s > 0
        is_linked = self.cluster.intra_node == "nvlink" or placement.is_bridged_pair
        return "nvlink" if has_nvlink and is_linked else "pcie"

    def _node_bytes_per_s(self, ranks_per_node: int) -> float:
        """W: the NICs of the group's GPUs on a node, at the achieved share of their line rate."""
        nics = self.cluster.nics_per_node * ranks_per_node / self.cluster.gpus_per_node
        return nics * self.cluster.nic_bytes_per_s * self.cluster.nic_efficiency_ratio

    def _ring_us(self, op: str, dtype: str, num_bytes: float, placement: Placement) -> float:
        """Ring: base + steps in and between nodes + factor(op, n) S / min(B, W).

        A ring through all ranks leaves each node once, so of its steps N / n cross the network.
        """
        n, nodes = placement.num_ranks, placement.num_nodes
        steps = ring_steps(op, n)
        latency_us = steps * (
            nodes / n * self.cluster.inter_node_latency_us
            + (1 - nodes / n) * self.cluster.intra_node_latency_us
        )
        volume = num_bytes * bus_factor(op, n)
        rate = min(
            self._bus_bytes_per_s(op, dtype, num_bytes, placement),
            self._node_bytes_per_s(placement.ranks_per_node),
        )
        return BASE_US + latency_us + volume / rate * 1e6

    def _tree_us(self, dtype: str, num_bytes: float, placement: Placement) -> float:
        """Double binary tree over nodes: base + 2 log2(N) l_inter + max(stage in the node, 2 (N-1)/N S / W).

        Every edge of a tree of N nodes carries S up and S down, 2 (N-1) S in all, which the two trees spread
        evenly. Inside the node the data are reduced and spread once, as an all-reduce there (a chain, or NVLS
        in NVLSTree). Source: "Massively Scale Your Deep Learning Training with NCCL 2.4", NVIDIA 2019.
        """
        nodes = placement.num_nodes
        latency_us = 2 * np.ceil(np.log2(nodes)) * self.cluster.inter_node_latency_us
        between_us = (
            2 * (nodes - 1) / nodes * num_bytes / self._node_bytes_per_s(placement.ranks_per_node) * 1e6
        )
        inside_us = 0.0
        if placement.ranks_per_node > 1:
            link = self._link(placement)
            inside_us, _ = self.intra_node.predict_us(
                "all_reduce", dtype, placement.ranks_per_node, num_bytes, link
            )
        return BASE_US + float(latency_us) + max(inside_us, between_us)

    def _all_to_all_us(self, num_bytes: float, placement: Placement) -> float:
        """Pairwise transfers: base + rounds x l_inter + max(share that stays in the node, L S (n-L)/n / W).

        S is the buffer of one rank, of which each peer gets S / n.
        """
        n, local = placement.num_ranks, placement.ranks_per_node
        rounds = np.ceil((n - local) / P2P_CHANNELS)
        between_us = local * num_bytes * (n - local) / n / self._node_bytes_per_s(local) * 1e6
        inside_us = num_bytes * (local - 1) / n / self._pair_bytes_per_s(placement) * 1e6
        return BASE_US + float(rounds) * self.cluster.inter_node_latency_us + max(inside_us, between_us)

    def _pair_us(self, num_bytes: float, placement: Placement) -> float:
        """send/recv: base + latency + S / rate of the link, or of the GPU's share of the NICs."""
        if placement.num_nodes == 1:
            latency_us = self.cluster.intra_node_latency_us
            return BASE_US + latency_us + num_bytes / self._pair_bytes_per_s(placement) * 1e6
        return BASE_US + self.cluster.inter_node_latency_us + num_bytes / self._node_bytes_per_s(1) * 1e6

    def _pair_bytes_per_s(self, placement: Placement) -> float:
        if self._link(placement) == "pcie":
            return self.gpu.pcie_bytes_per_s * PCIE_RING_RATIO
        if self.gpu.compute_capability == "7.0":  # one or two of six links join a pair of the cube mesh
            return self.intra_node.ring_bytes_per_s(2, "nvlink")
        return self.gpu.nvlink_bytes_per_s * P2P_NVLINK_RATIO

    def _bus_bytes_per_s(self, op: str, dtype: str, num_bytes: float, placement: Placement) -> float:
        """B: volume over time of the collective among the ranks of one node, start-up taken off."""
        local = placement.ranks_per_node
        if local == 1:
            return np.inf
        link = self._link(placement)
        duration_us, _ = self.intra_node.predict_us(op, dtype, local, num_bytes, link)
        start_us, _ = self.intra_node.predict_us(op, dtype, local, 1.0, link)
        moving_us = max(duration_us - start_us, 1e-3)
        return max(num_bytes * bus_factor(op, local) / (moving_us * 1e-6), 1.0)
