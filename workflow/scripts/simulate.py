"""A collated job to its timeline and summary (``maya.stages.simulate_collated``)."""

from pathlib import Path

from maya.config.identity import job_from_dict
from maya.logs import redirect_output
from maya.stages import simulate_collated

redirect_output(snakemake.log[0])
job = job_from_dict(snakemake.params.job)
simulate_collated(
    Path(snakemake.input.job),
    Path(snakemake.input.estimator).parent,
    job.gpu,
    job.cluster,
    summary=Path(snakemake.output.summary),
    timeline=Path(snakemake.output.timeline),
    lanes=Path(snakemake.output.lanes),
    memory=Path(snakemake.output.memory),
)
