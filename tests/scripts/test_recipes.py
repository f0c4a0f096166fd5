"""Every embedded recipe: it can be planned, its task can be learnt from, its reward tells right from wrong."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from grouprl.config.run import load_config, recipe_names
from grouprl.papers import listings
from grouprl.plan.plan import plan
from grouprl.rewards import load_reward, score
from grouprl.tasks import load_task
from grouprl.training.loop import train

TINY = (
    "model.tiny.hidden=16",
    "model.tiny.heads=2",
    "model.tiny.layers=1",
    "model.tiny.intermediate=16",
    "warmup.steps=2",
    "warmup.batch=8",
    "steps=1",
    "batch.prompts=2",
    "batch.group_size=4",
    "eval.prompts=2",
    "eval.final_prompts=2",
    "eval.every=0",
    "reward.workers=0",
    "run.threads=1",
)
NOT_WRITING = {"cartpole", "preferences", "reward_model"}
"""Recipes of stored completions, whose rewards are the data's, and of policies that do not write."""


@pytest.mark.parametrize("name", recipe_names())
def test_recipes_can_be_planned_and_say_what_they_are(name):
    found = plan(load_config(name))
    assert found.refusals == ()
    assert found.idle == ()
    text = (Path(__file__).parents[2] / "src" / "grouprl" / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert set(yaml.safe_load(text)) >= {"task", "model", "method", "batch", "optim", "steps"}
    assert "warmup" in yaml.safe_load(text) or name in NOT_WRITING


@pytest.mark.parametrize("name", sorted(set(recipe_names()) - NOT_WRITING))
def test_the_reward_of_a_recipe_is_highest_for_solutions_and_leaves_room_to_learn(name):
    config = load_config(name)
    task = load_task(config.task)
    reward = load_reward(config.reward.function) if config.reward.function else task.reward
    examples = [task.example("train", index) for index in range(30)]
    columns, ids = [q.columns for q in examples], [q.id for q in examples]
    shown = [task.demonstration(q, seed=0) for q in examples]
    demonstrated = score(reward, shown, columns, ids=ids)
    silent = score(reward, [""] * 30, columns, ids=ids)
    assert demonstrated.ok_b.all()
    assert demonstrated.reward_b.mean() > silent.reward_b.mean()
    if task.solution(examples[0]) is not None:
        solved = score(reward, [task.solution(q) for q in examples], columns, ids=ids)
        assert solved.correct_b.all()
        assert solved.reward_b.mean() > demonstrated.reward_b.mean()


@pytest.mark.parametrize(
    "name",
    [
        "signals",
        "team",
        "adventure",
        "sem",
        "ui_r1",
        "reasoning_sql",
        "rubicon",
        "knowrl",
        "canoe",
        "ssrl",
        "craft_gui",
    ],
)
def test_recipes_run(name, tmp_path):
    done = train(load_config(name, list(TINY)), folder=tmp_path / "run", console=Console(file=io.StringIO()))
    assert (tmp_path / "run" / "config.yaml").exists()
    assert not done.interrupted


@pytest.mark.parametrize(
    ("name", "group", "without"),
    [("preferences", 2, ()), ("reward_model", 2, ("warmup",)), ("cartpole", 1, ("warmup", "model"))],
)
def test_recipes_of_other_policies_and_data_run(name, group, without, tmp_path):
    own = [each for each in TINY if not each.startswith(without or "-")]
    config = load_config(name, [*own, f"batch.group_size={group}"])
    assert not train(config, folder=tmp_path / "run", console=Console(file=io.StringIO())).interrupted


def test_every_recipe_of_a_paper_exists():
    assert {name for paper in listings() for name in paper.recipes} <= set(recipe_names())
