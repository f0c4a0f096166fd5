"""A parallel world of PettingZoo whose agents are one row, for values of joint actions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl.core.errors import InputError
from grouprl.policy import ArrayInputs, Build, TeamValues
from grouprl.protocols import DictSpace, MultiDiscrete
from grouprl.rollout.engines import local_engine
from grouprl.rollout.episode import Start
from grouprl.rollout.episodes import Episodes
from grouprl.rollout.vectors.array_episodes import play_arrays
from grouprl.tasks import load_task
from grouprl.testing import check_inputs

pytest.importorskip("pettingzoo", reason="pettingzoo is not installed: pip install 'grouprl[teams]'")


def pair(**options: Any) -> Any:
    return load_task({"name": "squad:parallel_pair", "together": True, "rounds": 4, **options})


def valued(task: Any) -> TeamValues:
    """A policy whose value of every action is its number."""
    policy = TeamValues(Build(task.spaces), hidden=(), mixer="sum", explore=0.9)
    with torch.no_grad():
        policy.part("single")[0].weight.zero_()  # type: ignore[index]
        policy.part("single")[0].bias.copy_(torch.tensor([0.0, 1.0, 2.0]))  # type: ignore[index]
    policy.follow()
    return policy


def played(task: Any, policy: TeamValues) -> Episodes:
    starts = [Start(task.example("train", i), i, action_seed=1000 * i) for i in range(5)]
    return play_arrays(
        local_engine(policy), task.environment, starts, spaces=task.spaces, max_turns=task.max_turns, agents=task.agents
    )


def test_a_row_holds_what_all_see_and_do_and_is_paid_their_mean() -> None:
    task = pair()
    assert task.agents == ("",)
    assert task.max_turns == 4
    assert isinstance(task.spaces.observation, DictSpace)
    assert task.spaces.action == MultiDiscrete((3, 3))
    episodes = played(task, valued(task))
    inputs: Any = episodes.rollout.inputs
    assert isinstance(inputs, ArrayInputs)
    check_inputs(inputs)
    assert inputs.observation_bt["own"][0, :, :, 0].tolist() == [[t, t] for t in range(4)]
    assert np.allclose(episodes.turn_reward_bs, inputs.action_bt.double().mean(-1))
    assert episodes.rollout.truncated_b.all()
    assert not (inputs.action_bt[:, 1:] == inputs.action_bt[:, :-1]).any()


def test_what_follows_a_round_and_a_cut_is_valued_by_the_open_actions() -> None:
    """The best of an agent that has just taken 2 is 1, of another one 2."""
    task = pair()
    policy = valued(task)
    inputs: Any = played(task, policy).rollout.inputs
    best_bt = policy.evaluate(inputs, ("best_after",))["best_after"]
    assert torch.equal(best_bt, torch.where(inputs.action_bt == 2, 1.0, 2.0).sum(-1))


def test_agents_that_see_each_other_or_leave_do_not_act_together() -> None:
    with pytest.raises(InputError, match=r"task.together with task.parents = all.*Leave one of them out"):
        pair(parents="all")
    found = played(pair(config={"leaves": True}), valued(pair()))
    assert all("All of a, b act at once" in each.what for each in found.failures)
    assert len(found.failures) == 5


def test_a_run_of_gmah_learns_what_pays(tmp_path: Path) -> None:
    """At most 2 and 1 in turn: the mean of four rounds is 6 in all for both; chance earns about 4."""
    grouprl.train(
        {
            "task": {"name": "squad:parallel_pair", "together": True, "rounds": 4},
            "model": {"name": "team_values", "settings": {"hidden": [16], "mixer": "sum"}},
            "method": {"name": "gmah", "explore_steps": 20},
            "steps": 30,
            "batch": {"prompts": 32, "group_size": 1, "epochs": 4, "minibatches": 4},
            "optim": {"lr": 0.01, "schedule": "constant"},
            "eval": {"every": 0, "prompts": 8, "final_prompts": 8},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    after = json.loads((tmp_path / "run" / "summary.json").read_text())["after"]
    assert after["eval/greedy_reward"] == 6
