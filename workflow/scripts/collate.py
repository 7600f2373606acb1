"""Traces of ranks to one job (``maya.stages.collate_traces``)."""

from pathlib import Path

from maya.logs import redirect_output
from maya.stages import collate_traces

redirect_output(snakemake.log[0])
collate_traces(Path(snakemake.input.traces), Path(snakemake.output.job))
