"""Configuration: from YAML groups and overrides to typed jobs, their commands and their identities."""

from maya.config.commands import job_command
from maya.config.compose import available_options, cluster_config, compose_job, gpu_config
from maya.config.identity import job_id, job_to_dict, trace_id, write_job_table
from maya.config.sweep import expand_sweep, load_sweep
from maya.config.validate import data_parallel_size, num_micro_batches, world_size

__all__ = [
    "available_options",
    "cluster_config",
    "compose_job",
    "data_parallel_size",
    "expand_sweep",
    "gpu_config",
    "job_command",
    "job_id",
    "job_to_dict",
    "load_sweep",
    "num_micro_batches",
    "trace_id",
    "world_size",
    "write_job_table",
]
