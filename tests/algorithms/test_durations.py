"""Weights of turns by how long their actions took, as the environment says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import toy_envs
from episode_runs import launch, records
from grouprl.algorithms.token_weight.papers.duration import DurationWeight
from grouprl.envs import Step
from grouprl.policy import load_policy
from grouprl.rollout.episodes import Start, play
from grouprl.tasks import Example
from small import f64, near, small


def test_slow_actions_weigh_more():
    """The paper's example: durations 1 and 10 weigh 2/11 and 20/11, whatever their tokens."""
    batch = small(
        [0, 0], [3, 1], turn_bt=torch.tensor([[0, 0, 0], [0, -1, -1]]), stats={"duration": f64([[1] * 3, [10, 0, 0]])}
    )
    near(DurationWeight()(batch), [[2 / 11] * 3, [20 / 11, 0, 0]])


def test_actions_push_alike_however_often_time_lets_them_finish():
    """Two arms of 1 and 10 seconds: in the same time one finishes ten times as often, and weighs a tenth."""
    turns = [1.0] * 10 + [10.0]
    batch = small(
        [0] * 11, turn_bt=torch.zeros(11, 1, dtype=torch.int64), stats={"duration": f64([[x] for x in turns])}
    )
    weight = DurationWeight()(batch)[:, 0]
    assert float(weight[:10].sum()) == pytest.approx(float(weight[10]))
    assert float(weight.mean()) == pytest.approx(1.0)


@pytest.fixture(scope="module")
def policy() -> Any:
    return load_policy(
        "tiny", alphabet=toy_envs.AskTask.alphabet, hidden=16, layers=1, heads=2, intermediate=16, seed=1
    )


class Slow(toy_envs.Asking):
    """Asking takes four seconds, answering one."""

    told: Any = 4.0

    def step(self, action: str) -> Step:
        step = super().step(action)
        info = {"seconds": self.told if self.turn == 1 else 1}
        return Step(step.observation, step.reward, step.terminated, step.truncated, step.valid, info)


def test_episodes_keep_what_the_environment_says(policy):
    example = Example("ask/train/0", "?", {"letter": "a"})
    played = play(policy, Slow, [Start(example, 0)], max_turns=2, max_new_tokens=2)
    assert [turn.seconds for turn in played.records[0].turns] == [4.0, 1.0]


@pytest.mark.parametrize("told", [0, -1.0, float("nan"), "long", 10**400])
def test_times_that_are_none_end_the_episode(policy, told):
    class Odd(Slow):
        pass

    Odd.told = told
    played = play(policy, Odd, [Start(Example("q", "?", {"letter": "a"}), 0)], max_turns=2, max_new_tokens=2)
    (failure,) = played.failures
    assert "not a positive number" in failure.what


class SlowTask(toy_envs.AskTask):
    """The toy with slow prompts."""

    def environment(self) -> Any:
        return Slow()


def test_a_run_reads_durations(tmp_path: Path) -> None:
    folder = launch(tmp_path / "run", task=f"{__file__}:SlowTask", method="duration_aware", eval={"final_prompts": 4})
    assert records(folder, "train")[-1]["grad_norm"] > 0
