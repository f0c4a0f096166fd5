"""DR-IRL: likeness and scale by hand, what a constant scale does not change, and runs with the learned reward."""

from __future__ import annotations

import math

import pytest
import torch

import grouprl
from grouprl.algorithms.advantage_transform.papers.difficulty_scale import DifficultyScale
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.pretrain.papers.irl_reward import IrlReward, likeness
from pretraining_runs import cut_at, records, run
from small import f64, near, small

METHOD = {
    "base": "grpo",
    "pretrain": [{"part": "irl_reward", "steps": 3, "lr": 3e-3, "epochs": 2}],
    "reward_transform": ["learned_reward"],
    "advantage_transform": ["difficulty_scale"],
}


def batch_of(hard, gap, rewards=(1.0, 0.0, 0.0)):
    batch = small(list(rewards), groups=[0] * 3)
    stats = {"hardness": f64([[x] for x in hard]), "demonstration_gap": f64([[x] for x in gap])}
    return batch.replace(stats=stats)


def test_likeness_by_hand():
    """(1,2) and (1,1): 3/√10."""
    assert likeness([4, 5, 5], [5, 4]) == pytest.approx(3 / math.sqrt(10))
    assert likeness([4, 5], [5, 4]) == pytest.approx(1)
    assert likeness([4], [5]) == 0
    assert likeness([], [5]) == 0


def test_the_scale_by_hand():
    """(1 + 2·½)·(1 + 4·½) = 6 where r* = r; σ(ln 3) = ¾."""
    part = DifficultyScale(hardness=2.0, gap=4.0)
    adv_bt = f64([[1.0], [-1.0], [0.5]])
    near(part(adv_bt, batch_of([0.5, 0, 1], [0, math.log(3), -500])), f64([[6.0], [-4.0], [1.5]]))
    near(DifficultyScale(hardness=0, gap=0)(adv_bt, batch_of([0.5, 0, 1], [0, 2, 500])), adv_bt)
    assert DifficultyScale(hardness=0, gap=0).idle(RunFacts())
    assert not part.idle(RunFacts())


def test_it_grows_with_both_and_stays_finite():
    part, one_bt = DifficultyScale(), f64([[1.0]] * 3)
    hard = part(one_bt, batch_of([0, 0.5, 1], [0, 0, 0]))[:, 0]
    gap = part(one_bt, batch_of([0, 0, 0], [-500, 0, 500]))[:, 0]
    assert hard.diff().min() > 0
    near(gap, f64([1.0, 1.5, 2.0]))


def test_a_scale_of_rewards_that_a_group_shares_cancels_and_one_of_advantages_does_not():
    method = grouprl.method("grpo")
    once, thrice = (method.prepare(batch_of([0] * 3, [0] * 3, (x, 0.0, 0.0))).advantage_bt for x in (1.0, 3.0))
    assert torch.allclose(once, thrice, atol=1e-3)
    near(DifficultyScale(gap=0)(once, batch_of([1] * 3, [0] * 3)), 2 * once)


def test_a_run_fits_the_reward_to_demonstrations_and_resumes_to_the_bit(tmp_path):
    whole = run(tmp_path / "run", METHOD)
    before, steps = records(whole, "pretraining"), records(whole, "train")
    assert all(0 < record["pairs"] <= 48 for record in before), "a pair for each completion that is no demonstration"
    assert before[-1]["preference_accuracy"] > 0.5
    assert all(step["grad_norm"] > 0 for step in steps)
    cut = cut_at(whole, tmp_path / "cut", "pretraining-000002")
    assert records(cut, "pretraining") == before
    assert records(run(cut, METHOD, resume=True), "train") == steps


def test_a_task_without_demonstrations_and_a_scale_without_its_model_are_refused():
    assert "solutions" in IrlReward().refuse(RunFacts(demonstrations=False))[0]
    with pytest.raises(grouprl.InputError, match="hardness"):
        grouprl.train({"task": "addition", "method": {"base": "grpo", "advantage_transform": ["difficulty_scale"]}})
