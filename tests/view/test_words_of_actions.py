"""Where a policy acts instead of writing, the plan and `show` speak of episodes and actions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.view.app.answers import metrics, runs
from grouprl.view.app.parameters import Parameters
from grouprl.view.app.shown_runs import RunLibrary
from grouprl.view.curves import success
from grouprl.view.model_card import model_card
from grouprl.view.runfiles import read_run

SETTINGS = {
    "task": {"name": "control:CartPole-v1", "turns": 6},
    "model": {"name": "mlp", "settings": {"hidden": [4]}},
    "method": "ppo_control",
    "steps": 1,
    "batch": {"prompts": 2, "group_size": 2},
    "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
    "run": {"threads": 1},
}


def said(*words: str) -> str:
    ended = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_the_plan_and_an_episode_are_told_without_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SETTINGS))
    plan = said("plan", "run.yaml")
    assert "at the last action of turn k" in plan
    assert "set by you. Episodes per prompt." in plan
    assert "token" not in plan.replace("token_mean", "")
    said("train", "run.yaml", "--folder", "run")
    shown = said("show", "run")
    assert " · episode 0 · step 1" in shown
    assert "token" not in shown
    listed = said("show", "run", "--list")
    assert "episode" in listed
    assert "completion" not in listed


def test_the_key_of_a_long_observation_is_shown_by_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tours = {"task": {"name": "construct:tsp", "count": 8}, "model": {"name": "pointer", "settings": {"width": 8}}}
    method = {"method": {"base": "reinforce", "baseline": "group"}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SETTINGS | tours | method))
    assert "does not depend on the episode" in said("plan", "run.yaml", "--set", "method=reinforce")
    said("train", "run.yaml", "--folder", "run")
    assert re.search(r"turn 2 · state \S{8}…\S{8} · reward", said("show", "run"))
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert re.search(r"state \S{8}…\S{8}", page)


def test_rows_that_are_pieces_of_episodes_are_called_rows_and_nothing_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    task = {"task": {"name": "control:CartPole-v1", "horizon": 40}, "batch": {"prompts": 2, "group_size": 1}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SETTINGS | task))
    told = said("train", "run.yaml", "--folder", "run")
    assert "dead" not in told
    assert re.search(r"training 1/1  return \d+\.\d  reward \d+\.\d{3}  length", told)  # no share of right pieces
    assert "groups_" not in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert re.search(r"2 prompts sampled: 2 trained on\. \d+ rows sampled: \d+ used", page)
    assert "Zero-variance groups" not in page
    assert "Length of rows (actions)" in page
    assert "Truncated rows (share)" in page
    assert "at the last action of turn k" in page
    card = model_card(tmp_path / "run", "the final model")
    assert "- rows sampled: " in card
    assert "- actions sampled: 80" in card
    assert not re.search(r"\b(token|completion)s?\b", card)
    assert "library_name: grouprl" in card
    assert "base_model" not in card
    curves = read_run(tmp_path / "run")
    assert "training" not in success(curves)
    assert "training" in success(replace(curves, summary={**curves.summary, "pieces": False}))
    listed = metrics(RunLibrary([tmp_path / "run"]), Parameters({}, ["run"]))["metrics"]
    assert {each["metric"]: each["unit"] for each in listed}["length_mean"] == "actions"
    assert [line["actions"] for line in runs(RunLibrary([tmp_path / "run"]), Parameters({}, []))["runs"]] == [True]
    assert "dead" in said("train", "run.yaml", "--folder", "two", "--set", "batch.group_size=2")


def test_the_rows_behind_a_finding_are_told_without_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)
    longer = {"task": {"name": "control:CartPole-v1", "horizon": 5}, "steps": 6}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(SETTINGS | longer))
    said("train", "run.yaml", "--folder", "run")
    told = said("doctor", "run")
    assert re.search(r"- control:CartPole-v1/train/\d+ #0: reward \d, (1 action|\d actions)\b", told), told
    assert "token" not in told
