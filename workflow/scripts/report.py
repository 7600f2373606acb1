"""Summaries of all jobs of a sweep to tables, plots and a page (``maya.report.report_sweep``)."""

from pathlib import Path

from maya.config.identity import job_from_dict
from maya.logs import redirect_output
from maya.report import report_sweep

redirect_output(snakemake.log[0])
report_sweep(
    snakemake.wildcards.sweep,
    [job_from_dict(job) for job in snakemake.params.jobs],
    [Path(path).parent for path in snakemake.input.summaries],
    Path(snakemake.output.page).parent,
)
