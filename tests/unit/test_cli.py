"""The command line without an emulator: parsing, exit codes, and one clear text for each mistake."""

import argparse
import re
import shlex
import signal
import subprocess
import sys

import pytest
from trace_writer import TraceWriter, write_job

from maya import cli
from maya.config import compose_job
from maya.config.compose import compose_target
from maya.errors import ConfigError
from maya.training_run import TrainingRun, resolve_mode, run_of_command, run_of_job


def subparsers() -> dict[str, argparse.ArgumentParser]:
    (action,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def command_run(command: str, *overrides: str, world_size: int | None = None) -> TrainingRun:
    gpu, cluster, capture = compose_target(overrides)
    return run_of_command(shlex.split(command), gpu, cluster, capture, world_size)


@pytest.mark.parametrize("stage", sorted(subparsers()))
def test_help_shows_an_example_that_parses(stage):
    epilog = subparsers()[stage].epilog or ""
    examples = re.findall(r"^  (maya .*)$", epilog, re.MULTILINE)
    assert examples
    for example in examples:
        options, command = cli._split_command(shlex.split(example)[1:])
        args = cli._parser().parse_args(options)
        assert args.stage == stage
        if stage == "predict" and command is None:
            compose_job(args.overrides)


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        (["predict"], 2, "nothing to run"),
        (["predict", "--gpu", "h100"], 2, "nothing to run"),
        (["predict", "--gpu", "h100", "--", "python", "a.py"], 2, "gpu=h100"),
        (["predict", "--cluster", "dgx", "--", "python", "a.py"], 2, "cluster=dgx"),
        (["predict", "--gpu", "a40", "--"], 2, "No training command"),
        (["predict", "--gpu", "a40", "--", "python"], 2, "python"),
        (["predict", "--json", "absent/a.json", "--", "python", "a.py"], 2, "no folder absent"),
        (["predict", "model=gpt3_18b", "--", "python", "a.py"], 2, "brings its own model"),
        (["predict", "model=gpt3_1_3b", "--world-size", "8"], 2, "--world-size"),
        (["predict", "--world-size", "0", "--", "python", "a.py"], 2, "--world-size 0"),
        (["predict", "--iterations", "0", "--mode", "solo", "--", "python", "a.py"], 2, "capture.iterations"),
        (["predict", "--gpu", "a40", "--", "python", "no_such_file.py"], 2, "no_such_file.py"),
        (["collate", "x", "--output", "y", "--", "python"], 2, "takes no training command"),
        (["ingest", "h100", "--output", "x"], 2, "gpu=h100"),
        (["report", "quickstrat"], 2, "Did you mean quickstart?"),
        (["trace", "no_such_file.trace"], 1, "no_such_file.trace"),
        (["collate", "no_such_folder", "--output", "y"], 1, "no_such_folder"),
    ],
)
def test_mistakes_give_one_text_and_an_exit_code(argv, code, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == code
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.startswith("maya")
    assert "Traceback" not in captured.err and captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_unknown_option_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["predict", "--gpus", "h100", "--", "python", "a.py"])
    assert exit_.value.code == 2


def test_everything_after_two_dashes_is_the_command():
    assert cli._split_command(["predict", "--", "python", "a.py", "--", "b"]) == (
        ["predict"],
        ["python", "a.py", "--", "b"],
    )
    assert cli._split_command(["predict", "a=1"]) == (["predict", "a=1"], None)


@pytest.mark.parametrize(
    ("command", "overrides", "world_size", "expected"),
    [  # expected: world size, GPUs per node, nodes
        ("python a.py", (), None, (1, 1, 1)),
        ("python a.py", (), 16, (16, 8, 2)),
        ("torchrun --nproc-per-node 8 a.py", (), None, (8, 8, 1)),
        ("torchrun --nproc-per-node 8 a.py", (), 64, (64, 8, 8)),
        ("torchrun --nproc-per-node 4 --nnodes 2 a.py", (), None, (8, 4, 2)),
        ("torchrun --nproc-per-node gpu a.py", ("cluster.gpus_per_node=4",), None, (4, 4, 1)),
        ("torchrun --nproc-per-node 8 a.py", (), 2, (2, 2, 1)),
    ],
)
def test_world_of_a_command(command, overrides, world_size, expected):
    run = command_run(command, *overrides, world_size=world_size)
    assert (run.world_size, run.gpus_per_node, run.cluster.nodes) == expected
    assert run.cluster.gpus_per_node == run.gpus_per_node


def test_world_that_does_not_fill_its_nodes_is_refused():
    with pytest.raises(ConfigError, match="12 does not fill nodes of 8"):
        command_run("torchrun --nproc-per-node 8 a.py", world_size=12)


def test_auto_mode_depends_on_the_number_of_ranks():
    job = compose_job(["cluster.gpus_per_node=2"])
    assert resolve_mode(run_of_job(job)) == "linked"
    assert resolve_mode(run_of_job(compose_job([]))) == "solo"
    assert resolve_mode(run_of_job(compose_job(["capture.mode=linked"]))) == "linked"
    assert resolve_mode(command_run("torchrun --nproc-per-node 8 a.py")) == "solo"
    assert resolve_mode(command_run("accelerate launch a.py", world_size=8)) == "linked"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ending_signals_unwind(number, tmp_path):
    program = (
        "import maya.cli, os, signal\n"
        f"maya.cli._collate = lambda args: os.kill(os.getpid(), {int(number)})\n"
        "try:\n"
        "    maya.cli.main(['collate', 'x', '--output', 'y'])\n"
        "finally:\n"
        "    print('unwound')\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (128 + number, "unwound\n")


def test_job_that_uses_no_gpu_has_no_time(tmp_path, capsys):
    writer = TraceWriter()
    for number in range(1, 5):
        writer.iteration(number)
    write_job(tmp_path / "traces", [writer])
    assert cli.main(["collate", str(tmp_path / "traces"), "--output", str(tmp_path / "job")]) == 0
    assert cli.main(["simulate", str(tmp_path / "job")]) == cli.EXIT_FAILED
    assert "No rank uses a GPU" in capsys.readouterr().err


def test_trace_prints_records_with_their_fields(tmp_path, capsys):
    writer = TraceWriter(rank=3)
    writer.kernel("axpy", stream=7, grid=4, gap_ns=5000)
    writer.record("device_sync", gap_ns=1000)
    path = writer.write(tmp_path)
    assert cli.main(["trace", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "rank 3" in lines[0] and "complete" in lines[0]
    assert re.fullmatch(r"\s+5\.00\s+thread0  kernel stream=7 name=axpy grid_x=4 .*shared_bytes=0", lines[2])
    assert re.fullmatch(r"\s+1\.00\s+thread0  device_sync", lines[3])
    assert cli.main(["trace", str(path), "--limit", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "# ... 2 more"  # the last one is the end record


def test_trace_of_a_killed_process_prints_what_is_there(tmp_path, capsys):
    writer = TraceWriter()
    writer.kernel("axpy")
    path = writer.write(tmp_path, complete=False)
    assert cli.main(["trace", str(path)]) == 0
    assert "incomplete" in capsys.readouterr().out.splitlines()[0]


def test_trace_refuses_what_is_not_a_trace(tmp_path, capsys):
    path = tmp_path / "x.trace"
    path.write_text("hello")
    assert cli.main(["trace", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
