"""Codes of findings: all are on the page, unique, and say what they mean; findings of a plan carry them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import grouprl
from finding_codes import codes_page
from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.core.finding import CODES, SEVERITIES, Code, Finding, RunFinding, declare, gravest_first
from grouprl.plan import codes
from grouprl.plan.codes import told
from grouprl.plan.plan import Plan, plan

ROOT = Path(grouprl.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "codes.md"


def planned(**settings: object) -> Plan:
    return plan(parse_config({"task": "addition", "method": "grpo", **settings}))


def test_the_page_lists_every_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == codes_page(), "run: python scripts/generate_docs.py"
    assert all(f"| `{name}` |" in codes_page() for name in CODES)


def test_every_declaration_is_on_the_page() -> None:
    """A module that declares codes is imported by the page: the text of the sources knows no other."""
    imported = re.compile(r"from grouprl\.core\.finding import .*\bdeclare\b")
    places = [path for path in ROOT.rglob("*.py") if imported.search(path.read_text(encoding="utf-8"))]
    named = {path.relative_to(ROOT).as_posix() for path in places}
    known = {f"{module.removeprefix('grouprl.').replace('.', '/')}.py" for module in imported_by_the_page()}
    assert named <= known


def imported_by_the_page() -> set[str]:
    source = (ROOT.parents[1] / "scripts" / "finding_codes.py").read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.Import)]
    return {each.name for node in nodes for each in node.names}


@pytest.mark.parametrize("code", CODES.values(), ids=lambda code: code.name)
def test_a_code_says_what_it_means(code: Code) -> None:
    assert code.name == code.name.lower()
    assert code.name.isidentifier()
    assert code.meaning.endswith(".")
    assert code.remedy.endswith(".")
    assert code.severities
    assert set(code.severities) <= set(SEVERITIES)
    assert code("x").severity == code.severities[0]
    assert ("refusal" in code.severities) <= (code.source == "plan")


def test_a_code_is_declared_once() -> None:
    with pytest.raises(ValueError, match="no_effect is declared twice"):
        declare("plan", "no_effect", "note", "M.", "R.")


def test_a_severity_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="'alarm' is not a severity of no_effect, which declares note"):
        codes.NO_EFFECT("x", severity="alarm")


def test_a_finding_reads_as_it_was_said() -> None:
    for words in ("a: b. Set c to 1", "only a fact", "a. b. Set c to 1.", "(a). Do b, then c"):
        assert str(codes.AHEAD.said(words)) == words
    found = codes.AHEAD.said("a: b (x). Set run.partial to false")
    assert (found.text, found.remedy, found.key) == ("a: b (x)", "Set run.partial to false", "run.async_steps")


def test_a_finding_is_about_the_first_setting_that_is_named() -> None:
    found = [*told(codes.CLUSTER, ["cluster.learners is 2, and cluster.ray is off. Set it", "no node. Start Ray"])]
    assert [each.key for each in found] == ["cluster.learners", "cluster"]
    (note,) = told(codes.CLUSTER, ["two sentences. Both explain"], "note")
    assert (note.text, note.remedy, note.severity) == ("two sentences. Both explain", "", "note")


def test_findings_come_gravest_first() -> None:
    rows = [RunFinding(name, severity, "", "", "") for name, severity in (("a", "note"), ("b", "alarm"), ("c", "note"))]
    over = RunFinding("d", "alarm", "", "", "", persists=False)
    assert [each.code for each in gravest_first([over, *rows])] == ["b", "a", "c", "d"]


@pytest.mark.parametrize(
    ("settings", "code", "severity", "key"),
    [
        ({"batch": {"group_size": 1}}, "part_cannot_work", "refusal", "relative"),
        ({"method": "rloo", "model": {"name": "mlp"}}, "policy_kind", "refusal", None),
        ({"task": {"name": "addition"}, "run": {"async_steps": 1}, "method": "ppo"}, "sampling_ahead", "note", None),
        ({"warmup": {"lr": 0.1}}, "no_effect", "note", "warmup.lr"),
        ({"batch": {"minibatches": 1}}, "part_no_effect", "note", "clipped"),
        ({"sampling": {"temperature": 1e-3}}, "temperature", "warning", "sampling.temperature"),
        ({"sampling": {"top_p": 0.5}}, "cut_distribution", "note", "sampling.top_p"),
        ({"model": {"name": "tiny", "lora": {"r": 4}}}, "lora", "note", "model.lora"),
        ({"model": {"name": "nobody/has-this"}}, "model_absent", "note", "model.name"),
        ({"run": {"checkpoint_every": 100_000}}, "rare_checkpoints", "note", "run.checkpoint_every"),
        ({"batch": {"prompts": 8}, "data": {"prompts": 4}}, "repeated_prompts", "note", "batch.prompts"),
        ({"optim": {"lr": 1.0}}, "learning_rate", "warning", "optim.lr"),
        ({"sampling": {"max_new_tokens": 9000}}, "no_positions", "refusal", "sampling.max_new_tokens"),
        ({"method": "kl_cov", "model": {"reference": "none"}, "warmup": {"steps": 0}}, None, "", None),
    ],
)
def test_a_plan_can_be_filtered_by_code(
    settings: dict[str, object], code: str | None, severity: str, key: str | None
) -> None:
    found = planned(**settings)
    assert all(isinstance(each, Finding) and each.code in CODES for each in found.findings)
    assert len(found.findings) == len(found.refusals) + len(found.idle) + len(found.notes)
    if code is not None:
        (one, *_) = [each for each in found.findings if each.code == code]
        assert one.severity == severity
        assert key in (None, one.key)


def test_a_plan_as_json_carries_its_findings() -> None:
    done = CliRunner().invoke(app, ["plan", "addition", "--set", "batch.group_size=1", "--json"])
    data = json.loads(done.stdout)
    (refused,) = [each for each in data["findings"] if each["severity"] == "refusal"]
    assert refused["code"] == "part_cannot_work"
    assert data["refusals"] == [f"{refused['text']}. {refused['remedy']}"]
    assert set(refused) == {"code", "severity", "key", "text", "remedy"}


@pytest.mark.parametrize("task", ["construct:tsp", "control:CartPole-v1"])
def test_a_language_model_on_arrays_is_refused_for_that_alone(task: str) -> None:
    (refusal,) = planned(task=task, model="tiny").refusals
    assert "shows arrays, but the model tiny reads text" in refusal
