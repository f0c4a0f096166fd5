"""The glossary: complete, strict, and readable in a terminal."""

from __future__ import annotations

import ast
import importlib
import inspect
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import grouprl
from grouprl.cli.metrics import show_metrics
from grouprl.core.errors import InputError
from grouprl.monitor.glossary import GLOSSARY, GROUPS, check_names, define, lookup
from grouprl.monitor.metrics import dead_groups

LOGGED = [
    "phase",
    "step",
    "seconds",
    "reward_mean",
    "reward_std",
    "pass@1",
    "length_mean",
    "length_max",
    "truncated_fraction",
    "entropy",
    "kl_old",
    "kl_ref",
    "kl_behavior",
    "logp_gap_mean",
    "logp_gap_max",
    "ratio_mean",
    "clip_fraction",
    "clip_fraction_high",
    "clip_fraction_low",
    "capped_fraction",
    "policy_loss",
    "loss",
    "grad_norm",
    "lr",
    "groups_zero_variance",
    "groups_all_right",
    "groups_all_wrong",
    "rows_trained",
    "refill_rounds",
    "rows_dropped",
    "reward_errors",
    "environment_errors",
    "value_loss",
    "explained_variance",
    "tokens",
    "tokens_per_second",
    "seconds_rollout",
    "seconds_score",
    "seconds_update",
    "memory_mb",
    "reward/format",
    "reward/correct",
    "kl_loss",
    "entropy_bonus_loss",
    "eval/greedy",
    "eval/greedy_low",
    "eval/greedy_high",
    "eval/pass@1",
    "eval/pass@1_low",
    "eval/pass@1_high",
    "eval/pass@16",
    "eval/pass@16_low",
    "eval/length_mean",
    "eval/truncated",
    "eval/prompts",
    "eval/samples",
]


@pytest.mark.parametrize("name", LOGGED)
def test_every_logged_metric_has_an_entry(name):
    metric = lookup(name)
    assert metric.words
    assert metric.good
    assert metric.unit
    assert metric.group in GROUPS


def test_a_whole_record_passes():
    check_names(dict.fromkeys(LOGGED, 0.0))


@pytest.mark.parametrize(("name", "near"), [("reward_men", "reward_mean"), ("entropi", "entropy")])
def test_an_undefined_metric_is_refused_with_a_suggestion(name, near):
    with pytest.raises(InputError, match=near):
        check_names({"step": 1, name: 0.5})


def test_a_family_does_not_swallow_other_names():
    assert lookup("policy_loss").name == "policy_loss"  # an entry of its own comes before its family
    assert lookup("kl_loss").name == "*_loss"
    assert lookup("eval/pass@1_low").name == "eval/*_low"  # the interval, not the number
    assert lookup("eval/pass@8").name == "eval/pass@*"
    for name in ("reward", "rewards/x", "losses", "eval/other"):
        with pytest.raises(InputError):
            lookup(name)


def test_a_metric_of_ones_own_is_defined_once(monkeypatch):
    shared = dict(GLOSSARY)
    monkeypatch.setattr("grouprl.core.metric.GLOSSARY", shared)
    monkeypatch.setattr("grouprl.monitor.glossary.entry.GLOSSARY", shared)
    define("update", {"my_gate_here": ("share", "share of tokens my gate lets through", "close to 1")})
    check_names({"my_gate_here": 1.0})
    with pytest.raises(InputError, match="twice"):
        define("update", {"my_gate_here": ("share", "x", "y")})
    with pytest.raises(InputError, match="Groups are"):
        define("nowhere", {"other": ("share", "x", "y")})


def test_entries_are_sentences_in_one_style():
    for metric in GLOSSARY.values():
        assert not metric.words.endswith("."), metric.name
        assert not metric.good.endswith("."), metric.name
        assert metric.words[0] not in " \n"


def literal_keys(function: ast.FunctionDef) -> set[str]:
    """Names written as keys of dictionaries in a function."""
    dicts = [node for node in ast.walk(function) if isinstance(node, ast.Dict)]
    keys = [k for d in dicts for k in d.keys]
    keys += [n.slice for n in ast.walk(function) if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)]
    return {k.value for k in keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}


def test_metrics_that_the_parts_report_have_entries():
    """Every metric name written in a function of a part that makes losses or in a `…_metrics` function is defined."""
    names, package = set(), Path(inspect.getfile(grouprl)).parent
    for path in (package / "algorithms").rglob("*/*.py"):
        importlib.import_module(
            ".".join(("grouprl", *path.relative_to(package).with_suffix("").parts))
        )  # defines its own
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                calls = {getattr(n.func, "id", "") for n in ast.walk(node) if isinstance(n, ast.Call)}
                if calls & {"TokenLoss", "RowLoss", "PairLoss", "GroupLoss"} or node.name.endswith("_metrics"):
                    names |= literal_keys(node)
    assert {"clip_fraction", "value_error", "clip_fraction_dual"} <= names
    check_names(names)


def shown(name=None, width=100) -> str:
    console = Console(file=StringIO(), width=width)
    show_metrics(name, console)
    return console.file.getvalue()


def test_the_whole_glossary_is_printed():
    text = shown(width=200)
    for metric in GLOSSARY.values():
        assert metric.name in text
    assert all(len(line) <= 80 for line in shown(width=80).splitlines())


def test_one_entry_a_family_and_a_group_are_printed():
    assert "nats/token" in shown("entropy")
    assert "pass@1" not in shown("entropy")
    assert "one of reward/*" in shown("reward/format")
    assert "eval/greedy" not in shown("eval/*_low")
    assert "explained_variance" in shown("critic")
    with pytest.raises(InputError, match="entropy"):
        shown("entropyy")


def test_groups_of_one_are_compared_with_none_and_not_dead() -> None:
    ones = np.arange(3)
    assert dead_groups(np.zeros(3), np.zeros(3), ones) == {}
    assert dead_groups(np.zeros(3), np.zeros(3), np.array([0, 0, 1]))["groups_zero_variance"] == 1.0
