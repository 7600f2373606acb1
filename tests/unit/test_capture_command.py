"""Training commands as users type them."""

import sys
from pathlib import Path

import pytest

from maya.capture import command as command_module
from maya.capture.command import Target, parse_command
from maya.errors import ConfigError


def parse(text: str):
    return parse_command(tuple(text.split()))


def test_script_keeps_its_own_options():
    command = parse("python train.py --lr 1 -m --nnodes 2")
    assert command.launcher == "python"
    assert command.target == Target(
        kind="script", name="train.py", arguments=("--lr", "1", "-m", "--nnodes", "2")
    )
    assert command.world_size(gpus_per_node=8) == 1
    assert command.is_own_python
    assert command.interpreter == (sys.executable,)


def test_module():
    command = parse("python3 -u -m pkg.train a")
    assert command.target == Target(kind="module", name="pkg.train", arguments=("a",))
    assert command.interpreter == (sys.executable, "-u")
    assert command.is_own_python


@pytest.mark.parametrize("options", ["-O", "-X dev", "-W error", "-I"])
def test_interpreter_options_need_a_fresh_process(options):
    command = parse(f"python {options} train.py a")
    assert not command.is_own_python
    assert command.interpreter == (sys.executable, *options.split())
    assert command.target.argv(command.interpreter) == (sys.executable, *options.split(), "train.py", "a")


def test_other_interpreter_is_left_as_it_is(tmp_path):
    command = parse(f"{tmp_path}/bin/python train.py")
    assert command.interpreter == (f"{tmp_path}/bin/python",)
    assert not command.is_own_python


def test_torchrun_of_another_environment_brings_its_python(tmp_path):
    command = parse(f"{tmp_path}/bin/torchrun train.py")
    assert command.interpreter == (f"{tmp_path}/bin/python",)
    own = Path(sys.executable).with_name("torchrun")
    assert parse(f"{own} train.py").is_own_python


@pytest.mark.parametrize(
    ("text", "world_size", "kind", "name"),
    [
        ("torchrun train.py", 1, "script", "train.py"),
        ("torchrun --nproc-per-node 8 train.py --x", 8, "script", "train.py"),
        ("torchrun --nproc_per_node=8 --nnodes=2:4 train.py", 32, "script", "train.py"),
        ("torchrun --standalone --nproc-per-node gpu -m pkg.train", 4, "module", "pkg.train"),
        ("torchrun --nnodes 2 --nproc-per-node auto --no-python ./run.sh", 8, "executable", "./run.sh"),
        ("torchrun --rdzv-backend c10d --rdzv-endpoint h:1 --tee 3 --log-dir l t.py", 1, "script", "t.py"),
        ("torchrun --nproc-per 2 --node_rank 0 --master-port 29500 t.py", 2, "script", "t.py"),
        ("python -m torch.distributed.run --nproc-per-node 2 t.py", 2, "script", "t.py"),
    ],
)
def test_torchrun(text, world_size, kind, name):
    command = parse(text)
    assert command.launcher == "torchrun"
    assert command.world_size(gpus_per_node=4) == world_size
    assert (command.target.kind, command.target.name) == (kind, name)


def test_torchrun_options_after_the_script_are_the_script_s():
    command = parse("torchrun --nproc-per-node 2 train.py --nproc-per-node 9 -- --x")
    assert command.procs_per_node == 2
    assert command.target.arguments == ("--nproc-per-node", "9", "--", "--x")


def test_other_launchers_are_run_as_they_are():
    command = parse("accelerate launch --num_processes 2 train.py")
    assert command.launcher == "foreign"
    assert command.argv[0] == "accelerate"
    with pytest.raises(ConfigError, match="--world-size"):
        command.world_size(gpus_per_node=8)
    command = parse("python -m accelerate.commands.launch --num_processes 2 train.py")
    assert command.launcher == "foreign"
    assert command.argv == (
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--num_processes",
        "2",
        "train.py",
    )


def test_scripts_that_spawn_their_ranks_start_one_per_gpu(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch.multiprocessing as mp\nmp.spawn(main, nprocs=torch.cuda.device_count())\n"
    )
    command = parse(f"python {script} a")
    assert command.launcher == "foreign"
    assert command.argv == (sys.executable, str(script), "a")
    assert command.world_size(gpus_per_node=4) == 4
    script.write_text("# mp.spawn(main) is not used here\n")
    assert parse(f"python {script}").launcher == "python"
    script.write_text("process = mp.Process(target=work, args=(rank,))\n")
    assert parse(f"python {script}").launcher == "python"
    script.write_text(script.read_text() + "dist.init_process_group(backend)\n")
    assert parse(f"python {script}").launcher == "foreign"


@pytest.mark.parametrize("prefix", ["", "env "])
def test_variables_in_front_of_the_command_are_set(prefix):
    command = parse(f"{prefix}A=1 B_2=x=y torchrun --nproc-per-node 2 train.py C=3")
    assert command.env == {"A": "1", "B_2": "x=y"}
    assert command.launcher == "torchrun"
    assert command.target.arguments == ("C=3",)
    assert parse(f"{prefix}A=1 accelerate launch a.py").argv == ("accelerate", "launch", "a.py")


def test_visible_devices_count_where_there_is_a_process_for_each():
    command = parse("CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node gpu train.py")
    assert command.world_size(gpus_per_node=8) == 2
    assert command.env == {}
    assert parse("CUDA_VISIBLE_DEVICES=2,3 python train.py").world_size(gpus_per_node=8) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("torchrun --bogus 1 train.py", "--bogus"),
        ("torchrun --nproc-per-node many train.py", "many"),
        ("torchrun --nnodes x train.py", "nnodes"),
        ("torchrun", "training_script"),
        ("python", "no script"),
        ("python -m", "no script"),
        ("python -c pass", "python -c"),
        ("env A=1", "runs nothing"),
    ],
)
def test_wrong_commands(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)


@pytest.mark.slow
def test_torchrun_options_are_those_of_torch():
    from torch.distributed.run import get_args_parser

    def options(parser):
        return {option: action.nargs != 0 for action in parser._actions for option in action.option_strings}

    theirs = options(get_args_parser())
    for option in ("-h", "--help", "--print-completion", "--print_completion"):
        theirs.pop(option, None)
    assert options(command_module._torchrun_parser()) == theirs
