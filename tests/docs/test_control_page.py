"""The five minutes from Stable-Baselines3 to here: the page's configuration runs, and means what its table says."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console

import control
import control_rivals
import group_critic
from grouprl import method
from grouprl.config.run import parse_config
from grouprl.evaluation.pass_at_k import mean_interval
from grouprl.plan.plan import plan
from grouprl.training.loop import train

pytest.importorskip("gymnasium")

PAGE = (Path(__file__).parents[2] / "docs" / "control.md").read_text(encoding="utf-8")
PHYSICS = ("LunarLander-v3", "InvertedPendulum-v5", "Hopper-v5")
"""Environments of Box2D and MuJoCo, which the tests' environment need not have."""
SETTINGS = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])  # type: ignore[index]


def test_the_configuration_of_the_page_runs_and_its_returns_are_of_episodes(tmp_path: Path) -> None:
    short = {**SETTINGS, "steps": 2, "eval": {"every": 0, "final_prompts": 2}}
    train(parse_config(short), folder=tmp_path / "run", console=Console(quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["phase"] == "train"]
    assert [row["tokens"] for row in steps] == [8 * 32] * 2
    assert steps[0]["reward/return"] > 8  # a point for every action of the episodes that ended
    assert steps[0]["logp_gap_max"] < 1e-5


def test_the_table_counts_as_the_plan_does() -> None:
    found = plan(parse_config(SETTINGS))
    assert found.refusals == ()
    assert found.actions_per_step == SETTINGS["task"]["horizon"]
    total = found.batch.steps * found.batch.completions * found.actions_per_step
    assert f"{total:,}" in PAGE


def test_the_other_sides_program_has_the_numbers_of_the_configuration() -> None:
    """Needs no Stable-Baselines3: what the program passes on is compared, whatever its defaults are."""
    (program,) = (t for t in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "stable_baselines3" in t)
    calls = {ast.unparse(node.func): node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Call)}
    given = {word.arg: ast.unparse(word.value) for word in calls["PPO"].keywords}
    method, optim = SETTINGS["method"], SETTINGS["optim"]
    assert {name: float(given[name]) for name in ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda")} == {
        "n_steps": SETTINGS["task"]["horizon"],
        "batch_size": method["size"],
        "n_epochs": SETTINGS["batch"]["epochs"],
        "gamma": method["gamma"],
        "gae_lambda": method["lam"],
    }
    rate = eval(given["learning_rate"])
    assert (rate(1.0), rate(0.0)) == (optim["lr"], optim["min_lr_ratio"])
    assert ast.literal_eval(given["policy_kwargs"]) == {"net_arch": SETTINGS["model"]["settings"]["hidden"]}
    made = {word.arg: ast.unparse(word.value) for word in calls["make_vec_env"].keywords}
    actions = SETTINGS["steps"] * SETTINGS["batch"]["prompts"] * SETTINGS["task"]["horizon"]
    assert (int(made["n_envs"]), f"control:{ast.literal_eval(calls['make_vec_env'].args[0])}") == (
        SETTINGS["batch"]["prompts"],
        SETTINGS["task"]["name"],
    )
    assert ast.literal_eval(calls["model.learn"].args[0]) == actions


def test_the_tables_of_methods_are_those_of_the_record() -> None:
    rows = json.loads(control.RECORD.read_text())
    for arena, settings in control.ARENAS.items():
        assert {row["method"] for row in rows if row["arena"] == arena} == set(settings["methods"])
        assert control.table(rows, arena) in PAGE
        for label in settings["methods"]:
            assert not plan(parse_config(control.settings(arena, label, 0.01, 0))).refusals


def test_the_tables_of_memories_and_critics_are_those_of_the_record() -> None:
    rows = json.loads(group_critic.RECORD.read_text())
    for arena, settings in group_critic.ARENAS.items():
        assert {row["arm"] for row in rows if row["arena"] == arena} == set(settings["arms"])
        assert group_critic.table(rows, arena) in PAGE
        for arm in settings["arms"]:
            assert not plan(parse_config(group_critic.settings(arena, arm, 0.01, 0))).refusals


def test_the_table_beside_stable_baselines_is_that_of_the_record() -> None:
    rows = json.loads(control_rivals.RECORD.read_text())
    assert control_rivals.table(rows) in PAGE
    for name in {row["case"] for row in rows}:
        case = control_rivals.CASES[name]
        assert [row["seed"] for row in rows if row["case"] == name] == list(case.seeds)
        assert {row["actions"] for row in rows if row["case"] == name} == {case.steps * case.rollout}
    told = {"A2C CartPole-v1", "PPO Hopper-v5"}  # as the page says first
    assert {row["case"] for row in rows if outside(rows, row["case"])} == told


def outside(rows: list[dict[str, Any]], name: str) -> bool:
    sides = [[row[who]["return"] for row in rows if row["case"] == name] for who in ("ours", "theirs")]
    _, low, high = mean_interval(np.array(sides[1]))
    return not low <= np.mean(sides[0]) <= high


@pytest.mark.parametrize("name", [name for name, case in control_rivals.CASES.items() if case.env not in PHYSICS])
def test_both_sides_take_as_many_actions_and_optimiser_steps(name: str) -> None:
    case = control_rivals.CASES[name]
    found = plan(parse_config(control_rivals.settings(case, 0, case.steps)))
    assert found.refusals == ()
    assert found.batch.steps * found.batch.completions * found.actions_per_step == case.steps * case.rollout
    size = control_rivals.settings(case, 0, 1)["method"]["size"]
    assert case.rollout % size == 0  # no smaller last minibatch, of which the two make different things


def test_a_case_is_told_with_the_interval_of_students_distribution() -> None:
    runs = [{side: {"return": x, "speed": 1 + (side == "theirs")} for side in ("ours", "theirs")} for x in (1, 2, 3)]
    # mean 2, sample deviation 1, 4.303 / sqrt(3) = 2.484
    assert control_rivals.compared(runs) == ["1, 2, 3", "2.0 [-0.5, 4.5]", "1, 2, 3", "2.0", "0.50"]
    assert control_rivals.listed([3.5, *range(8)]) == "9 seeds, 0 to 7"


def test_the_a2c_of_the_page_is_that_of_the_record() -> None:
    (shown,) = (yaml.safe_load(t) for t in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "rmsprop" in t)
    case = control_rivals.CASES["A2C CartPole-v1"]
    ours, theirs = parse_config(control_rivals.settings(case, 0, case.steps)), parse_config(shown)
    for part in ("task", "model", "steps", "batch"):
        assert getattr(ours, part) == getattr(theirs, part), part
    assert ours.optim == theirs.optim.model_copy(update={"min_lr_ratio": 0.0})
    made = [
        method(own["name"], **{key: own[key] for key in own if key != "name"}) for own in (ours.method, theirs.method)
    ]
    assert made[0] == made[1]


def test_the_script_beside_stable_baselines3_loads_where_grouprl_and_its_needs_are_absent() -> None:
    absent = "import sys; sys.modules.update(dict.fromkeys(('grouprl', 'rich', 'pydantic')))"
    loads = f"{absent}; sys.path.insert(0, {str(Path(control_rivals.__file__).parent)!r}); import control_rivals"
    subprocess.run([sys.executable, "-c", loads], check=True, env={"OMP_NUM_THREADS": "1"})
