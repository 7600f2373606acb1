"""A training program to the traces of its ranks (``maya.training_run.capture_run``)."""

from pathlib import Path

from maya.config.identity import job_from_dict
from maya.logs import redirect_output
from maya.training_run import capture_run, run_of_job

redirect_output(snakemake.log[0])
capture_run(run_of_job(job_from_dict(snakemake.params.job)), Path(snakemake.output.traces))
