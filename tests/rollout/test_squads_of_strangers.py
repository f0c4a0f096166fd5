"""Parallel environments that break PettingZoo's rules: they are played with the right numbers, or refused in words."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grouprl.core.errors import InputError
from grouprl.rollout.episode_rows import demonstrates, environments
from grouprl.tasks import load_task

pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")
FILE = Path(__file__).parents[1] / "support" / "parallel_strangers.py"


def squad(wrong: Any, kind: str = "squad") -> Any:
    return load_task({"name": f"{kind}:{FILE}:Rounds", "config": {"wrong": wrong}})


def played(task: Any, turns: int) -> tuple[list[str], dict[str, float], bool]:
    """Act `turns` times, and return who acted, what each earned and whether the episode is over."""
    environment = task.environment()
    shown, earned, acted = environment.reset(task.example("train", 0), 0), {"a": 0.0, "b": 0.0}, []
    for _ in range(turns):
        acted.append(shown.agent)
        step = environment.step(1)
        shown = step.observation
        for agent, reward in step.rewards.items():
            earned[agent] += reward
    return acted, earned, step.terminated


def test_agents_that_have_ended_do_not_act_though_the_environment_still_lists_them() -> None:
    """a plays rounds 1, 2 and 3, b only the first: 1 + 2 + 3 and 1; then the episode is over."""
    assert played(squad("listed"), 4) == (["a", "b", "a", "a"], {"a": 6.0, "b": 1.0}, True)


def test_an_agent_that_was_taken_off_the_list_may_come_back() -> None:
    """a plays rounds 1, 2 and 3, b the first and the last."""
    assert played(squad("back"), 5) == (["a", "b", "a", "a", "b"], {"a": 6.0, "b": 4.0}, True)


def test_an_action_that_is_one_real_number_stays_real() -> None:
    task = squad("real")
    environment = task.environment()
    environment.reset(task.example("train", 0), 0)
    environment.step(np.array([0.5]))
    assert environment.step(np.array([-0.25])).rewards == {"a": 0.5, "b": -0.25}


@pytest.mark.parametrize("kind", ["squad", "pettingzoo"])
@pytest.mark.parametrize("names", [[0, 1], ["a", "a"], ["a", 1]])
def test_names_of_agents_are_different_texts(names: list[Any], kind: str) -> None:
    with pytest.raises(InputError, match=r"possible_agents is \[.*names, which are texts.*agent_0"):
        squad(names, kind)


def test_an_agent_that_was_not_named_is_told() -> None:
    task = squad("unknown")
    with pytest.raises(InputError, match=r"reset\(\) lets the agent 'c' act.*The agents are a, b"):
        task.environment().reset(task.example("train", 0), 0)


ALL = {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"rewards": {**ALL, "c": 5.0}}, r"step\(\) returned a reward of the agent 'c'. The agents are a, b"),
        ({"rewards": {"a": 1.0}}, r"step\(\) returned no reward of the agent 'b'.*Return 0.0"),
        ({"rewards": {**ALL, "a": None}}, "the reward of 'a' None.*one finite number. Return 0.0"),
        ({"rewards": {**ALL, "a": np.ones(1)}}, r"the reward of 'a' array\(\[1.\]\).*Return its .item\(\)"),
        ({"rewards": {**ALL, "a": Fraction(1, 3)}}, r"the reward of 'a' Fraction\(1, 3\).*Return float"),
        ({"ended": {"c": True}}, "a termination of the agent 'c'"),
        ({"cut": {"__all__": True}}, "a truncation of the agent '__all__'"),
        ({"infos": {"a": []}}, r"returned the info \[\] of the agent 'a'. It must be a mapping"),
        ({"agents": ["a", ["b"]]}, r"step\(\) lets the agent \['b'\] act"),
    ],
)
def test_what_is_of_no_agent_is_neither_lost_nor_replaced(odd: Any, said: str, together: bool) -> None:
    task = load_task({"name": f"squad:{FILE}:Rounds", "config": {"wrong": odd}, "together": together})
    environment = task.environment()
    environment.reset(task.example("train", 0), 0)
    with pytest.raises(InputError, match=said):
        for action in [np.array([0, 1])] if together else (0, 1):
            environment.step(action)


@pytest.mark.parametrize("kind", ["squad", "pettingzoo"])
def test_an_environment_without_names_is_told(kind: str) -> None:
    with pytest.raises(InputError, match=r"possible_agents is empty or missing.*__init__"):
        squad("nameless", kind)


@pytest.mark.parametrize("kind", ["squad", "pettingzoo"])
def test_a_reset_without_a_seed_is_told_with_the_remedy(kind: str) -> None:
    task = load_task({"name": f"{kind}:{FILE}:Seedless"})
    with pytest.raises(InputError, match=r"Seedless.reset\(\) got an .*'seed'.*Write it as reset\(self, seed=None"):
        task.environment().reset(task.example("train", 0), 0)


def test_a_world_that_does_not_close_is_told_wherever_it_is_looked_at() -> None:
    with pytest.warns(RuntimeWarning, match="failed to close: RuntimeError: stuck"):
        task = squad("close")
    for look in (environments, demonstrates):
        with pytest.warns(RuntimeWarning, match="failed to close: RuntimeError: stuck"):
            look(task)
