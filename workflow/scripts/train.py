"""Measurements to the estimator of a GPU (``maya.estimators.train``)."""

from pathlib import Path

from maya.config.identity import gpu_from_dict
from maya.estimators.train import train
from maya.logs import redirect_output

redirect_output(snakemake.log[0])
train(
    [Path(snakemake.input.packaged), *map(Path, snakemake.input.measurements)],
    gpu_from_dict(snakemake.params.gpu),
    Path(snakemake.output.card).parent,
    shipped=[Path(card).parent for card in snakemake.input.shipped],
    lenders=[Path(card).parent for card in snakemake.input.lenders],
)
