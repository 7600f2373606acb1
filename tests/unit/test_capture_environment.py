"""What ranks find in their environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from maya.capture.environment import (
    TOOLS_DIR,
    common_environment,
    default_num_threads,
    gpu_properties,
    rank_environment,
)
from maya.capture.spec import CaptureSpec
from maya.config.schema import CaptureConfig, GpuConfig, ValueRule, ValuesConfig
from maya.errors import ConfigError

GPU = GpuConfig(
    name="toy",
    device_name="NVIDIA Toy",
    compute_capability="9.0",
    num_sms=4,
    memory_bytes=1 << 30,
    l2_bytes=1 << 20,
    shared_bytes_per_block_optin=65536,
    shared_bytes_per_sm=65536,
    sm_clock_hz=1.5e9,
    memory_clock_hz=1e9,
    memory_bus_bits=256,
    hbm_bytes_per_s=1e11,
    pcie_bytes_per_s=1e10,
    context_bytes=1 << 20,
    nccl_channels=24,
    nccl_channels_per_peer=32,
)


def make_spec(**changes) -> CaptureSpec:
    values = {"world_size": 1, "gpus_per_node": 8, "mode": "linked", "command": ("python", "t.py")}
    return CaptureSpec(gpu=GPU, output_dir=Path("out"), **(values | changes))


def test_gpu_properties_are_plain_pairs():
    pairs = dict(pair.split("=") for pair in gpu_properties(GPU).split(";"))
    assert pairs["device_name"] == "NVIDIA Toy"
    assert pairs["compute_capability"] == "9.0"
    assert pairs["memory_bytes"] == str(1 << 30)
    assert pairs["sm_clock_hz"] == "1500000000"
    assert all(pairs.values())


def test_ranks_get_what_torchrun_sets():
    env = rank_environment(make_spec(world_size=16), rank=11, master_port=1234)
    expected = {
        "RANK": "11",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "16",
        "LOCAL_WORLD_SIZE": "8",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_PORT": "1234",
    }
    assert env | expected == env


@pytest.mark.parametrize("mode", ["linked", "solo"])
def test_rules_for_values_are_those_of_the_mode(mode):
    rules = [ValueRule(name=name, mode=name, sites=["a.py"]) for name in ("any", "linked", "solo")]
    spec = make_spec(mode=mode, ranks=(0,), capture=CaptureConfig(values=ValuesConfig(builtin=rules)))
    env = common_environment(spec, Path("emulator"), Path("exchange"), {"PATH": "/bin"})
    assert [rule["name"] for rule in json.loads(env["MAYA_VALUES"])] == ["any", mode]


def test_last_node_may_be_smaller():
    env = rank_environment(make_spec(world_size=10), rank=9, master_port=1)
    assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == ("1", "2")


def test_common_environment_extends_and_cleans_the_caller_s():
    inherited = {
        "LD_PRELOAD": "other.so",
        "PYTHONPATH": "mine",
        "CUDA_VISIBLE_DEVICES": "",
        "RANK": "7",
        "MAYA_TRACE_DIR": "old",
        "HOME": "/h",
    }
    env = common_environment(
        make_spec(world_size=16, env={"X": "1"}), Path("/emu"), Path("/dev/shm/x"), inherited
    )
    assert env["LD_PRELOAD"] == "libmaya_emulator.so:other.so"
    assert env["LD_LIBRARY_PATH"] == "/emu"
    assert env["PYTHONPATH"].endswith("/startup:mine")
    assert env["NVTX_INJECTION64_PATH"] == "/emu/libmaya_emulator.so"
    assert env["MAYA_NUM_DEVICES"] == "8"
    assert env["X"] == "1"
    assert not {"CUDA_VISIBLE_DEVICES", "RANK", "MAYA_TRACE_DIR"} & env.keys()


def test_the_user_s_error_handling_of_nccl_goes_before_torchrun_s():
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    for inherited, expected in (({}, "1"), ({name: "3"}, "3")):
        assert common_environment(make_spec(), Path("/emu"), Path("/x"), inherited)[name] == expected


def test_a_wait_in_vain_ends_before_the_capture_does():
    env = common_environment(make_spec(capture=CaptureConfig(timeout_s=15)), Path("/emu"), Path("/x"), {})
    assert env["MAYA_EXCHANGE_TIMEOUT_S"] == "8"


def test_launchers_find_the_own_interpreter_and_tools_of_a_driver():
    env = common_environment(make_spec(), Path("/emu"), Path("/x"), {"PATH": "/usr/bin"})
    assert env["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin", str(TOOLS_DIR)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "NVIDIA Toy"),
        (["-L"], "GPU 1: NVIDIA Toy (UUID: GPU-"),
        (["--query-gpu=index,memory.total,fan.speed", "--format=csv,noheader"], "1, 1024 MiB, [N/A]\n"),
    ],
)
def test_nvidia_smi_shows_the_emulated_gpus(arguments, expected):
    env = {"PATH": os.environ["PATH"], "MAYA_GPU": gpu_properties(GPU), "MAYA_NUM_DEVICES": "2"}
    command = [TOOLS_DIR / "nvidia-smi", *arguments]
    result = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert expected in result.stdout


def test_caches_of_compiled_kernels_are_apart_for_each_gpu():
    env = common_environment(make_spec(), Path("/emu"), Path("/x"), {"XDG_CACHE_HOME": "/c"})
    assert env["TORCHINDUCTOR_CACHE_DIR"] == "/c/maya/toy/inductor"
    assert env["TRITON_CACHE_DIR"] == "/c/maya/toy/triton"


def test_one_gpu_programs_see_one_gpu():
    assert common_environment(make_spec(), Path("/emu"), Path("/x"), {})["MAYA_NUM_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("world_size", "env", "expected"),
    [(1, {}, {}), (2, {}, {"OMP_NUM_THREADS": "1"}), (2, {"OMP_NUM_THREADS": "4"}, {})],
)
def test_thread_count_as_torchrun_sets_it(world_size, env, expected):
    assert default_num_threads(make_spec(world_size=world_size), env) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command": ()}, "--"),
        ({"world_size": 0}, "world_size is 0"),
        ({"mode": "both"}, "both"),
        ({"mode": "solo"}, "at least one rank"),
        ({"mode": "solo", "ranks": (8,), "world_size": 8}, "0 to 7"),
        ({"mode": "solo", "ranks": (1, 1), "world_size": 8}, "each once"),
        ({"ranks": (0,), "world_size": 2}, "all ranks"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_spec(**changes)
