"""`maya predict` end to end: programs run on the emulated GPU, then their run is timed and simulated."""

import json
import textwrap
from pathlib import Path

import pytest

from maya import cli
from maya.config import expand_sweep, job_id
from maya.predict import Prediction, predict
from maya.training_run import TrainingRun, run_of_job

pytestmark = pytest.mark.emulator

REQUIRED = {  # keys of --json that users may rely on
    "iteration_time_s",
    "peak_memory_bytes",
    "exposed_communication_s",
    "host_bound_s",
    "hfu",
    "world_size",
    "gpu",
    "oom",
    "operations",
    "unemulated_calls",
    "duration_basis",
}

MLP = """
    import torch
    from torch import nn

    layers = [nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 4096)]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(20):
        loss = model(torch.randn(4096, 4096, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

DDP = """
    import os

    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("nccl")
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    model = DistributedDataParallel(nn.Linear(8192, 8192).to(device), device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        model(torch.randn(512, 8192, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def write_script(tmp_path):
    def write(text: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def predict_command(tmp_path: Path, *argv: str) -> dict:
    """Run `maya predict` and read what it wrote."""
    output = tmp_path / "out.json"
    border = argv.index("--")
    assert cli.main(["predict", *argv[:border], "--json", str(output), *argv[border:]]) == 0
    return json.loads(output.read_text())


def test_script_on_one_gpu(tmp_path, write_script, capsys):
    summary = predict_command(tmp_path, "--gpu", "h100_sxm", "--", "python", str(write_script(MLP)))
    assert summary.keys() >= REQUIRED
    assert (summary["gpu"], summary["world_size"], summary["oom"]) == ("h100_sxm", 1, False)
    assert summary["unemulated_calls"] == {}
    # Three GEMM passes of two 4096^3 layers less the first layer's input gradient, in fp32.
    assert sum(summary["matrix_flops"].values()) == pytest.approx(5 * 2 * 4096**3, rel=1e-6)
    assert 0 < summary["hfu"] < 1
    at_peak_s = 5 * 2 * 4096**3 / 67e12  # H100 SXM data sheet: 67 TFLOP/s in fp32 outside tensor cores
    assert at_peak_s < summary["iteration_time_s"] < 3 * at_peak_s
    assert summary["exposed_communication_s"] == 0
    assert sum(summary["duration_basis"].values()) == pytest.approx(1)
    # Weights, gradients and two moments of fp32, plus activations and the CUDA context.
    assert 4 * 4 * 2 * 4096**2 < summary["peak_memory_bytes"] < 3e9
    shown = capsys.readouterr().out
    assert "iteration time" in shown and "device calls" in shown


def test_slower_gpu_takes_longer(tmp_path, write_script):
    script = str(write_script(MLP))
    h100 = predict_command(tmp_path, "--gpu", "h100_sxm", "--", "python", script)
    a100 = predict_command(tmp_path, "--gpu", "a100_sxm_80gb", "--", "python", script)
    assert a100["iteration_time_s"] > 1.5 * h100["iteration_time_s"]


def test_linked_and_solo_agree(tmp_path, write_script):
    script = str(write_script(DDP))
    command = ("--", "torchrun", "--nproc-per-node", "2", script)
    linked = predict_command(tmp_path, "--gpu", "h100_sxm", "--mode", "linked", *command)
    solo = predict_command(tmp_path, "--gpu", "h100_sxm", "--mode", "solo", *command)
    assert linked["world_size"] == solo["world_size"] == 2
    assert linked["operations"] == solo["operations"]
    # Host gaps are measured, so they differ a little; device work is the same.
    assert solo["iteration_time_s"] == pytest.approx(linked["iteration_time_s"], rel=0.02)


def test_timeline_and_traces_are_kept_where_asked(tmp_path, write_script):
    timeline, traces = tmp_path / "timeline.json", tmp_path / "traces"
    options = ("--gpu", "a40", "--timeline", str(timeline), "--trace-dir", str(traces))
    predict_command(tmp_path, *options, "--", "python", str(write_script(MLP)))
    events = json.loads(timeline.read_text())["traceEvents"]
    assert any("gemm" in json.dumps(event).lower() for event in events)
    assert (traces / "rank00000.trace").is_file() and (traces / "manifest.json").is_file()


def test_model_that_does_not_fit_says_rank_and_size(tmp_path, write_script, capsys):
    script = write_script(
        """
        import torch

        kept = [torch.empty(10 * 2**30, dtype=torch.uint8, device="cuda") for _ in range(20)]
        """
    )
    summary = predict_command(tmp_path, "--gpu", "a40", "--", "python", str(script))
    assert summary["oom"] is True
    assert summary["iteration_time_s"] is None
    assert (summary["oom_rank"], summary["oom_bytes"]) == (0, 10 * 2**30)
    assert "out of memory" in capsys.readouterr().out


def test_program_that_fails_gives_its_own_error(tmp_path, write_script, capsys):
    script = write_script("raise RuntimeError('no data set at /data')")
    output = tmp_path / "out.json"
    assert cli.main(["predict", "--gpu", "a40", "--json", str(output), "--", "python", str(script)]) == 1
    shown = capsys.readouterr().err
    assert "no data set at /data" in shown and "Rank 0" in shown
    assert "maya/cli.py" not in shown
    assert not output.exists()


def tiny_jobs() -> dict[str, TrainingRun]:
    jobs = expand_sweep("tiny")
    return {f"{job.framework.name}-{job.gpu.name}-{job_id(job)}": run_of_job(job) for job in jobs}


@pytest.mark.parametrize("name", list(tiny_jobs()))
def test_workloads_of_the_repository(name):
    prediction = predict(tiny_jobs()[name])
    assert isinstance(prediction, Prediction)
    summary = prediction.summary
    assert summary.unemulated_calls == {}
    assert summary.iteration_time_s is not None and summary.iteration_time_s > 0
    assert summary.exposed_communication_s is not None and summary.exposed_communication_s > 0
