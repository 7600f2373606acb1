"""The workflow: plans for every sweep, clear errors, and a small sweep from end to end."""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
SWEEPS = sorted(path.stem for path in (ROOT / "config" / "sweep").glob("*.yaml"))


def snakemake(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
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
        ],
        capture_output=True,
        text=True,
    )


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
def test_a_sweep_runs_to_its_report_and_a_second_run_does_nothing(tmp_path):
    config = ("--config", "sweep=tiny", "overrides=[gpu=h100_sxm]")
    first = snakemake(*config, directory=tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    table = pd.read_csv(tmp_path / "results" / "tiny" / "table.csv")
    assert len(table) == 3 and (table["iteration_time_s"] > 0).all() and not table["oom"].any()
    assert (table["peak_memory_bytes"] > 0).all()
    page = (tmp_path / "results" / "tiny" / "report.html").read_text()
    assert page.count("<img") == 3 + 3

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
