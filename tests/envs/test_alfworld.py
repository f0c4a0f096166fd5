"""ALFWorld's text games as a task: its own domain, grammar and planner, on small games in the format of its data."""

from __future__ import annotations

import json

import pytest

from alfworld_games import write_games
from grouprl.core.errors import InputError
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.tasks import load_task

pytest.importorskip("alfworld", reason="alfworld is not installed: pip install 'grouprl[alfworld]'")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with a few games."""
    return write_games(tmp_path_factory.mktemp("alfworld"))


def chores(data, **options):
    return load_task({"name": "alfworld", "data": str(data), "turns": 12, **options})


def test_a_chore_is_done_as_its_planner_says(data):
    task = chores(data, plans=True)
    assert (task.size("train"), task.size("eval")) == (4, 2)
    example = task.example("train", 0)
    assert "Your task is to: put some apple on desk." in example.prompt
    environment = task.environment()
    first = environment.reset(example, 0)
    assert "go to shelf 1" in first.legal
    rewards = []
    for command in ("go to shelf 1", "take apple 1 from shelf 1", "go to desk 1", "move apple 1 to desk 1"):
        assert environment._plan[0] == command
        step = environment.step(command)
        assert step.valid
        rewards.append(step.reward)
    assert (rewards, step.terminated, environment.score()) == ([0.0, 0.0, 0.0, 1.0], True, {"correct": 1.0})
    environment.close()


def test_what_is_not_possible_is_invalid(data):
    task = chores(data, invalid=-0.1, turns=2)
    environment = task.environment()
    first = environment.reset(task.example("train", 0), 0)
    step = environment.step("take apple 1 from shelf 1")
    assert (step.valid, step.reward, step.observation.state) == (False, -0.1, first.state)
    assert step.observation.text.startswith("Nothing happens.")
    assert environment.step("look").truncated
    assert environment.score() == {"correct": 0.0}
    environment.close()


def test_a_worker_plays_the_same(data):
    task = chores(data)
    stage = WorkerStage(task, 1, timeout=60.0, memory_gb=4.0)
    try:
        example = task.example("eval", 1)
        assert stage.call("reset", [(0, (example, 3))])[0].text == example.prompt
        here = task.environment()
        here.reset(example, 3)
        assert stage.call("step", [(0, ("go to drawer 1",))])[0] == here.step("go to drawer 1")
        here.close()
    finally:
        stage.close()


def test_what_is_missing_is_said(data, tmp_path):
    with pytest.raises(InputError, match=r"alfworld-download.*task.data or ALFWORLD_DATA"):
        chores(tmp_path)
    with pytest.raises(InputError, match=r"no chore 'pick_and_place'. Did you mean 'pick_and_place_simple'"):
        chores(data, kinds=["pick_and_place"])
    with pytest.raises(InputError, match="None of the 4 games"):
        chores(data, kinds=["look_at_obj_in_light"])


def test_unsolvable_games_are_left_out(tmp_path):
    root = write_games(tmp_path)
    file = next((root / "json_2.1.1" / "train").rglob("game.tw-pddl"))
    file.write_text(json.dumps({**json.loads(file.read_text()), "solvable": False}))
    assert chores(root).size("train") == 3
