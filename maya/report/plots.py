"""The pictures of a report, drawn with matplotlib; one function a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")  # the workflow has no display
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from maya.estimators.annotation import BASES

if TYPE_CHECKING:
    from maya.report.report import JobReport

# Okabe and Ito (2008), a palette that colour-blind readers can tell apart.
COMPUTE, COMMUNICATION, HOST, OTHER, MEMORY = "#0072B2", "#D55E00", "#999999", "#F0E442", "#009E73"
BASIS_COLOURS = dict(
    zip(BASES, ("#009E73", "#56B4E9", "#0072B2", "#F0E442", "#E69F00", "#CC79A7"), strict=True)
)


def iteration_times(jobs: Sequence["JobReport"]) -> Figure:
    """Stacked bars: where the time of one iteration goes, in milliseconds."""
    figure, axes = _bars(jobs)
    parts = (
        ("compute", "compute_s", COMPUTE),
        ("exposed communication", "exposed_communication_s", COMMUNICATION),
        ("host-bound", "host_bound_s", HOST),
    )
    left = np.zeros(len(jobs))
    positions = range(len(jobs))
    for label, key, colour in parts:
        values = np.array([(job.summary[key] or 0.0) * 1e3 for job in jobs])
        axes.barh(positions, values, left=left, color=colour, label=label, height=0.6)
        left += values
    totals = np.array([(job.summary["iteration_time_s"] or 0.0) * 1e3 for job in jobs])
    axes.barh(
        positions, np.maximum(totals - left, 0), left=left, color=OTHER, label="copies and gaps", height=0.6
    )
    for position, job, total in zip(positions, jobs, totals, strict=True):
        text = " out of memory" if job.summary["oom"] else f" {total:,.0f} ms"
        axes.text(max(total, left[position]), position, text, va="center")
    axes.set_xlabel("predicted iteration time (ms)")
    axes.set_xlim(right=max(totals.max(), 1e-9) * 1.15)
    _legend_above(figure)
    return figure


def peak_memory(jobs: Sequence["JobReport"]) -> Figure:
    """Peak device memory of the fullest rank against the capacity of its GPU, in GiB."""
    figure, axes = _bars(jobs)
    positions = range(len(jobs))
    peaks = np.array([job.summary["peak_memory_bytes"] for job in jobs]) / 2**30
    capacities = np.array([job.capacity_bytes for job in jobs]) / 2**30
    allocated = np.array([job.summary["peak_allocated_bytes"] for job in jobs]) / 2**30
    axes.barh(positions, capacities, color="white", edgecolor="black", height=0.75, label="capacity")
    axes.barh(positions, peaks, color=MEMORY, alpha=0.5, height=0.6, label="peak: reserved, context, NCCL")
    axes.barh(positions, allocated, color=MEMORY, height=0.6, label="of it tensors (allocated)")
    for position, job, peak, capacity in zip(positions, jobs, peaks, capacities, strict=True):
        text = " out of memory" if job.summary["oom"] else f" {peak:.1f} GiB"
        axes.text(max(peak, capacity), position, text, va="center")
    axes.set_xlim(right=max(peaks.max(), capacities.max()) * 1.2)
    axes.set_xlabel("device memory of the fullest rank (GiB)")
    _legend_above(figure)
    return figure


def memory_profile(job: "JobReport") -> dict[str, Any] | None:
    """The profile of the heaviest rank in ``job.memory``; None where it has none."""
    profiles = {rank["rank"]: rank["profile"] for rank in job.memory["ranks"]}
    profile: dict[str, Any] | None = profiles.get(job.summary["peak_memory_rank"])
    return profile


def memory(job: "JobReport") -> Figure:
    """The memory of PyTorch's allocator over one iteration of the heaviest rank, and what fills it.

    Where an allocation failed there is no course, only what filled the memory then.
    """
    profile = memory_profile(job)
    assert profile is not None
    course = {name: np.array(column) for name, column in profile["course"].items()}
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, 3.9), layout="constrained", width_ratios=(1, 0.42), sharex=False
    )
    time_ms = course["time_us"] / 1e3
    allocated, reserved = (course[f"{kind}_bytes"] / 2**30 for kind in ("allocated", "reserved"))
    left.fill_between(time_ms, allocated, step="post", color=MEMORY, alpha=0.6, label="allocated")
    left.step(time_ms, reserved, where="post", color="black", label="reserved")
    peak_ms, peak = profile["time_us"] / 1e3, profile["allocated_bytes"] / 2**30
    left.plot(
        [peak_ms], [peak], marker="o", color=COMMUNICATION, linestyle="none", label=f"peak: {peak:.2f} GiB"
    )
    left.set_xlim(0, max(time_ms.max(initial=0), 1e-3))
    left.set_ylim(bottom=0)
    left.set_xlabel("host time in the iteration (ms)")
    left.set_ylabel(f"rank {job.summary['peak_memory_rank']} (GiB)")
    left.legend(loc="lower right", framealpha=0.9)
    rows = profile["allocations"]
    others = profile["allocated_bytes"] - sum(row["bytes"] for row in rows)
    bars = [(f"{row['made_by']} ({row['count']})", row["bytes"]) for row in rows] + [("all others", others)]
    positions = range(len(bars))
    right.barh(positions, [size / 2**30 for _, size in bars], color=MEMORY, height=0.7)
    right.set_yticks(positions, [_shortened(text) for text, _ in bars], fontsize=7)
    right.invert_yaxis()
    right.set_xlabel("live at the peak (GiB)")
    for axes in (left, right):
        _clean(axes)
    return figure


def _shortened(text: str, length: int = 78) -> str:
    return text if len(text) <= length else f"{text[: length // 2 - 1]}...{text[-(length // 2 - 2) :]}"


def duration_bases(jobs: Sequence["JobReport"]) -> Figure:
    """What the predicted device time rests on: shares by basis."""
    figure, axes = _bars(jobs)
    positions = range(len(jobs))
    left = np.zeros(len(jobs))
    for basis in BASES:
        values = np.array([100.0 * job.summary["duration_basis"].get(basis, 0.0) for job in jobs])
        axes.barh(positions, values, left=left, color=BASIS_COLOURS[basis], label=basis, height=0.6)
        for position, value, start in zip(positions, values, left, strict=True):
            if value >= 6:
                axes.text(start + value / 2, position, f"{value:.0f}", ha="center", va="center")
        left += values
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of device time (%)")
    _legend_above(figure)
    return figure


def timeline(job: "JobReport") -> Figure:
    """One iteration of every simulated rank: a lane per host thread and stream, coloured by use.

    ``job.timeline`` has the columns rank, lane, category (compute, communication, copy or host),
    start_us and end_us.
    """
    rows = job.timeline
    assert rows is not None
    colours = {"compute": COMPUTE, "communication": COMMUNICATION, "copy": OTHER, "host": HOST}
    lanes = list(dict.fromkeys(zip(rows["rank"], rows["lane"], strict=True)))
    figure, axes = plt.subplots(figsize=(10, 0.9 + 0.32 * len(lanes)), layout="constrained")
    for position, (rank, lane) in enumerate(lanes):
        in_lane = rows[(rows["rank"] == rank) & (rows["lane"] == lane)]
        for category, part in in_lane.groupby("category"):
            starts_ms, ends_ms = part["start_us"] / 1e3, part["end_us"] / 1e3
            spans = list(zip(starts_ms, ends_ms - starts_ms, strict=True))
            axes.broken_barh(spans, (position - 0.4, 0.8), facecolors=colours[str(category)], rasterized=True)
    axes.set_yticks(range(len(lanes)), [f"rank {rank}, {lane}" for rank, lane in lanes])
    axes.invert_yaxis()
    axes.set_xlim(0, rows["end_us"].max() / 1e3)
    axes.set_xlabel("time in the iteration (ms)")
    shown = [name for name in colours if name in set(rows["category"])]
    _legend_above(figure, [Patch(color=colours[name], label=name) for name in shown])
    _clean(axes)
    return figure


def _bars(jobs: Sequence["JobReport"]) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(10, 1.2 + 0.45 * len(jobs)), layout="constrained")
    axes.set_yticks(range(len(jobs)), [job.label for job in jobs])
    axes.invert_yaxis()
    _clean(axes)
    return figure, axes


def _legend_above(figure: Figure, handles: Sequence[Artist] | None = None) -> None:
    if handles is None:
        handles = figure.axes[0].get_legend_handles_labels()[0]
    figure.legend(handles=handles, ncols=4, loc="outside upper left", frameon=False)


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
