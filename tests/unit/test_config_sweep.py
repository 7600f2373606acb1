"""Sweeps, constraints, and the ids of jobs and traces."""

import csv
from dataclasses import asdict

import pytest

from maya.config import compose_job, expand_sweep, job_id, job_to_dict, trace_id, write_job_table
from maya.config.expressions import evaluate
from maya.config.identity import job_from_dict
from maya.errors import ConfigError


@pytest.fixture
def sweep_file(tmp_path, monkeypatch):
    """Writes a sweep beside links to the repository's groups."""
    from maya.config import compose, sweep
    from maya.paths import config_dir

    real = config_dir()
    for path in real.iterdir():
        if path.name != "sweep":
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "sweep").mkdir()
    for module in (compose, sweep):
        monkeypatch.setattr(module, "config_dir", lambda: tmp_path)
    return lambda text: (tmp_path / "sweep" / "mine.yaml").write_text(text)


def test_quickstart_is_three_recipes_on_two_gpus():
    jobs = expand_sweep("quickstart")
    found = {(job.gpu.name, job.model.name, job.framework.name) for job in jobs}
    recipes = [("gpt3_1_3b", "fsdp2"), ("gpt3_1_3b", "megatron"), ("resnet50", "ddp")]
    assert found == {(gpu, *recipe) for gpu in ("h100_sxm", "a100_sxm_80gb") for recipe in recipes}
    assert len(jobs) == 6
    (megatron,) = {
        (j.framework.tp, j.framework.pp, j.framework.global_batch_size // j.framework.micro_batch_size // 2)
        for j in jobs
        if j.framework.name == "megatron"
    }
    assert megatron == (2, 2, 8)  # TP2 x PP2 x DP2 on 8 GPUs, 8 micro-batches


def test_sweep_equals_composition_of_each_job():
    for job in expand_sweep("quickstart", ["framework.micro_batch_size=4", "framework.global_batch_size=64"]):
        framework = job.framework
        overrides = [f"cluster={job.cluster.name}", f"model={job.model.name}", f"framework={framework.name}"]
        values = ("tp", "pp", "micro_batch_size", "global_batch_size", "sequence_parallel", "channels_last")
        overrides += [f"framework.{key}={getattr(framework, key)}" for key in values]
        assert asdict(compose_job(overrides)) == asdict(job)


def test_axes_constraints_and_overrides(sweep_file):
    sweep_file(
        """
name: mine
grids:
  - - framework=megatron
    - framework.tp=1,2,4
    - framework.pp=choice(1,2)
    - cluster.nodes=range(1,3)
constraints:
  - framework.tp * framework.pp <= 4
  - world_size == 16 or framework.tp != 4
"""
    )
    jobs = expand_sweep("mine")
    points = {(j.framework.tp, j.framework.pp, j.cluster.nodes) for j in jobs}
    expected = {
        (tp, pp, nodes)
        for tp in (1, 2, 4)
        for pp in (1, 2)
        for nodes in (1, 2)
        if tp * pp <= 4 and (nodes == 2 or tp != 4)
    }
    assert points == expected
    assert {j.framework.tp for j in expand_sweep("mine", ["framework.tp=2"])} == {2}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("name: mine\ngrid: []\n", ["mine.yaml", "grid"]),
        ("name: mine\ngrids: [[framework.tpp=1]]\n", ["framework.tpp", "framework.tp", "grid 1"]),
        ("name: mine\ngrids: [['cluster.nodes=1,x']]\n", ["cluster.nodes=x", "Integer"]),
        ("name: mine\ngrids: [['gpu=a40,a50']]\n", ["gpu=a50", "Available"]),
        ("name: mine\ngrids: [[framework.tp=2]]\n", ["framework.tp=2", "megatron"]),
        (
            "name: mine\ngrids: [[gpu=a40]]\nconstraints: [gpu.nme == 'a40']\n",
            ["gpu.nme", "cannot be evaluated"],
        ),
        ("name: mine\ngrids: [[gpu=a40]]\nconstraints: [world_size > 8]\n", ["no job is left"]),
    ],
)
def test_wrong_sweeps_give_one_text(sweep_file, text, parts):
    sweep_file(text)
    with pytest.raises(ConfigError) as caught:
        expand_sweep("mine")
    for part in parts:
        assert part in str(caught.value)


def test_unknown_sweep_names_those_that_exist():
    with pytest.raises(ConfigError, match=r"quickstrat.*Did you mean quickstart\?"):
        expand_sweep("quickstrat")


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a + 2 * 3 == 8", True),
        ("1 < a <= 2 and not b", True),
        ("a in (2, 3) or missing", True),
        ("-a // 2 % 5", 4),
        ("s == 'x' and s not in ['y']", True),
    ],
)
def test_expressions(expression, value):
    assert evaluate(expression, {"a": 2, "b": 0, "s": "x"}) == value


@pytest.mark.parametrize(
    "expression", ["__import__('os')", "a.__class__", "[x for x in a]", "a(", "c", "a < 'x'"]
)
def test_expressions_refuse_the_rest_of_python(expression):
    with pytest.raises(ConfigError):
        evaluate(expression, {"a": 2})


def test_trace_id_knows_the_device_and_not_the_network():
    base = compose_job(["cluster=dgx_h100"])
    network = compose_job(["cluster=dgx_h100", "cluster.nic_bytes_per_s=1e9", "cluster.host_time_ratio=2"])
    faster = compose_job(["cluster=dgx_h100", "gpu.hbm_bytes_per_s=9e12", "gpu.peak_flops.bf16=2e15"])
    for job in (network, faster):
        assert trace_id(job) == trace_id(base)
        assert job_id(job) != job_id(base)
    for override in (
        "gpu.memory_bytes=1",
        "model.num_layers=2",
        "framework.micro_batch_size=2",
        "capture.iterations=5",
        "cluster.nodes=2",
        "capture.mode=linked",
    ):
        assert trace_id(compose_job(["cluster=dgx_h100", override])) != trace_id(base), override
    patient = compose_job(["cluster=dgx_h100", "capture.timeout_s=99"])
    assert (job_id(patient), trace_id(patient)) == (job_id(base), trace_id(base))
    split = compose_job(["cluster=generic", "cluster.nodes=2", "cluster.gpus_per_node=4"])
    assert trace_id(split) != trace_id(compose_job(["cluster=generic"]))  # local ranks differ


def test_ids_are_twelve_hex_digits_and_survive_a_round_trip():
    job = compose_job([])
    assert len(job_id(job)) == 12 and int(job_id(job), 16) >= 0
    values = job_to_dict(job)
    assert list(values) == sorted(values)
    assert job_from_dict(values) == job
    assert job_id(job_from_dict(values)) == job_id(job)


def test_job_table_says_what_ids_stand_for(tmp_path):
    jobs = expand_sweep("tiny")
    write_job_table(jobs, tmp_path / "new" / "jobs.csv")
    with (tmp_path / "new" / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["job_id"] for row in rows] == [job_id(job) for job in jobs]
    assert rows[0]["model"] == jobs[0].model.name
    assert rows[0]["micro_batch_size"] == str(jobs[0].framework.micro_batch_size)
