"""Measured times of installed packages to one table of a GPU (``maya.estimators.ingest``)."""

from pathlib import Path

from maya.config.identity import gpu_from_dict
from maya.estimators.ingest import ingest
from maya.logs import redirect_output

redirect_output(snakemake.log[0])
ingest(gpu_from_dict(snakemake.params.gpu), Path(snakemake.output.profile))
