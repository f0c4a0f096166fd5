"""Returns to go: what stored observations show is what an episode shows that is asked for the same return."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import choices
from grouprl.config.run import parse_config
from grouprl.core.errors import InputError
from grouprl.envs.environment import Step
from grouprl.plan.plan import plan
from grouprl.protocols import Box, DictSpace, Discrete, MultiDiscrete, Spaces
from grouprl.records.examples import Example
from grouprl.records.offline import StoredEpisode
from grouprl.tasks import load_task
from grouprl.tasks.adapters.trajectories.return_to_go import AskedEpisode, asking_episode, asking_spaces, return_scale
from grouprl.testing import check_environment, check_stored_rows
from grouprl.training.loop import train

PAID = np.array([1.0, 0.0, -3.0])


def choosing(folder: Path, target: float | None) -> dict[str, Any]:
    choices.store(folder / "choices.jsonl")
    of = f"env:{choices.__file__}:Choices"
    return {"name": f"trajectories:{folder / 'choices.jsonl'}", "of": of, "target": target}


def stored(actions: np.ndarray, observations: Any = None) -> StoredEpisode:
    seen = np.arange(8, dtype=np.float32).reshape(4, 2) if observations is None else observations
    return StoredEpisode(seen, actions, PAID, True)


def test_observations_show_what_is_to_go_and_the_action_before() -> None:
    row, spaces = stored(np.array([2, 0, 1])), Spaces(Box((2,)), Discrete(3))
    assert return_scale([row]) == 3.0
    found: Any = asking_episode(row, spaces, 4.0).observations
    assert found["to_go"][:, 0].tolist() == [-0.5, -0.75, -0.75, 0.0]
    assert found["before"].tolist() == [3, 2, 0, 1]
    assert found["seen"].tolist() == row.observations.tolist()  # type: ignore[union-attr]
    assert asking_spaces(spaces).observation == DictSpace(
        {"seen": Box((2,)), "to_go": Box((1,)), "before": Discrete(4)}
    )


def test_several_numbers_and_vectors_have_an_action_before_the_first() -> None:
    named = {"at": np.zeros((4, 1), np.float32)}
    several = asking_episode(
        stored(np.array([[0, 1], [1, 2], [0, 0]]), named),
        Spaces(DictSpace({"at": Box((1,))}), MultiDiscrete((2, 3))),
        1.0,
    )
    assert several.observations["before"].tolist() == [[2, 3], [0, 1], [1, 2], [0, 0]]
    spaces = Spaces(Box((2,)), Box((1,), -1, 1))
    vector = asking_episode(stored(np.array([[0.5], [-0.5], [1.0]], np.float32)), spaces, 1.0)
    assert vector.observations["before"].tolist() == [[0.0], [0.5], [-0.5], [1.0]]
    assert asking_spaces(spaces).observation.spaces["before"] == Box((1,))  # type: ignore[union-attr]


def test_nothing_earned_has_the_unit_1() -> None:
    assert return_scale([StoredEpisode(np.zeros((2, 1)), np.array([0]), np.zeros(1), True)]) == 1.0


def test_an_episode_that_is_asked_for_what_was_earned_shows_what_is_stored(tmp_path: Path) -> None:
    task: Any = load_task(choosing(tmp_path, 1.0))
    for number in range(5):
        (row,) = task.stored_rows(task.example("train", number))
        world = pickle.loads(pickle.dumps(task)).environment()  # as in a worker, without the trajectories
        world.target = row.total
        played = [world.reset(task.example("eval", 0), 0).values]
        played += [world.step(int(action)).observation.values for action in row.actions]
        for name, column in row.observations.items():
            np.testing.assert_array_equal(np.stack([each[name] for each in played]), column)


def test_what_is_asked_and_stored_keeps_the_rules(tmp_path: Path) -> None:
    task: Any = load_task(choosing(tmp_path, 2.0))
    check_stored_rows(task)
    check_environment(task.environment, task.example("eval", 0), [1, 0, 0, 1], spaces=task.spaces)
    assert "return 0 to 1" in task.notes[0]
    assert load_task(choosing(tmp_path, None)).spaces == choices.Choices.spaces
    assert task.fingerprint() != load_task(choosing(tmp_path, 1.0)).fingerprint()


def test_arrays_stand_in_place_of_observations_and_scores_are_the_world_s() -> None:
    class Bare:
        def reset(self, example: Example, seed: int) -> np.ndarray:
            return np.zeros(1, np.float32)

        def step(self, action: int) -> Step:
            return Step(np.ones(1, np.float32), 0.5, terminated=True)  # type: ignore[arg-type]

        def score(self) -> dict[str, float]:
            return {"correct": 1.0}

        def close(self) -> None:
            self.closed = True

    inner = Bare()
    world = AskedEpisode(inner, Spaces(Box((1,)), Discrete(2)), target=2.0, scale=4.0)
    assert world.reset(Example("any", ""), 0).values["to_go"].tolist() == [0.5]  # type: ignore[index]
    step: Any = world.step(1)
    assert (step.reward, step.terminated) == (0.5, True)
    assert step.observation.values["to_go"].tolist() == [0.375]
    assert step.observation.values["before"] == 1
    assert world.score() == {"correct": 1.0}
    world.close()
    assert inner.closed


def test_names_that_are_taken_and_chains_are_refused() -> None:
    for spaces in (Spaces(DictSpace({"to_go": Box((1,))}), Discrete(2)), Spaces(Box((1,)), Box((1,)), chain=2)):
        with pytest.raises(InputError, match=r"Leave task\.target out"):
            asking_spaces(spaces)


def run(task: Any, **changes: Any) -> Any:
    settings = {
        "task": task,
        "model": {"name": "decision_transformer", "settings": {"window": 2, "width": 16}},
        "method": "mo_dt",
        "steps": 20,
        "batch": {"prompts": 20, "group_size": 1},
        "optim": {"lr": 0.02, "schedule": "constant"},
        "eval": {"every": 0, "final_prompts": 2},
        "environment": {"workers": 0},
        "run": {"threads": 1},
    }
    return parse_config({**settings, **changes})


def test_a_run_earns_what_it_is_asked_for(tmp_path: Path) -> None:
    """Four in five trajectories earn 1 in one of four places, the others nothing."""
    for target in (0.0, 1.0):
        train(run(choosing(tmp_path, target)), folder=tmp_path / f"run{target}", console=Console(quiet=True))
        summary = json.loads((tmp_path / f"run{target}" / "summary.json").read_text())
        assert summary["after"]["eval/greedy_reward"] == target
    rows = [json.loads(line) for line in (tmp_path / "run1.0" / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["phase"] == "train"]
    for name in ("observation_error", "to_go_error"):
        assert 0 < steps[-1][name] < steps[0][name]


def test_policies_without_foresight_are_refused(tmp_path: Path) -> None:
    found = plan(run(choosing(tmp_path, 1.0), model={"name": "mlp", "settings": {"hidden": [8]}}))
    assert any("observation_error" in str(each) for each in found.refusals)


class Waiting:
    """An environment whose methods are coroutines."""

    spaces = Spaces(Box((1,)), Discrete(2))

    async def reset(self, example: Example, seed: int) -> np.ndarray:
        self.closed = False
        return np.zeros(1, np.float32)

    async def step(self, action: int) -> Step:
        return Step(np.ones(1, np.float32), 2.0, True)  # type: ignore[arg-type]

    async def score(self) -> dict[str, float]:
        return {"correct": 1.0}

    async def close(self) -> None:
        self.closed = True


def test_an_environment_of_coroutines_can_be_asked() -> None:
    inner: Any = Waiting()
    asked = AskedEpisode(inner, Waiting.spaces, 3.0, 1.0)
    first: Any = asked.reset(Example("q", "", {}), 0)
    assert first.values["to_go"].tolist() == [3.0]
    last: Any = asked.step(1)
    assert last.observation.values["to_go"].tolist() == [1.0]
    assert asked.score() == {"correct": 1.0}
    asked.close()
    assert inner.closed
