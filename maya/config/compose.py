"""From Hydra overrides to one typed job.

After this module no code sees a DictConfig: jobs are dataclasses of ``maya/config/schema.py``.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from maya.config.schema import CaptureConfig, ClusterConfig, GpuConfig, JobConfig
from maya.config.validate import validate_job, validate_values
from maya.errors import ConfigError
from maya.paths import config_dir

GROUPS = ("gpu", "cluster", "model", "framework", "values")


def _case(key: str, cases: dict[str, Any], otherwise: Any) -> Any:
    return cases.get(key, otherwise)


def _product(*factors: int) -> int:
    result = 1
    for factor in factors:
        result *= factor
    return result


@lru_cache(maxsize=1)
def _register() -> None:
    """Tell Hydra the types of a job, and OmegaConf the two functions that `config/` calls."""
    ConfigStore.instance().store(name="base_job", node=JobConfig)
    OmegaConf.register_new_resolver("case", _case)
    OmegaConf.register_new_resolver("product", _product)


def available_options(group: str) -> list[str]:
    """Names of the options of a group, e.g. the known GPUs."""
    return sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))


def check_option(group: str, name: object) -> None:
    """Raises: ConfigError when ``config/<group>/<name>.yaml`` does not exist."""
    options = available_options(group)
    if name in options:
        return
    raise ConfigError(
        f"{group}={name}: there is no {group} of that name in {config_dir() / group}."
        f"{did_you_mean(str(name), options)} Available: {', '.join(options)}."
    )


def did_you_mean(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1)
    return f" Did you mean {close[0]}?" if close else ""


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Read overrides in Hydra's grammar, sweeps among them.

    Raises: ConfigError for text outside the grammar, for keys that are added or deleted (`+a=1`, `~a`: a job
    has a fixed set of keys, and any options of its script) and for options of groups that do not exist.
    """
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except (OverrideParseException, HydraException) as error:
            raise ConfigError(
                f"{text!r} is not an override: write key=value, as in cluster.nodes=8. ({first_line(error)})"
            ) from None
        is_own_option = override.is_add() and override.key_or_group.startswith("framework.options.")
        if not is_own_option and (override.is_add() or override.is_delete() or override.is_force_add()):
            raise ConfigError(f"{text!r}: keys cannot be added or deleted, only set. Write key=value.")
        if override.key_or_group in GROUPS:
            for option in _values(override):
                check_option(override.key_or_group, option)
        parsed.append(override)
    return parsed


def _values(override: Override) -> list[Any]:
    if override.is_sweep_override():
        return list(override.sweep_iterator())
    return [override.value()]


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Compose the tree of one job; the types of its keys stay attached. Raises: ConfigError."""
    _register()
    for override in parse_overrides(overrides):
        if override.is_sweep_override():
            raise ConfigError(
                f"{override.input_line!r} stands for several jobs, but one is wanted here. "
                "Give one value, or put the axis into a sweep file in config/sweep/."
            )
    # A Hydra application that calls this function keeps its own global state.
    outer = dict(GlobalHydra.instance().__dict__)
    try:
        GlobalHydra.instance().clear()
        with initialize_config_dir(config_dir=str(config_dir()), version_base="1.3", job_name="maya"):
            return compose(config_name="job", overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise _explain(error, overrides) from None
    finally:
        GlobalHydra.instance().__dict__.update(outer)


def to_job(config: DictConfig, *, validate: bool = True) -> JobConfig:
    """Turn a composed tree into dataclasses and check that it describes a job that can run.

    Raises: ConfigError for values that are missing or do not fit together.
    """
    try:
        job = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "a key"
        raise ConfigError(
            f"{key} has no usable value ({first_line(error)}). Set it as {key}=VALUE or in its file below "
            f"{config_dir()}."
        ) from None
    assert isinstance(job, JobConfig)
    if validate:
        validate_job(job)
    return job


def compose_job(overrides: Sequence[str]) -> JobConfig:
    """One job from overrides of ``config/job.yaml``, e.g. ``["gpu=h100_sxm", "cluster.nodes=2"]``.

    Raises: ConfigError, one text that says what was given and what exists.
    """
    return to_job(compose_config(overrides))


def gpu_config(name: str) -> GpuConfig:
    """The GPU of ``config/gpu/<name>.yaml``. Raises: ConfigError for an unknown name."""
    gpu, _, _ = compose_target([f"gpu={name}"])
    return gpu


def cluster_config(name: str, overrides: Sequence[str] = ()) -> tuple[GpuConfig, ClusterConfig]:
    """A cluster and the GPU it is made of; ``overrides`` as for a job, e.g. ``cluster.nodes=4``.

    Raises: ConfigError for an unknown name or key.
    """
    gpu, cluster, _ = compose_target([f"cluster={name}", *overrides])
    return gpu, cluster


def compose_target(overrides: Sequence[str]) -> tuple[GpuConfig, ClusterConfig, CaptureConfig]:
    """Where and how a user's own command is to run: a job without model and framework.

    Raises: ConfigError, also for overrides of model and framework, which a command settles itself.
    """
    for override in parse_overrides(overrides):
        if override.key_or_group.split(".")[0] in ("model", "framework"):
            raise ConfigError(
                f"{override.input_line!r}: a training command brings its own model and framework. "
                "Leave the override or the command out."
            )
    config = compose_config(overrides)
    capture = _group(config, "capture")
    validate_values(capture)
    return _group(config, "gpu"), _group(config, "cluster"), capture


def _group(config: DictConfig, group: str) -> Any:
    try:
        return OmegaConf.to_object(config[group])
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"A key of {group} has no value ({first_line(error)}). Set it or its file in {config_dir()}."
        ) from None


def _explain(error: Exception, overrides: Sequence[str]) -> ConfigError:
    """One text for what Hydra and OmegaConf found wrong with ``overrides``."""
    known = known_keys()
    for override in parse_overrides(overrides):
        key = override.key_or_group
        if key not in known and key not in GROUPS:
            group, _, _ = key.partition(".")
            nearby = [k for k in known if k.startswith(group + ".")]
            if group == "gpu" and key.startswith("gpu.peak_flops."):
                continue
            options = ", ".join(nearby) if nearby else f"{', '.join(GROUPS)} and keys below them"
            return ConfigError(
                f"{override.input_line!r}: a job has no key {key}.{did_you_mean(key, known)} "
                f"It has: {options}."
            )
    cause = error.__cause__ or error
    return ConfigError(
        f"This configuration cannot be used: {first_line(error)}"
        f"{'' if cause is error else ' (' + first_line(cause) + ')'} "
        f"Given: {' '.join(overrides) or 'no overrides'}. Files: {config_dir()}."
    )


def known_keys() -> list[str]:
    """Every key of a job that an override can set, as ``framework.tp``."""
    keys = []
    for group in fields(JobConfig):
        group_type: Any = group.type
        keys += [f"{group.name}.{key.name}" for key in fields(group_type)]
    return keys


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
