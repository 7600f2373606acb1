"""Rules for device values: their configuration, their sites and their answers."""

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from maya.capture.startup.maya_startup.value_rules import Rule, SiteWatch, read_rules
from maya.config.compose import compose_target
from maya.errors import ConfigError


def names_of_rules(*overrides: str) -> list[str]:
    _, _, capture = compose_target(overrides)
    return [rule.name for rule in (*capture.values.rules, *capture.values.builtin)]


def test_the_built_in_rules_come_with_every_job_and_can_be_left_out() -> None:
    assert "megatron_core" in names_of_rules()
    assert names_of_rules("values=none") == []


def test_rules_of_the_user_come_first() -> None:
    mine = "values.rules=[{name: mine, sites: [a.py], operators: [nonzero], answer: fraction, value: 0.5}]"
    assert names_of_rules(mine)[:2] == ["mine", "megatron_core"]
    _, _, capture = compose_target([mine])
    assert read_rules(json.dumps([asdict(rule) for rule in capture.values.rules])) == [
        Rule(name="mine", sites=("a.py",), operators=("nonzero",), answer="fraction", value=0.5)
    ]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{sites: [a.py], answer: nothing}", "answer=nothing"),
        ("{sites: [a.py], operators: [nonzero], answer: balanced}", "not nonzero"),
        ("{sites: [a.py], operators: [nonzero], answer: fraction, value: 2}", "from 0 to 1"),
    ],
)
def test_rules_that_cannot_be_followed(rule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        names_of_rules(f"values.rules=[{rule}]")


def rule(answer: str, **fields: Any) -> Rule:
    return Rule(sites=("*",), operators=("*",), answer=answer, **fields)


def test_balanced_choices_are_distinct_in_a_row_and_equal_over_all() -> None:
    scores, indices = torch.zeros(10, 8), torch.zeros(10, 3, dtype=torch.int64)
    chosen = rule("balanced").result(torch, "topk", {"self": scores, "k": 3}, indices)
    assert all(len(set(row.tolist())) == 3 for row in chosen)
    # 30 = 3 x 8 + 6
    assert torch.bincount(chosen.flatten(), minlength=8).tolist() == [4] * 6 + [3] * 2
    along_rows = rule("balanced").result(torch, "topk", {"self": scores.T, "k": 3, "dim": 0}, indices.T)
    assert torch.equal(along_rows, chosen.T)


def test_balanced_counts_share_what_is_counted() -> None:
    counts = rule("balanced").result(
        torch, "bincount", {"self": torch.zeros(10)}, torch.zeros(4, dtype=torch.int64)
    )
    assert counts.tolist() == [3, 3, 2, 2]


def test_answers_have_size_and_type_of_what_they_stand_for() -> None:
    flags = torch.zeros(2, 4, dtype=torch.bool)
    assert rule("fraction", value=0.25).values_like(torch, flags).sum() == 2
    assert rule("true").values_like(torch, flags).all()
    first, second = (
        rule("uniform", low=2.0, high=3.0, seed=7).values_like(torch, torch.zeros(9)) for _ in "ab"
    )
    assert torch.equal(first, second)
    assert first.dtype == torch.float32
    assert 2 <= first.min() <= first.max() < 3
    assert rule("constant", value=5).values_like(torch, torch.zeros(3, dtype=torch.int64)).tolist() == [5] * 3


def test_functions_of_a_site_are_wrapped_when_their_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site_package" / "inner"
    package.mkdir(parents=True)
    (package / "router.py").write_text(
        "def route(): return 'route'\n"
        "def other(): return 'other'\n"
        "class Gate:\n"
        "    def forward(self): return 'gate'\n"
        "    @staticmethod\n"
        "    def forward_all(): return 'all'\n"
    )
    (package / "uses.py").write_text("from .router import route\n")
    (package / "routers.py").write_text("def route(): return 'route'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    found = Rule(
        sites=("inner/router.py:route", "inner/rout??.py:Gate.*"), operators=("topk",), answer="ones"
    )
    SiteWatch([found], lambda function, rules: lambda *args: (function(*args), rules)).start()
    router = importlib.import_module("site_package.inner.router")
    assert importlib.import_module("site_package.inner.uses").route() == ("route", [found])
    assert router.other() == "other"
    assert router.Gate().forward() == ("gate", [found])
    assert router.Gate.forward_all() == ("all", [found])
    assert importlib.import_module("site_package.inner.routers").route() == "route"
