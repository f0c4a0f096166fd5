"""ST-PPO's steps: what the clip leaves out, and by how much that shrinks them. Baselines that run along."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fake_context import FakeContext
from grouprl import InputError, method
from grouprl.algorithms.advantage.advantage import Given
from grouprl.algorithms.advantage.papers.mean_scaled import MeanScaled
from grouprl.algorithms.aggregate.aggregate import TokenMean
from grouprl.algorithms.augment.papers.running_baseline import RunningBaseline
from grouprl.algorithms.method import Method
from grouprl.algorithms.objective.adaptive_clip import TurnClip
from grouprl.algorithms.objective.objective import Clipped, PolicyGradient
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.clip_bias import ClipBias, clipped_terms
from grouprl.training.update import Learner, update
from small import f64, near, prepared, ragged, small
from updates import gradient, make_batch, make_policy


def plain(objective) -> Method:
    return Method(advantage=Given(), objective=objective, aggregate=TokenMean())


def test_what_the_clip_leaves_out():
    """Ratios 2, ½, 2 and ½ for advantages 1, -1, -1 and 1: the first two are clipped, each weighs ¼."""
    batch = prepared([[1, -1], [-1, 1]])
    batch = plain(Clipped()).compute_loss_weights(batch)
    logp_bt = (batch.old_bt + ragged([[0.6931472, -0.6931472], [0.6931472, -0.6931472]])).requires_grad_()
    out = clipped_terms(Clipped(), logp_bt, batch)
    (grad_bt,) = torch.autograd.grad(out, logp_bt)
    near(out.detach(), 0.5 - 0.125, atol=1e-6)
    near(grad_bt, [[0.5, -0.125], [0, 0]], atol=1e-6)
    assert clipped_terms(Clipped(clip_high=3.0, clip_low=0.9), logp_bt, batch) is None


def test_turns_are_clipped_whole():
    """One turn of ratios 4 and 1, mean 2: both its tokens are left out, and share the gradient."""
    batch = prepared([[1, 1]], turn_bt=torch.tensor([[0, 0]]))
    batch = plain(TurnClip()).compute_loss_weights(batch)
    logp_bt = (batch.old_bt + ragged([[1.3862944, 0.0]])).requires_grad_()
    (grad_bt,) = torch.autograd.grad(clipped_terms(TurnClip(), logp_bt, batch), logp_bt)
    near(grad_bt, [[1.0, 1.0]], atol=1e-6)


def test_other_objectives_are_refused():
    batch = plain(PolicyGradient()).compute_loss_weights(prepared([[1.0]]))
    with pytest.raises(InputError, match="clip_bias with the objective policy_gradient"):
        clipped_terms(PolicyGradient(), batch.old_bt, batch)


def learner_of(policy, chosen) -> Learner:
    return Learner(policy, torch.optim.SGD(policy.parameters(), lr=1.0), chosen, grad_clip=0.0)


def far_off(policy, shift: float):
    """A batch whose old log-probs lie `shift` below the policy's on every second token."""
    batch = make_batch(policy)
    old_bt = policy.logp(batch.inputs)
    odd_bt = torch.arange(old_bt.shape[1]) % 2 == 1
    old_bt = torch.where(batch.mask_bt, old_bt - shift * odd_bt, 0)
    return batch.replace(old_bt=old_bt, behavior_bt=old_bt)


@pytest.mark.parametrize("least", [1e-6, 1e6])
def test_steps_are_divided_by_the_norm_of_what_is_left_out(least):
    policy, chosen = make_policy(), plain(Clipped()).with_parts(update=ClipBias(least=least))
    batch = far_off(policy, 1.0)
    adv_bt = torch.where(batch.mask_bt, torch.ones_like(batch.old_bt), 0)
    ready = chosen.compute_advantages(batch.replace(advantage_bt=adv_bt))
    learner = learner_of(policy, chosen)
    (step,) = learner.steps(ready)
    norm = ClipBias().norm(learner.without_critic(), step)
    assert norm > 0
    learner.accumulate(step)
    whole = gradient(policy)
    before = torch.cat([p.detach().flatten().clone() for p in policy.parameters()])
    (record,) = list(chosen.update(learner, ready))
    moved = before - torch.cat([p.detach().flatten() for p in policy.parameters()])
    divisor = max(norm, least)
    torch.testing.assert_close(moved, whole / divisor, rtol=1e-5, atol=1e-9)
    assert record["clip_bias"] == pytest.approx(norm)
    assert record["grad_norm"] == pytest.approx(float(whole.norm()) / divisor, rel=1e-5)


def test_without_clipped_tokens_it_is_turn_ppo():
    found = []
    for name in ("turn_ppo", "st_ppo"):
        policy, chosen = make_policy(value_head=True), method(name, kl_coef=0.0)
        batch = far_off(policy, 0.0)
        values = torch.linspace(0, 1, batch.mask_bt.numel(), dtype=torch.float64).view_as(batch.mask_bt)
        batch = batch.replace(value_bt=values, turn_bt=torch.where(batch.mask_bt, 0, -1))
        update(
            policy,
            torch.optim.SGD(policy.parameters(), lr=1.0),
            chosen,
            chosen.compute_advantages(batch),
            grad_clip=0.0,
        )
        found.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-6, atol=1e-9)


def test_one_update_clips_nothing():
    assert ClipBias().idle(RunFacts(updates_per_rollout=1))
    assert not ClipBias().idle(RunFacts(updates_per_rollout=2))


# --- running baselines and mean-scaled rewards -------------------------------------------------------------------


def test_baselines_run_along_agent_by_agent():
    """RAE's rule with d = ½: agent 0 earns 1, 1 and agent 1 earns 0, 1 in this order."""
    context, part = FakeContext((1.0, 0.0) * 4, completions=2, prompts=2), RunningBaseline(decay=0.5)
    rows = context.sample(context.take(2)).with_extras(agent_b=np.array([0, 1, 0, 1]))
    rewards = rows.scores.reward_b.tolist()
    near(part.fill(context.batch(rows), rows, context).past["baseline"], [0, 0, 0, 0])
    part.observe(rows, None, context)
    expected = [0.5 * (0.5 * rewards[i]) + 0.5 * rewards[i + 2] for i in (0, 1)]
    near(part.fill(context.batch(rows), rows, context).past["baseline"], [*expected, *expected])


def test_rewards_in_units_of_their_mean():
    near(MeanScaled(eps=0.0)(small([1, 0, 0, 0])), [[3], [-1], [-1], [-1]])
    near(MeanScaled()(small([0, 0])), [[0], [0]])
    near(MeanScaled()(small([-1, -3])), [[0], [0]])
    near(MeanScaled(eps=0.0)(small([1, 1])), [[0], [0]])
    apart = small([1, 0, 3, 1], groups=[0, 0, 1, 1]).replace(stat_b=torch.tensor([True] * 4))
    near(MeanScaled(eps=0.0)(apart)[:, 0], f64([1, -1, 0.5, -0.5]))
