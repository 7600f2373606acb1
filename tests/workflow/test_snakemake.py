"""The workflow: plans for every sweep, clear errors, and a small sweep from end to end."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
SWEEPS = sorted(path.stem for path in (ROOT / "config" / "sweep").glob("*.yaml"))


def command(*arguments: str, directory: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(ROOT / "Snakefile"),
        "--workflow-profile",
        str(ROOT / "profiles" / "default"),
        "--directory",
        str(directory),
        "--cores",
        "2",
        *arguments,
    ]


def snakemake(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments, directory=directory), capture_output=True, text=True)


def kill_after_first_capture(*arguments: str, directory: Path) -> None:
    """Starts a run, tries a second one beside it, and kills the first with no chance to clean up."""
    with (directory / "killed.log").open("w") as log:
        run = subprocess.Popen(
            command(*arguments, directory=directory), stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not any(directory.glob("results/traces/*/manifest.json")):
            assert run.poll() is None and time.monotonic() < deadline, (directory / "killed.log").read_text()
            time.sleep(0.1)
        second = snakemake(*arguments, directory=directory)
        assert second.returncode != 0 and "Another run is at work" in second.stdout + second.stderr
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_sweep_plans(sweep, tmp_path):
    planned = snakemake("--dry-run", "--config", f"sweep={sweep}", directory=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert "capture" in planned.stdout + planned.stderr


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (["swep=tiny"], "swep"),
        (["sweep=tyni"], "tiny"),
        (["sweep=tiny", "overrides=[framework.tpp=2]"], "framework.tpp"),
        (["sweep=tiny", "overrides=[gpu=h900]"], "h900"),
    ],
)
def test_a_wrong_key_or_value_is_named_without_a_traceback(config, expected, tmp_path):
    failed = snakemake("--dry-run", "--config", *config, directory=tmp_path)
    output = failed.stdout + failed.stderr
    assert failed.returncode != 0
    assert expected in output and "Traceback" not in output


@pytest.mark.emulator
def test_a_killed_sweep_continues_to_its_report_and_another_run_does_nothing(tmp_path):
    config = ("--config", "sweep=tiny", "overrides=[gpu=h100_sxm]")
    kill_after_first_capture(*config, directory=tmp_path)
    first = snakemake(*config, directory=tmp_path)
    output = first.stdout + first.stderr
    assert first.returncode == 0, output
    assert output.count("(Rule: capture)") < 3
    table = pd.read_csv(tmp_path / "results" / "tiny" / "table.csv")
    assert len(table) == 3 and (table["iteration_time_s"] > 0).all() and not table["oom"].any()
    assert (table["peak_memory_bytes"] > 0).all()
    page = (tmp_path / "results" / "tiny" / "report.html").read_text()
    assert page.count("<img") == 3 + 2 * 3  # comparisons; memory and timeline of each job

    second = snakemake(*config, directory=tmp_path)
    assert second.returncode == 0 and "Nothing to be done" in second.stdout + second.stderr

    # What is lost is made again, and only that.
    shutil.rmtree(tmp_path / "results" / "simulations")
    (tmp_path / "results" / "tiny" / "report.html").unlink()
    third = snakemake(*config, directory=tmp_path)
    assert third.returncode == 0
    output = third.stdout + third.stderr
    assert output.count("(Rule: simulate)") == 3 and "(Rule: report)" in output
    assert "(Rule: capture)" not in output and "(Rule: collate)" not in output
