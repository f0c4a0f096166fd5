"""What plan, check-env, train and serve say of a chat template that drops, refuses or rewrites what a run needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from chat_families import CHAT_FAMILIES, family_policy
from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.plan.plan import plan
from grouprl.serve import Service

TOOLS = '''
from grouprl.tools import tool


@tool(seconds=None)
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second
'''
NOWHERE = "{{ raise_exception('nothing is ever rendered') }}"


def run_of(folder: Path, family: str, template: str | None = None, **more: Any) -> dict[str, Any]:
    """Write a model of a family, tools and prompts; return the configuration of a run with them."""
    policy = family_policy(family)
    if template is not None:
        policy.tokenizer.chat_template = template
    policy.save(folder / "model")
    (folder / "own_tools.py").write_text(TOOLS)
    rows = [{"prompt": f"{a}+{b}?", "answer": str(a + b)} for a in range(4) for b in range(4)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "task": {
            "name": f"tools:{folder}/own_tools.py:add",
            "of": {"name": f"jsonl:{folder}/rows.jsonl", "reward": "exact_match"},
            "turns": 2,
            "tokens": 8,
        },
        "model": {"name": str(folder / "model"), "device": "cpu"},
        "method": "grpo",
        "steps": 1,
        "batch": {"prompts": 2, "group_size": 2},
        "eval": {"prompts": 2, "final_prompts": 2},
        "run": {"folder": str(folder / "runs")},
        **more,
    }


def invoke(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def written(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.mark.parametrize("family", ["phi 3", "olmo 2"])
def test_a_plan_says_how_tools_are_carried(tmp_path: Path, family: str) -> None:
    found = plan(parse_config(run_of(tmp_path, family)))
    assert found.refusals == ()
    notes = " ".join(found.notes)
    assert "the chat template does not announce tools: they are described in the prompt" in notes
    assert "does not show results of tools: they are part of a user's message" in notes


def test_a_plan_refuses_a_template_that_renders_nothing(tmp_path: Path) -> None:
    found = plan(parse_config(run_of(tmp_path, "phi 3", NOWHERE)))
    assert any("nothing is ever rendered" in refusal for refusal in found.refusals), found.refusals


def test_check_env_reports_the_template_of_the_run(tmp_path: Path) -> None:
    result = invoke("check-env", written(tmp_path, run_of(tmp_path, "gemma 2")), "--episodes", "4", "--json")
    found = json.loads(result.stdout)
    advice = [each["what"] for each in found["advice"] if each["name"] == "chat template"]
    assert any("does not announce tools" in what for what in advice)
    assert any("white space at its ends" in what for what in advice)


def test_check_env_and_train_refuse_in_words(tmp_path: Path) -> None:
    path = written(tmp_path, run_of(tmp_path, "phi 3", NOWHERE))
    for words in (("check-env", path, "--episodes", "2"), ("train", path)):
        result = invoke(*words)
        assert result.exit_code != 0
        said = " ".join(f"{result.output} {result.exception or ''}".split())  # lines are wrapped
        assert "nothing is ever rendered" in said
        assert "Traceback" not in said
        assert not isinstance(result.exception, (TypeError, KeyError))


def test_serve_refuses_a_template_that_renders_nothing_and_says_what_is_carried() -> None:
    policy = family_policy("phi 3")
    service = Service(policy, "phi")
    assert any("does not announce tools" in note for note in service.notes)
    service.close()
    policy.tokenizer.chat_template = NOWHERE
    with pytest.raises(InputError, match="nothing is ever rendered"):
        Service(policy, "phi")


def test_an_unknown_syntax_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'mistral'"):
        plan(parse_config(run_of(tmp_path, "phi 3", sampling={"tool_calls": "mistrall"})))
    found = plan(parse_config(run_of(tmp_path, "phi 3", sampling={"tool_calls": "llama"})))
    assert any('{"name": "NAME", "parameters": {"ARGUMENT": "VALUE"}}' in note for note in found.notes)


@pytest.mark.parametrize("family", ["phi 3", "gemma 2", "mistral 0.3"])
def test_a_run_with_tools_trains_on_templates_without_them(tmp_path: Path, family: str) -> None:
    """The three that ended in a traceback, or called into the void."""
    config = run_of(tmp_path, family, sampling={"history": "split"})
    result = invoke("train", written(tmp_path, config))
    assert result.exit_code == 0, result.output[-2000:] + str(result.exception)
    assert CHAT_FAMILIES[family]
