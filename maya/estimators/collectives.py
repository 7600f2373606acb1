"""Durations of collectives inside one node: from tables, or from the model of NCCL's own tuner.

Sizes are counted as nccl-tests does: all_gather total output, reduce_scatter total input, else the buffer.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from maya.config.schema import GpuConfig
from maya.estimators.fits import EXTRAPOLATED, INTERPOLATED, MEASURED, MODEL, Fit, Fits
from maya.estimators.interpolation import Floats, fit_log_grid

# Start-up and per-step latencies in us, and the share of the bandwidth, of NCCL's ring protocols on NVLink
# and PCIe (NVIDIA/nccl@5067397, 2.30.7, src/graph/tuning.cc). LL sends a flag with every 4 bytes, so half of
# the bandwidth is data, LL128 120 of 128 bytes.
RING_PROTOCOLS = {"LL": (6.6, 0.5), "LL128": (14.0, 0.92), "Simple": (8.4, 1.0)}
RING_STEP_US = {
    "nvlink": {"LL": 0.6, "LL128": 1.9, "Simple": 3.4},
    "pcie": {"LL": 1.0, "LL128": 2.5, "Simple": 5.7},
}
# Bus bandwidth of a ring over the data-sheet rate per direction. NVLink: 20 of 25 GB/s a link
# (src/graph/topo.h of the same). PCIe: 8.5 of 15.75 GB/s, four V100 (alpa-projects profiles in
# microsoft/SuperScaler@fa80ad0).
NVLINK_RING_RATIO = 0.8
PCIE_RING_RATIO = 0.54
# Eight V100 in the hybrid cube mesh of the DGX-1: bus bandwidth of all-reduce by GPUs, in B/s; single links
# limit the rings of odd groups (vTrain@f8dda84 and SuperScaler@fa80ad0, largest sizes).
CUBE_MESH_BUSBW = {2: 41.9e9, 3: 45.2e9, 4: 80e9, 5: 37.3e9, 6: 45.8e9, 7: 87.3e9, 8: 132e9}

# Types and reductions that NVSwitch can sum (NVLS); the others run as the tables' int8.
SWITCH_DTYPES = ("float16", "bfloat16", "float32", "float64")


def bus_factor(op: str, num_ranks: int) -> float:
    """Bytes that cross each rank's link for one byte of size (nccl-tests, doc/PERFORMANCE.md)."""
    n = max(num_ranks, 1)
    match op:
        case "all_reduce":
            return 2 * (n - 1) / n
        case "all_gather" | "reduce_scatter" | "all_to_all" | "gather" | "scatter":
            return (n - 1) / n
        case _:
            return 1.0


