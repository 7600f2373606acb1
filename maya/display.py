"""What the command line shows: progress on a terminal's stderr, short tables on stdout."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from maya.predict import Prediction
from maya.simulator.summary import Summary
from maya.training_run import Progress as ReportProgress

_MAX_ROWS = 5  # of a list that may be long


@contextmanager
def progress_display() -> Iterator[ReportProgress]:
    """Shows the running step with a bar, and finished ones above it; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        current: dict[str, Any] = {"what": None, "task": None}

        def finish() -> None:
            if current["task"] is not None:
                total = next(task.total for task in bars.tasks if task.id == current["task"])
                bars.update(current["task"], completed=total)
                bars.stop_task(current["task"])

        def report(what: str, done: int, total: int) -> None:
            if what != current["what"]:
                finish()
                current["what"], current["task"] = what, bars.add_task(what, total=total)
            bars.update(current["task"], completed=done, total=total)

        yield report
        finish()


def print_prediction(prediction: Prediction) -> None:
    """A short table of a prediction, with what its capture took."""
    cost = prediction.host_cost
    ranks = prediction.captured_ranks
    host_calls = prediction.summary.host_calls
    recorded = f"{host_calls:,.0f} recorded per iteration, " if host_calls else ""
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    print_summary(
        prediction.summary,
        ("captured", f"{len(ranks)} of {prediction.summary.world_size} ranks ({shown})"),
        (
            "emulation",
            f"{cost.calls:,} device calls, {recorded}median overhead {cost.overhead_us_median:.2f} us "
            f"a call, {cost.calls_per_s:,.0f} calls per second",
        ),
    )


def print_summary(summary: Summary, *more: tuple[str, str]) -> None:
    """A short table of the numbers of a simulated run."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in (*summary_rows(summary), *more):
        table.add_row(name, text)
    Console(highlight=False).print(table)


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """Labels and texts of what a prediction says first."""
    rows = [("GPU", f"{summary.world_size} x {summary.gpu}")]
    if summary.oom:
        rows.append(
            ("out of memory", f"rank {summary.oom_rank} could not get {gib(summary.oom_bytes or 0)} more")
        )
    times = {
        "iteration time": summary.iteration_time_s,
        "  compute": summary.compute_s,
        "  exposed communication": summary.exposed_communication_s,
        "  host-bound": summary.host_bound_s,
    }
    rows += [(name, milliseconds(time_s)) for name, time_s in times.items() if time_s is not None]
    if summary.hfu is not None:
        rows.append(("HFU", f"{summary.hfu:.1%}"))
    rows += memory_rows(summary)
    if summary.operations:
        shares = ", ".join(f"{basis} {share:.0%}" for basis, share in summary.duration_basis.items() if share)
        rows += [
            ("operations", f"{summary.operations:,.0f} per iteration and rank"),
            ("durations from", shares),
        ]
    if summary.unemulated_calls:
        calls = ", ".join(f"{name} ({count})" for name, count in sorted(summary.unemulated_calls.items()))
        rows.append(("not emulated", calls))
    if summary.made_up_reads:
        rows.append(("made-up values", made_up_reads_text(summary.made_up_reads)))
    return rows


def memory_rows(summary: Summary) -> list[tuple[str, str]]:
    """The peak of the heaviest rank, of each class of ranks where they differ, and what fills it."""
    peak = gib(summary.peak_memory_bytes)
    if len(summary.memory) > 1:
        peak += f" of rank {summary.peak_memory_rank}, the heaviest"
    rows = [("peak memory", peak)]
    if len(summary.memory) > 1:
        shown = sorted(summary.memory, key=lambda rank: -rank["peak_memory_bytes"])[:_MAX_ROWS]
        texts = [
            f"{rank['rank']} (of {rank['num_ranks']}): {gib(rank['peak_memory_bytes'])}" for rank in shown
        ]
        if len(summary.memory) > _MAX_ROWS:
            texts.append("...")
        rows.append(("  by rank", ", ".join(texts)))
    heaviest = next((rank for rank in summary.memory if rank["rank"] == summary.peak_memory_rank), None)
    if heaviest is not None:
        parts = {"PyTorch": "peak_reserved_bytes", "NCCL": "nccl_bytes", "context": "context_bytes"}
        texts = [f"{name} {gib(heaviest[key])}" for name, key in parts.items()]
        rows.append(("  taken by", ", ".join(texts)))
    for number, allocations in enumerate(summary.peak_allocations[:_MAX_ROWS]):
        count = f" in {allocations['count']}" if allocations["count"] > 1 else ""
        text = f"{size(allocations['bytes'])}{count}: {allocations['made_by']}"
        rows.append(("  tensors" if number == 0 else "", text))
    return rows


def made_up_reads_text(reads: list[dict[str, Any]]) -> str:
    """E.g. "12 host reads returned made-up values: train.py:30 in main (12)"."""
    counts: Counter[str] = Counter()
    for read in reads:
        counts[read["site"]] += read["count"]
    total, shown = counts.total(), counts.most_common(_MAX_ROWS)
    sites = ", ".join(f"{site} ({count})" for site, count in shown)
    more = f" and {len(counts) - len(shown)} more places" if len(counts) > len(shown) else ""
    return f"{total} host reads returned made-up values: {sites}{more}"


def milliseconds(time_s: float) -> str:
    return f"{time_s * 1e3:,.2f} ms"


def size(size_bytes: float) -> str:
    return gib(size_bytes) if size_bytes >= 2**30 else f"{size_bytes / 2**20:,.0f} MiB"


def gib(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:,.2f} GiB"
