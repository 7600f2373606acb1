"""The table that says what each job id of a sweep stands for (``maya.config.write_job_table``)."""

from pathlib import Path

from maya.config import write_job_table
from maya.config.identity import job_from_dict
from maya.logs import redirect_output

redirect_output(snakemake.log[0])
write_job_table([job_from_dict(job) for job in snakemake.params.jobs], Path(snakemake.output.table))