def ring_steps(op: str, num_ranks: int) -> int:
    """Steps of a ring one after the other."""
    match op:
        case "all_reduce":
            return 2 * (num_ranks - 1)
        case "send" | "recv" | "all_to_all" | "gather" | "scatter":
            return 1
        case _:
            return num_ranks - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class IntraNodeModel:
    """``tables``: by (op, dtype, GPUs), sizes in bytes and log of durations in us, ascending in size."""

    gpu: GpuConfig
    tables: dict[tuple[str, str, int], tuple[Floats, Floats]]

    @classmethod
    def of(cls, gpu: GpuConfig, fits: Fits) -> "IntraNodeModel":
        tables = {}
        for group, fit in fits.items():
            kind, *names = group.split("/")
            if kind == "collective" and fit.grid is not None:
                op, dtype, num_gpus = names
                tables[op, dtype, int(num_gpus)] = (fit.grid.axes[0], fit.grid.values)
        return cls(gpu=gpu, tables=tables)

    def predict_us(
        self, op: str, dtype: str, num_ranks: int, num_bytes: float, link: str
    ) -> tuple[float, int]:
        """Duration and basis of one collective among ``num_ranks`` GPUs of a node.

        Args:
            dtype: as NCCL names it
            link: nvlink or pcie
        """
        # Tables were measured on the links the GPU is sold with: NVLink where it has any.
        if self.tables and (link == "nvlink") == (self.gpu.nvlink_bytes_per_s > 0):
            found = self._from_tables(op, "fp16" if dtype in SWITCH_DTYPES else "int8", num_ranks, num_bytes)
            if found is not None:
                return found
        return self.ring_us(op, num_ranks, num_bytes, link), int(MODEL)

    def _from_tables(self, op: str, dtype: str, num_ranks: int, num_bytes: float) -> tuple[float, int] | None:
        # A broadcast moves through the ring as an all_gather does, a reduce as a reduce_scatter: the same
        # link time means a size larger by n / (n - 1).
        alike = {
            "broadcast": "all_gather",
            "reduce": "reduce_scatter",
            "gather": "all_to_all",
            "scatter": "all_to_all",
        }
        if op in ("broadcast", "reduce"):
            num_bytes = num_bytes * num_ranks / (num_ranks - 1)
        op = alike.get(op, op)
        counts = sorted(n for o, d, n in self.tables if o == op and d == dtype)
        if not counts:
            return None
        if num_ranks in counts:
            sizes, _ = self.tables[op, dtype, num_ranks]
            beyond = num_bytes > sizes[-1] or num_bytes < sizes[0]
            basis = MEASURED if num_bytes in sizes else EXTRAPOLATED if beyond else INTERPOLATED
            return self._at(op, dtype, num_ranks, num_bytes), int(basis)
        lower = max((n for n in counts if n < num_ranks), default=None)
        upper = min((n for n in counts if n > num_ranks), default=None)
        if lower is None or upper is None:  # beyond the tables: the bus bandwidth stays as it is
            nearest = counts[-1] if upper is None else counts[0]
            scale = bus_factor(op, num_ranks) / bus_factor(op, nearest)
            return self._at(op, dtype, nearest, num_bytes) * scale, int(EXTRAPOLATED)
        share = np.log(num_ranks / lower) / np.log(upper / lower)
        ends = [np.log(self._at(op, dtype, n, num_bytes)) for n in (lower, upper)]
        return float(np.exp((1 - share) * ends[0] + share * ends[1])), int(INTERPOLATED)

    def _at(self, op: str, dtype: str, num_ranks: int, num_bytes: float) -> float:
        """Log-log interpolation over the size.

        Beyond the largest size the bandwidth stays as it is, below the smallest the time.
        """
        sizes, log_us = self.tables[op, dtype, num_ranks]
        duration_us = float(np.exp(np.interp(np.log(max(num_bytes, 1.0)), np.log(sizes), log_us)))
        return duration_us * max(num_bytes / float(sizes[-1]), 1.0)

    def ring_us(self, op: str, num_ranks: int, num_bytes: float, link: str) -> float:
        """NCCL's tuner model: the fastest protocol of base + steps x latency + factor x size / bandwidth."""
        bandwidth = self.ring_bytes_per_s(num_ranks, link)
        volume = num_bytes * bus_factor(op, num_ranks)
        steps = ring_steps(op, num_ranks)
        return min(
            base + steps * RING_STEP_US[link][protocol] + volume / (bandwidth * ratio) * 1e6
            for protocol, (base, ratio) in RING_PROTOCOLS.items()
        )

    def ring_bytes_per_s(self, num_ranks: int, link: str) -> float:
        """Bus bandwidth of a ring."""
        if link == "pcie":
            return self.gpu.pcie_bytes_per_s * PCIE_RING_RATIO
        if self.gpu.compute_capability == "7.0":
            return CUBE_MESH_BUSBW[min(max(num_ranks, 2), 8)]
        return self.gpu.nvlink_bytes_per_s * NVLINK_RING_RATIO


def fit_collectives(gpu: GpuConfig, rows: pd.DataFrame) -> Fits:
    """One table over sizes for each operation, type and number of GPUs of one node."""
    link = "nvlink" if gpu.nvlink_bytes_per_s else "pcie"
    rows = rows[(rows.num_nodes == 1) & (rows.link == link) & (rows.num_bytes > 0)]
    fits: Fits = {}
    for (op, dtype, num_gpus), group in rows.groupby(["op", "dtype", "num_gpus"]):
        sizes = group.num_bytes.to_numpy(np.float64)
        log_us = np.log(group.duration_us.to_numpy(np.float64))
        grid = fit_log_grid((sizes,), log_us)
        fits[f"collective/{op}/{dtype}/{int(num_gpus)}"] = Fit(grid=grid, way="grid")
    return fits
