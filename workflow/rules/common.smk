"""What the rules share: the jobs of the sweep, and the builtin values that go into params."""

import fcntl
from dataclasses import replace
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError

from maya.config import expand_sweep
from maya.config.compose import gpu_config
from maya.config.identity import gpu_to_dict, job_id, job_to_dict, trace_id
from maya.config.schema import ClusterConfig
from maya.errors import ConfigError
from maya.estimators.inputs import inputs_of as estimator_inputs
from maya.paths import source_digest

UNKNOWN_KEYS = set(config) - {"sweep", "overrides", "measurements"}
if UNKNOWN_KEYS:
    raise WorkflowError(
        f"--config {', '.join(sorted(UNKNOWN_KEYS))}: unknown. "
        "Give sweep=NAME, 'overrides=[key=value,...]' and measurements=DIR only."
    )

SWEEP = str(config.get("sweep", "quickstart"))
MEASUREMENTS = Path(config["measurements"]) if "measurements" in config else None
OVERRIDES = [str(override) for override in config.get("overrides", [])]
try:
    JOBS = {job_id(job): job for job in expand_sweep(SWEEP, OVERRIDES)}
except ConfigError as error:
    raise WorkflowError(str(error)) from None
TRACES = {trace_id(job): job for job in JOBS.values()}
GPUS = {job.gpu.name: job.gpu for job in JOBS.values()}


wildcard_constraints:
    job_id="[0-9a-f]{12}",
    trace_id="[0-9a-f]{12}",
    gpu="[a-z0-9_]+",
    sweep="[A-Za-z0-9_]+",


def job_facts(job_id):
    """The configuration of a job as builtin values with sorted keys."""
    return job_to_dict(JOBS[job_id])


def trace_facts(trace_id):
    """The configuration that a trace is captured from, without what the program cannot see."""
    job = TRACES[trace_id]
    cluster = ClusterConfig(name="", nodes=job.cluster.nodes, gpus_per_node=job.cluster.gpus_per_node)
    return job_to_dict(replace(job, cluster=cluster))


def trace_of_job(job_id):
    return trace_id(JOBS[job_id])


def gpu_of_job(job_id):
    return JOBS[job_id].gpu.name


def gpu_facts(gpu):
    """The facts of a GPU as builtin values: a changed fact trains its estimators again."""
    facts = (job_to_dict(job)["gpu"] for job in JOBS.values() if job.gpu.name == gpu)
    return next(facts, None) or gpu_to_dict(gpu_config(gpu))


@cache
def inputs_of(gpu):
    """What the estimator of a GPU is made from, besides packaged tables."""
    return estimator_inputs(GPUS.get(gpu) or gpu_config(gpu), MEASUREMENTS)


def lender_cards(gpu):
    """Cards of the estimators of other GPUs that stand in, the most alike first."""
    return [
        lender.regressors / "card.json" if lender.regressors else f"results/estimators/{lender.gpu}/card.json"
        for lender in inputs_of(gpu).lenders
    ]


def lock_directory():
    """Keeps a second run out of this directory for as long as this process lives."""
    global directory_lock  # closed, and with it unlocked, when the process ends, however it does
    directory_lock = Path(".snakemake/run.lock").open("w")
    try:
        fcntl.flock(directory_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WorkflowError(
            f"Another run is at work in {Path.cwd()}. Wait for its end, or stop it."
        ) from None
