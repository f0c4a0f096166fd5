"""A reward that turns out to be graded: nothing of the run is right or wrong, wherever it is looked at."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from grouprl.cli.app import app
from grouprl.config.run import parse_config
from grouprl.evaluation.sample_and_score import Sample
from grouprl.plan.plan import plan
from grouprl.training.loop import train
from grouprl.view.charts import Series, chart
from grouprl.view.curves import reward_parts
from grouprl.view.report import write_report
from grouprl.view.sections import _decimals
from grouprl.view.tokens import token_texts

TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 64}}
PARTIAL = """
def partial(completion, split):
    return 0.3 * (split == "train")
"""
"""Partial in training, and 0 for every held-out completion."""


def settings(steps: int = 2, **reward: object) -> dict[str, object]:
    for split in ("train", "eval"):
        rows = [json.dumps({"prompt": f"{split} {i}", "split": split}) for i in range(4)]
        Path(f"{split}.jsonl").write_text("\n".join(rows))
    Path("partial.py").write_text(PARTIAL)
    return {
        "task": {"name": "jsonl", "path": "train.jsonl", "eval": "eval.jsonl"},
        "model": TINY,
        "steps": steps,
        "sampling": {"max_new_tokens": 4},
        "batch": {"prompts": 2, "group_size": 2},
        "reward": {"function": "partial.py:partial", "workers": 0, **reward},
        "eval": {"every": 0, "prompts": 4, "final_prompts": 4},
        "run": {"threads": 1, "rollouts_every": 1},
    }


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_held_out_zeros_of_a_graded_reward_are_not_wrong(work):
    run = train(parse_config(settings(self_test=False)), folder=work / "r", console=Console(quiet=True)).folder
    page = (run / "report.html").read_text()
    assert "✗ wrong" not in page
    assert "✓ right" not in page
    assert "held-out mean reward" in page
    assert {row["before_correct"] for row in json.loads((run / "samples.json").read_text())} == {None}
    for words in (["show", str(run), "--step", "1"], ["eval", str(run), "--prompts", "2"]):
        shown = CliRunner().invoke(app, words)
        assert shown.exit_code == 0, shown.output
        assert not {"✗", "wrong", "right"} & set(shown.output.split()), shown.output
    assert json.loads(CliRunner().invoke(app, ["eval", str(run), "--json"]).stdout)["eval/graded"]


def test_a_run_that_was_killed_is_marked_by_what_it_stored(work):
    run = train(parse_config(settings(1, self_test=False)), folder=work / "r", console=Console(quiet=True)).folder
    for name in ("summary.json", "health.json", "samples.json"):
        (run / name).unlink()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines if each["step"] < 1))
    assert "✗ wrong" not in write_report(run).read_text()


def test_a_trial_of_the_reward_says_that_it_is_graded(work):
    assert plan(parse_config(settings())).graded
    assert not plan(parse_config(settings() | {"task": "addition", "reward": {}})).graded


def test_a_sample_can_do_without_a_mark():
    assert Sample("p", "c", 0.0, False).without_mark() == Sample("p", "c", 0.0, None)


def test_an_interrupted_run_shows_the_evaluation_that_it_has(work):
    run = train(parse_config(settings(1)), folder=work / "r", console=Console(quiet=True)).folder
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "finished": False, "after": None}))
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    page = write_report(run).read_text()
    assert "No evaluation yet" not in page
    assert '<h3>Mean reward</h3><p class="big"><b>0.000</b></p>' in page
    assert "there is no evaluation after training yet" in page


def test_a_run_without_steps_is_said_to_have_trained_nothing(work, capsys):
    run = train(parse_config(settings(0)), folder=work / "r").folder
    page = (run / "report.html").read_text()
    assert "Nothing was trained: the run has no steps." in page
    assert "Nothing was trained" in capsys.readouterr().out
    assert "No gain shown" not in page
    assert "Some files are missing from the folder" not in page


def test_a_single_step_is_drawn_without_naming_a_second():
    figure = chart("t", "w", [Series("s", [1.0], [2.0])])
    assert re.findall(r'class="tick x"[^>]*>([^<]*)<', figure) == ["1"]


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.500"), (-9.75, "-9.750"), (22.125, "22.12"), (1234.5, "1234")])
def test_numbers_of_a_card_have_room(value, text):
    assert _decimals(value) == text


def test_a_component_that_is_the_whole_reward_is_shown_once():
    same = {"eval/reward": 1.5, "eval/reward/turns": 1.5, "eval/reward/turns_low": 1.0}
    assert reward_parts([same]) == []
    assert reward_parts([same, {"eval/reward": 2.0, "eval/reward/turns": 1.0}]) == ["eval/reward/turns"]
    assert reward_parts([same | {"eval/reward/other": 0.0}]) == ["eval/reward/turns", "eval/reward/other"]


def test_a_completion_that_was_cut_off_is_not_shown_with_an_end(tmp_path):
    pieces = token_texts(tmp_path)
    row = {"completion_ids": [1, 2, 3], "completion": "ab"}
    assert pieces(row) == ["a", "b", "⟨end⟩"]
    assert pieces(row | {"truncated": True}) is None  # one of them has no text, and nobody knows which
