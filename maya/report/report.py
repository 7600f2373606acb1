"""Brings the summaries of a sweep together into tables, plots and one HTML page."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from jinja2 import Environment, PackageLoader, select_autoescape
from matplotlib.figure import Figure

from maya.estimators.annotation import BASES
from maya.paths import write_whole
from maya.report import plots


@dataclass(frozen=True, kw_only=True, slots=True)
class JobReport:
    """One job as a report shows it.

    ``summary`` is the content of its summary.json (docs/metrics.md); ``timeline`` the rows that
    ``maya.report.plots.timeline`` draws, None for a job that went out of memory; ``memory`` the content of
    its memory.json (``maya.simulator.write_memory``).
    """

    job_id: str
    label: str
    gpu: str
    model: str
    recipe: str
    capacity_bytes: int
    summary: dict[str, Any]
    timeline: pd.DataFrame | None
    memory: dict[str, Any]


def results_table(jobs: Sequence[JobReport]) -> pd.DataFrame:
    """One row a job, with units in the column names: what table.csv and table.parquet hold."""
    return pd.DataFrame(
        [
            {
                "job_id": job.job_id,
                "model": job.model,
                "recipe": job.recipe,
                "gpu": job.gpu,
                "world_size": job.summary["world_size"],
                "iteration_time_s": job.summary["iteration_time_s"],
                "compute_s": job.summary["compute_s"],
                "exposed_communication_s": job.summary["exposed_communication_s"],
                "host_bound_s": job.summary["host_bound_s"],
                "hfu": job.summary["hfu"],
                "peak_memory_bytes": job.summary["peak_memory_bytes"],
                "oom": job.summary["oom"],
                "operations": job.summary["operations"],
                "unemulated_calls": sum(job.summary["unemulated_calls"].values()),
                **{f"{basis}_share": job.summary["duration_basis"].get(basis, 0.0) for basis in BASES},
            }
            for job in jobs
        ]
    )


def write_report(jobs: Sequence[JobReport], output_dir: Path, title: str, description: str = "") -> Path:
    """Writes table.csv, table.parquet, plots/*.png and report.html below ``output_dir``.

    The page embeds its pictures, so it can be sent as one file. Returns its path.
    """
    plot_dir = output_dir / "plots"
    plot_dir.mkdir(parents=True, exist_ok=True)
    table = results_table(jobs)
    table.to_csv(output_dir / "table.csv", index=False)
    table.to_parquet(output_dir / "table.parquet", index=False)

    pictures = {
        name: _save(draw(jobs), plot_dir / f"{name}.png")
        for name, draw in (
            ("iteration_times", plots.iteration_times),
            ("peak_memory", plots.peak_memory),
            ("duration_bases", plots.duration_bases),
        )
    }
    timelines = [
        (job.label, _save(plots.timeline(job), plot_dir / f"timeline_{job.job_id}.png"))
        for job in jobs
        if job.timeline is not None
    ]
    memories = [
        (job.label, _save(plots.memory(job), plot_dir / f"memory_{job.job_id}.png"))
        for job in jobs
        if plots.memory_profile(job) is not None
    ]
    environment = Environment(loader=PackageLoader("maya.report", "."), autoescape=select_autoescape(["j2"]))
    page = environment.get_template("report.html.j2").render(
        title=title,
        description=description,
        jobs=jobs,
        pictures=pictures,
        memories=memories,
        timelines=timelines,
        bases=BASES,
    )
    report = output_dir / "report.html"
    write_whole(report, page)
    return report


def _save(figure: Figure, path: Path) -> str:
    """Saves the figure and returns it as a data URI."""
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
