"""Environment variables of the ranks: what torchrun would set, and what the emulator reads."""

import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path

from maya.capture.spec import CaptureSpec
from maya.config.schema import DEVICE_PROPERTIES, GpuConfig
from maya.errors import CaptureError

LIBRARY_NAME = "libmaya_emulator.so"
STARTUP_DIR = Path(__file__).parent / "startup"
"""Put on PYTHONPATH, so that its ``sitecustomize`` runs in every Python process below the capture."""
TOOLS_DIR = Path(__file__).parent / "tools"
"""Last on PATH: programs that come with a driver."""

_SET_BY_LAUNCHERS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
)


def gpu_properties(gpu: GpuConfig) -> str:
    """The text of ``MAYA_GPU``: ``key=value`` pairs joined by semicolons."""
    return ";".join(f"{key}={_plain(getattr(gpu, key))}" for key in DEVICE_PROPERTIES)


def _plain(value: object) -> str:
    return str(int(value)) if isinstance(value, float) else str(value)


def common_environment(
    spec: CaptureSpec, emulator_dir: Path, exchange: Path, inherited: dict[str, str]
) -> dict[str, str]:
    """The environment that all ranks share; nothing in it makes a process record."""
    env = {key: value for key, value in inherited.items() if not _is_dropped(key)}
    env.update(spec.env)
    if os.pathsep in str(emulator_dir):
        raise CaptureError(
            f"The emulator is in {emulator_dir}, and a folder with {os.pathsep!r} in its name cannot be "
            "searched for libraries. Set XDG_CACHE_HOME to another folder."
        )
    # By its bare name, as LD_PRELOAD is a list that spaces separate too.
    _prepend(env, "LD_PRELOAD", LIBRARY_NAME)
    _prepend(env, "LD_LIBRARY_PATH", str(emulator_dir))
    _prepend(env, "PYTHONPATH", str(STARTUP_DIR))
    # Launchers and shell scripts find the interpreter that Maya runs in, and what is missing without a GPU.
    _prepend(env, "PATH", str(Path(sys.executable).parent))
    env["PATH"] += os.pathsep + str(TOOLS_DIR)
    values = spec.capture.values
    rules = [rule for rule in (*values.rules, *values.builtin) if rule.mode in ("any", spec.mode)]
    cache = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "maya" / spec.gpu.name
    env.update(
        NVTX_INJECTION64_PATH=str(emulator_dir / LIBRARY_NAME),
        TRITON_LIBCUDA_PATH=str(emulator_dir),
        # Kernels compiled for one GPU must not be taken for another with the same device name.
        TORCHINDUCTOR_CACHE_DIR=str(cache / "inductor"),
        TRITON_CACHE_DIR=str(cache / "triton"),
        MAYA_GPU=gpu_properties(spec.gpu),
        MAYA_NUM_DEVICES=str(min(spec.gpus_per_node, spec.world_size)),
        MAYA_MODE=spec.mode,
        MAYA_WORLD_SIZE=str(spec.world_size),
        MAYA_EXCHANGE=str(exchange),
        # Less than the capture has: the rank that waits in vain can tell for whom, the capture cannot.
        MAYA_EXCHANGE_TIMEOUT_S=str(math.ceil(spec.capture.timeout_s / 2)),
        MAYA_STRICT="1" if spec.capture.strict else "0",
        MAYA_VALUES=json.dumps([asdict(rule) for rule in rules]),
        MAYA_ITERATIONS=f"{spec.capture.warmup_iterations},{spec.capture.iterations}",
    )
    env.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # as torchrun does where the user has not set it
    if spec.mode == "solo":
        # The NCCL watchdog would ask the store every second whether an absent rank has failed.
        env["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "0"
    return env


def rank_environment(spec: CaptureSpec, rank: int, master_port: int) -> dict[str, str]:
    """What torchrun sets for one rank (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
    node, local_rank = divmod(rank, spec.gpus_per_node)
    num_nodes = -(-spec.world_size // spec.gpus_per_node)
    return {
        "LOCAL_RANK": str(local_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(node),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": str(min(spec.gpus_per_node, spec.world_size - node * spec.gpus_per_node)),
        "WORLD_SIZE": str(spec.world_size),
        "GROUP_WORLD_SIZE": str(num_nodes),
        "ROLE_WORLD_SIZE": str(spec.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "maya",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def default_num_threads(spec: CaptureSpec, env: dict[str, str]) -> dict[str, str]:
    """torchrun sets OMP_NUM_THREADS=1 when it starts several ranks on a node and the user has not set it."""
    several = min(spec.world_size, spec.gpus_per_node) > 1
    return {"OMP_NUM_THREADS": "1"} if several and "OMP_NUM_THREADS" not in env else {}


def _is_dropped(key: str) -> bool:
    """Variables of the caller that describe other devices, another job or another capture."""
    return (
        key == "CUDA_VISIBLE_DEVICES"
        or key in _SET_BY_LAUNCHERS
        or key.startswith(("MAYA_", "TORCHELASTIC_"))
    )


def _prepend(env: dict[str, str], key: str, value: str) -> None:
    env[key] = value + (os.pathsep + env[key] if env.get(key) else "")
