# From measured tables and training programs to a report of predicted iterations.
#
#   snakemake --cores 32                                    the default sweep, to its report
#   snakemake --cores 32 --config sweep=NAME 'overrides=[gpu=a40]'
#
# Configuration lives in config/ (Hydra); Snakemake's own config knows `sweep` and `overrides` only.
from snakemake.utils import min_version

min_version("9.0")


include: "workflow/rules/common.smk"
include: "workflow/rules/estimators.smk"
include: "workflow/rules/capture.smk"
include: "workflow/rules/simulate.smk"
include: "workflow/rules/report.smk"


onstart:
    lock_directory()


rule all:
    """The report of the chosen sweep."""
    default_target: True
    input:
        f"results/{SWEEP}/report.html",
    localrule: True
