"""Captures of one job agree with each other: alone or together, on a quiet machine or a busy one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from captured_job import device_operations

from maya import cli
from maya.collate import collate

pytestmark = pytest.mark.emulator

# Large enough micro-batches that the GPU is the bottleneck: a host-bound iteration is as unsteady as the
# machine that captures (docs/host-time.md), and says nothing about the captures.
GPT = (
    "cluster.gpus_per_node=4",
    "model=gpt3_1_3b",
    "model.num_layers=4",
    "framework.micro_batch_size=8",
    "framework.global_batch_size=32",
)
JOBS = {
    "fsdp2": (*GPT, "framework=fsdp2"),
    "megatron": (*GPT, "framework=megatron", "framework.tp=2", "framework.pp=2"),
}


@contextmanager
def other_core_busy() -> Iterator[None]:
    """Arithmetic on arrays beyond the second-level cache, on the last core this process may use."""
    core = max(os.sched_getaffinity(0))
    program = (
        f"import os; os.sched_setaffinity(0, [{core}]); import numpy; x = numpy.ones(10**6)\nwhile 1: x += x"
    )
    busy = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def run(folder: Path, name: str, mode: str) -> dict[str, Any]:
    """Predicts a job and keeps its traces; returns what `--json` wrote."""
    folder.mkdir()
    output = folder / "out.json"
    options = ("--gpu", "h100_sxm", "--mode", mode, "--trace-dir", str(folder / "traces"))
    assert cli.main(["predict", *options, "--json", str(output), *JOBS[name]]) == 0
    return json.loads(output.read_text())


@pytest.mark.parametrize("name", JOBS)
def test_linked_solo_and_busy_captures_agree(name: str, tmp_path: Path) -> None:
    solo = run(tmp_path / "solo", name, "solo")
    linked = run(tmp_path / "linked", name, "linked")
    with other_core_busy():
        busy = run(tmp_path / "busy", name, "solo")

    together = {rank.rank: rank for rank in collate(tmp_path / "linked" / "traces").ranks}
    alone = collate(tmp_path / "solo" / "traces").ranks
    assert len(together) == 4
    for rank in alone:
        operations = device_operations(rank)
        assert len(operations) > 100
        pd.testing.assert_frame_equal(operations, device_operations(together[rank.rank]))
    assert linked["iteration_time_s"] == pytest.approx(solo["iteration_time_s"], rel=0.02)
    assert busy["iteration_time_s"] == pytest.approx(solo["iteration_time_s"], rel=0.03)


def test_host_gaps_of_two_captures_agree(tmp_path: Path) -> None:
    """The host's own time, however little of it the iteration time shows."""
    host_s = []
    for number in range(2):
        folder = tmp_path / str(number)
        run(folder, "fsdp2", "solo")
        ops = collate(folder / "traces").ranks[0].ops
        host_s.append(np.sum(ops.gap_ns[ops.iteration == 0]) / 1e9)
    # Neighbours on the same processor make whole minutes of a virtual machine slower, by up to 1.6 times.
    assert max(host_s) < 2 * min(host_s)
