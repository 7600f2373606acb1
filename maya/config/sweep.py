"""A sweep file becomes a list of jobs.

A grid is a list of overrides in Hydra's grammar; ``a=1,2`` or ``a=range(1,5)`` spans an axis, and the
grid stands for the product of its axes. Composing a job costs Hydra about 0.1 s, so a job is composed
once for each choice of groups; the other values are then set on copies, with their types checked.
"""

import copy
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from maya.config.compose import (
    GROUPS,
    compose_config,
    did_you_mean,
    first_line,
    known_keys,
    parse_overrides,
    to_job,
)
from maya.config.expressions import evaluate
from maya.config.identity import job_id
from maya.config.schema import JobConfig, SweepConfig
from maya.config.validate import data_parallel_size, world_size
from maya.errors import ConfigError
from maya.paths import config_dir


def load_sweep(name: str) -> SweepConfig:
    """Read ``config/sweep/<name>.yaml``. Raises: ConfigError when it is missing or misspelt."""
    path = config_dir() / "sweep" / f"{name}.yaml"
    if not path.is_file():
        known = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise ConfigError(
            f"sweep={name}: there is no {path}.{did_you_mean(name, known)} Available: {', '.join(known)}."
        )
    try:
        sweep = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(SweepConfig), OmegaConf.load(path)))
    except (OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{path} is not a sweep: {first_line(error)}") from None
    assert isinstance(sweep, SweepConfig)
    return sweep


def expand_sweep(name: str, overrides: Sequence[str] = ()) -> list[JobConfig]:
    """All jobs of a sweep, in the order of its grids and axes, each job once.

    Args:
        name: a file of ``config/sweep/``.
        overrides: set for all grids; one of a key that a grid sets takes the grid's place.

    Raises: ConfigError for a file, key or value that cannot be used, and for a sweep without jobs.
    """
    sweep = load_sweep(name)
    composed: dict[tuple[str, ...], DictConfig] = {}
    jobs: dict[str, JobConfig] = {}
    for number, grid in enumerate(sweep.grids, start=1):
        for point in _points([*grid, *overrides]):
            try:
                job = _job_at(point, composed, sweep.constraints)
            except ConfigError as error:
                described = " ".join(text for text, _, _ in point)
                raise ConfigError(f"sweep {name}, grid {number}, job {described}: {error}") from None
            if job is not None:
                jobs.setdefault(job_id(job), job)
    if not jobs:
        raise ConfigError(
            f"sweep {name}: no job is left by the constraints {sweep.constraints} "
            f"and the overrides {list(overrides)}."
        )
    return list(jobs.values())


Setting = tuple[str, str, Any]  # text (key=value), key, value


def _points(overrides: Sequence[str]) -> Iterator[tuple[Setting, ...]]:
    """The product of the axes; of several overrides of one key the last counts."""
    axes = {override.key_or_group: override for override in parse_overrides(overrides)}
    return product(*(_settings(override) for override in axes.values()))


def _settings(override: Override) -> list[Setting]:
    key = override.key_or_group
    if not override.is_sweep_override():
        return [(f"{key}={override.get_value_element_as_str()}", key, override.value())]
    texts = override.sweep_string_iterator()
    return [
        (f"{key}={text}", key, value) for text, value in zip(texts, override.sweep_iterator(), strict=True)
    ]


def _job_at(
    point: Sequence[Setting], composed: dict[tuple[str, ...], DictConfig], constraints: Sequence[str]
) -> JobConfig | None:
    """The job at one point of a grid, None where a constraint excludes it."""
    groups = tuple(text for text, key, _ in point if key in GROUPS)
    if groups not in composed:
        composed[groups] = compose_config(groups)
    config = copy.deepcopy(composed[groups])
    keys = known_keys()
    for text, key, value in point:
        if key in GROUPS:
            continue
        if key not in keys:
            raise ConfigError(f"{text}: a job has no key {key}.{did_you_mean(key, keys)}")
        try:
            OmegaConf.update(config, key, value)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{text}: {first_line(error)}") from None
    job = to_job(config, validate=False)
    names = {
        "gpu": job.gpu,
        "cluster": job.cluster,
        "model": job.model,
        "framework": job.framework,
        "world_size": world_size(job),
        "data_parallel_size": data_parallel_size(job),
    }
    if not all(evaluate(constraint, names) for constraint in constraints):
        return None
    return to_job(config)
