"""CGPO, PPO-max, DR-PO and best of n: gates, pairs, moments and prefixes by hand, and what they reduce to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import grouprl
from grouprl.algorithms.augment.papers.running_moments import NOTHING, merged
from grouprl.algorithms.filter.best_of_group import BestOfGroup, extreme
from grouprl.algorithms.filter.papers.best_allowed import JudgedPair
from grouprl.algorithms.reward_transform.calibrated_reward import CalibratedReward
from grouprl.algorithms.reward_transform.papers.running_scale import RunningScale
from grouprl.algorithms.sampling.papers.prefix_restarts import DatasetResets
from grouprl.methods.compose import compose
from small import f64, near, small


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def judged(rewards, safe, *, groups=None, **fields):
    batch = small(rewards, groups=groups or [0] * len(rewards), **fields)
    return batch.replace(rewards={"safe": f64(safe), "base": f64([1.0] * len(rewards))})


def test_a_judge_that_objects_leaves_nothing_and_the_baseline_is_subtracted() -> None:
    part = CalibratedReward(constraints=("safe",), baseline="base")
    near(part(judged([3.0, 3.0, 0.0], [1, 0, 1])).reward_b, f64([sigma(2), 0, sigma(-1)]))


@pytest.mark.parametrize(("gate", "expected"), [("linear", [0.75, 1.125, 0.0]), ("hard", [1.0, 1.0, 0.0])])
def test_the_gate_of_the_kl(gate, expected) -> None:
    """KL = 1, -0.5 and 5 nats over two tokens, the limit 4."""
    old_bt, ref_bt = f64([[-0.5, -0.5], [-1.0, -1.0], [-0.5, -0.5]]), f64([[-1.0, -1.0], [-0.75, -0.75], [-3.0, -3.0]])
    batch = judged([1.0] * 3, [1] * 3, mask_bt=torch.ones(3, 2, dtype=torch.bool), old_bt=old_bt, ref_bt=ref_bt)
    found = CalibratedReward(baseline="base", kl_limit=4.0, kl_gate=gate)(batch).reward_b
    near(found, f64(expected) / 2)


def test_crpg_without_gates_is_reinforce_on_the_calibrated_reward() -> None:
    batch = judged([2.0, 0.0, 1.0, 1.0], [1] * 4, groups=[0, 0, 1, 1])
    logp_bt = f64([[-0.5], [-1.0], [-0.25], [-2.0]]).requires_grad_()
    method = grouprl.method("crpg", baseline="base")
    prepared = method.prepare(batch)
    reward = [sigma(1), sigma(-1), 0.5, 0.5]
    mean = sum(reward) / 4
    near(prepared.advantage_bt[:, 0], f64([r - mean for r in reward]))
    method.loss(logp_bt, prepared).value.backward()
    near(logp_bt.grad[:, 0], f64([-(r - mean) / 4 for r in reward]))


def test_all_refused_is_no_loss_and_no_gradient() -> None:
    batch = judged([2.0, 1.0], [0, 0], ref_bt=f64([[-1.0], [-1.0]]))
    for name, more in (("crpg", {"baseline": "base"}), ("crraft", {"baseline": "base"}), ("codpo", {})):
        logp_bt = f64([[-0.5], [-1.0]]).requires_grad_()
        method = grouprl.method(name, constraints=("safe",), **more)
        loss = method.loss(logp_bt, method.prepare(batch)).value
        loss.backward()
        assert (float(loss.detach()), float(logp_bt.grad.abs().sum())) == (0, 0), name


def test_codpo_pairs_the_best_accepted_with_the_worst_refused() -> None:
    """A refused completion with a large reward is the loser; it is not mistaken for an accepted one."""
    batch = JudgedPair(constraints=("safe",))(judged([5.0, 1.0, 2.0, 4.0], [0, 1, 1, 0]))
    assert batch.active_bt.any(1).tolist() == [False, False, True, True]
    assert batch.reward_b.tolist()[2:] == [1, 0]


def test_where_all_are_accepted_codpo_is_dpo_of_best_and_worst_with_nll() -> None:
    batch = judged([1.0, 0.0], [1, 1], ref_bt=f64([[-1.0], [-0.5]]))
    logp_bt = f64([[-0.5], [-1.0]])
    method = grouprl.method("codpo", constraints=("safe",), beta=0.3, nll_coef=0.7)
    found = method.loss(logp_bt, method.prepare(batch)).value
    near(found, math.log1p(math.exp(-0.3 * (0.5 + 0.5))) + 0.7 * 0.5)


def test_a_group_of_equal_completions_has_no_judged_pair() -> None:
    batch = JudgedPair()(judged([1.0, 1.0, 2.0, 1.0], [1] * 4, groups=[0, 0, 1, 1]))
    assert batch.active_bt.any(1).tolist() == [False, False, True, True]


def test_crraft_weighs_the_best_by_its_calibrated_reward() -> None:
    batch = judged([3.0, 2.0, 0.5], [0, 1, 1])
    method = grouprl.method("crraft", constraints=("safe",), baseline="base")
    near(method.loss(f64([[-1.0], [-2.0], [-4.0]]), method.prepare(batch)).value, 2 * sigma(1))


def test_the_best_of_a_group_and_its_equals_are_kept() -> None:
    reward_b, group_b = f64([1, 3, 3, 2, 0]), torch.tensor([1, 0, 0, 1, 1])
    allowed_b = torch.ones(5, dtype=torch.bool)
    assert extreme(reward_b, group_b, allowed_b).tolist() == [False, True, True, True, False]
    allowed_b[3] = False
    assert extreme(reward_b, group_b, allowed_b).tolist() == [True, True, True, False, False]
    assert not BestOfGroup(above=5.0)(small([1, 3], groups=[0, 0])).active_bt.any()


def test_moments_of_steps_are_those_of_all_rewards() -> None:
    steps = [np.array([1.0, 4.0]), np.array([0.5]), np.array([-2.0, 3.0, 3.0])]
    known = NOTHING
    for step in steps:
        squares = float(((step - step.mean()) ** 2).sum())
        known = merged(known, {"count": len(step), "mean": float(step.mean()), "squares": squares})
    whole = np.concatenate(steps)
    assert known["count"] == 6
    assert known["mean"] == pytest.approx(whole.mean())
    assert known["squares"] / 5 == pytest.approx(whole.var(ddof=1))


def test_rewards_are_in_units_of_their_running_spread() -> None:
    past = {"reward_std": f64([2.0, 2.0]), "reward_mean": f64([1.0, 1.0])}
    batch = small([4.0, -2.0], groups=[0, 0]).replace(past=past)
    assert RunningScale()(batch).reward_b.tolist() == [2, -1]
    assert RunningScale(center=True)(batch).reward_b.tolist() == [1.5, -1.5]
    flat = batch.replace(past={"reward_std": f64([0.0, 0.0])})
    assert RunningScale()(flat).reward_b.tolist() == [4, -2], "one reward has no spread"


def test_a_reset_is_uniform_from_one_token_to_one_less_than_the_answer() -> None:
    part = DatasetResets()
    assert {part.given(u, 4, None) for u in np.linspace(0, 0.999, 50)} == {1, 2, 3}
    assert [part.given(0.99, tokens, None) for tokens in (0, 1, 2)] == [0, 0, 1]


def test_a_greedy_baseline_without_greedy_completions_is_refused() -> None:
    with pytest.raises(grouprl.InputError, match="reward_transform 'calibrated_reward' without greedy completions"):
        compose({"base": "grpo", "reward_transform": ["calibrated_reward"]})
