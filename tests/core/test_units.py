"""The words of a run whose policy takes actions: episodes and actions where a run of text says completions, tokens."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from grouprl.cli.plan import show_plan
from grouprl.config.run import parse_config
from grouprl.core.display_nouns import worded
from grouprl.plan.plan import plan
from grouprl.tasks import load_task
from grouprl.training.loop import train

TEXT = re.compile(r"\b(completions?|tokens?|tok)\b(?!_)", re.IGNORECASE)
POLE = {
    "task": {"name": "control:CartPole-v1", "turns": 20},
    "model": {"name": "mlp", "settings": {"hidden": [8]}},
    "steps": 6,
    "batch": {"prompts": 2, "group_size": 4},
    "optim": {"lr": 1e-2},
    "eval": {"every": 3, "prompts": 4, "final_prompts": 4},
    "run": {"threads": 1},
}


@pytest.mark.parametrize(
    ("said", "of_actions"),
    [
        ("A completion of 3 tokens", "An episode of 3 actions"),
        ("Completions have gone", "Episodes have gone"),
        ("the reward of a token, per token", "the reward of an action, per action"),
        ("1200 tok/s and tokens/s", "1200 actions/s and actions/s"),
        ("lower batch.tokens_per_microbatch: 5 tokens", "lower batch.tokens_per_microbatch: 5 actions"),
        ("a stock of tokenizers", "a stock of tokenizers"),
    ],
)
def test_sentences_are_worded(said: str, of_actions: str) -> None:
    assert worded(said, actions=True) == of_actions
    assert worded(said, actions=False) == said


def test_a_run_of_a_policy_over_vectors_speaks_of_actions(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    console = Console(file=io.StringIO(), width=100)
    config = parse_config(POLE)
    show_plan(plan(config), console)
    outcome = train(config, folder=tmp_path / "run", console=console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    settings = [line for line in printed.splitlines() if "set." in line or "optim" in line or "default" in line]
    shown = [line for line in printed.splitlines() if line not in settings and "batch." not in line]
    assert [line for line in shown if TEXT.search(line) and "Completions per prompt" not in line] == []
    assert "2 prompts × 4 episodes = 8 episodes" in printed
    assert "length (actions)" in printed
    assert "actions/s" in printed
    assert "not on this machine" not in printed
    page = re.sub(r"<details>.*?</details>|<style>.*?</style>|<script>.*?</script>", "", report(outcome.folder))
    assert TEXT.findall(re.sub(r"<[^>]*>", " ", page)) == []
    assert "✗ wrong" not in page  # rewards that are graded make nothing right or wrong
    assert page.index("Mean reward") < page.index("Reward ≥ 1")


def test_the_page_says_that_a_tour_is_paid_minus_its_length(tmp_path: Path) -> None:
    config = {
        "task": {"name": "construct:tsp", "count": 4},
        "model": {"name": "pointer", "settings": {"width": 8, "layers": 1, "heads": 2}},
        "method": "rloo",
        "warmup": {"steps": 0},
        "steps": 1,
        "batch": {"prompts": 1, "group_size": 2},
        "eval": {"every": 0, "final_prompts": 2},
    }
    quiet = Console(file=io.StringIO())
    outcome = train(parse_config(config), folder=tmp_path / "run", console=quiet)
    assert json.loads((outcome.folder / "summary.json").read_text())["reward_is"] == "minus the length"
    assert "Mean reward, minus the length" in report(outcome.folder)


def test_an_episode_is_right_where_a_number_says_so() -> None:
    pytest.importorskip("gymnasium")
    for options, stated in (({"turns": 20}, False), ({"turns": 20, "success": 9}, True), ({}, True)):
        environment = load_task({"name": "control:CartPole-v1", **options}).environment()
        assert ("correct" in environment.score()) is stated


def report(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8").replace("\n", " ")
