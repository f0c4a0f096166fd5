"""The composition: order of parts, masks, padding, micro-batches, metrics, errors."""

from __future__ import annotations

from math import nan

import pytest
import torch

import grouprl
from grouprl import InputError, Method
from grouprl.algorithms.advantage.advantage import Given, RawReward, Relative
from grouprl.algorithms.advantage.returns import GAE
from grouprl.algorithms.advantage_transform.advantage_transform import Whiten
from grouprl.algorithms.aggregate.aggregate import SequenceMean, TokenMean
from grouprl.algorithms.critic.critic import ValueLoss
from grouprl.algorithms.filter.filter import MixedGroups
from grouprl.algorithms.filter.papers.drop_truncated import DropTruncated
from grouprl.algorithms.objective.objective import Clipped, PolicyGradient
from grouprl.algorithms.regularize.regularize import EntropyBonus, KLLoss
from grouprl.algorithms.reward_transform.reward_transform import RewardClip, SoftOverlong
from grouprl.algorithms.token_weight.importance import TruncatedImportance
from grouprl.algorithms.token_weight.token_weight import OffPolicyMask
from small import f64, gradient, near, ragged, small, summed

BASIC = Method(objective=PolicyGradient(), advantage=Relative(scale="none"), aggregate=TokenMean())


def test_the_public_contract():
    batch = grouprl.Batch(
        mask_bt=torch.tensor([[True, True], [True, False]]),
        group_b=torch.tensor([0, 0]),
        reward_b=f64([1.0, 0.0]),
        old_bt=f64([[-1.0, -1.0], [-1.0, -1.0]]),
    )
    for name in ("grpo", "dapo", "gspo", "cispo"):
        method = grouprl.method(name)
        ready = method.prepare(batch)
        assert ready.advantage_bt.dtype == ready.weight_bt.dtype == torch.float64
        loss = method.loss(batch.old_bt, ready)
        assert loss.value.ndim == 0
        assert loss.metrics["ratio_mean"] == pytest.approx(1.0)
    assert grouprl.method("dapo", clip_high=0.3).objective.clip_high == 0.3
    assert {"grpo", "dapo", "ppo", "sft"} <= set(grouprl.methods())


def test_shaping_comes_before_selection_before_advantages_before_normalisation_before_weights():
    method = summed(
        Relative(scale="none"),
        PolicyGradient(),
        reward_transform=(RewardClip(limit=2.0),),
        filter=(DropTruncated(in_statistics=False),),
        advantage_transform=(Whiten(eps=0.0),),
        token_weight=(OffPolicyMask(delta=0.5),),
    )
    batch = small([9.0, 0.0, 5.0], truncated_b=[False, False, True], behavior_bt=[[-1.0], [0.0], [0.0]])
    ready = method.prepare(batch)
    near(ready.reward_b, [2.0, 0.0, 2.0])
    near(ready.raw_reward_b, [9.0, 0.0, 5.0])
    near(ready.advantage_bt[:, 0], [1.0, -1.0, 0.0])
    near(ready.multiplier_bt[:, 0], [1.0, 0.0, 1.0])
    near(gradient(method, batch, batch.old_bt)[:, 0], [-1.0, 0.0, 0.0])


def test_factors_multiply_the_policy_loss_alone():
    batch = small([2.0], ref_bt=[[-1.5]], behavior_bt=[[-0.5]])
    kl = KLLoss(coef=1.0, estimator="k2")
    method = summed(RawReward(), PolicyGradient(), token_weight=(TruncatedImportance(),), regularize=(kl,))
    near(gradient(method, batch, batch.old_bt), [[-2.0 * torch.tensor(-0.5).exp().item() + 0.5]], 1e-7)
    given = batch.replace(multiplier_bt=f64([[0.0]]))
    near(gradient(method, given, batch.old_bt), [[0.5]])


def test_tokens_out_of_the_loss_have_no_gradient_of_any_term():
    batch = small([1.0], [3], ref_bt=[[-2.0] * 3], loss_mask_bt=[[True, False, True]])
    kl = KLLoss(coef=1.0, estimator="k2")
    method = Method(
        objective=Clipped(), advantage=RawReward(), aggregate=TokenMean(), regularize=(kl, EntropyBonus(coef=1.0))
    )
    ready = method.prepare(batch)
    leaves = [batch.old_bt.clone().requires_grad_(), torch.ones(1, 3, dtype=torch.float64, requires_grad=True)]
    grads = torch.autograd.grad(method.loss(leaves[0], ready, leaves[1]).value, leaves)
    assert [bool(g[0, 1]) for g in grads] == [False, False]
    near(grads[0][0, [0, 2]], [0.0, 0.0])
    near(grads[1], [[-0.5, 0.0, -0.5]])


def test_a_loss_mask_cannot_reach_beyond_the_action_mask():
    batch = small([1.0], [2], mask_bt=[[True, False]], loss_mask_bt=[[True, True]])
    near(BASIC.with_parts(advantage=RawReward()).prepare(batch).weight_bt, [[1.0, 0.0]])


def test_garbage_on_padding_reaches_nothing():
    fields = {"ref_bt": [[-1.2, -1.4], [-1.0, nan]], "value_bt": [[0.1, 0.2], [0.3, nan]]}
    batch = small([1.0, 0.0], [2, 1], old_bt=ragged([[-1.0, -1.0], [-1.0, nan]]), **fields)
    method = grouprl.method("ppo", kl_coef=0.1, entropy_coef=0.1)
    ready = method.prepare(batch)
    logp_bt = ragged([[-0.9, -1.1], [-1.0, nan]]).requires_grad_()
    entropy_bt = ragged([[1.0, 1.0], [1.0, nan]]).requires_grad_()
    value_bt = ragged([[0.0, 0.1], [0.2, nan]]).requires_grad_()
    value = method.loss(logp_bt, ready, entropy_bt).value + method.value_loss(value_bt, ready).value
    for grad_bt in torch.autograd.grad(value, (logp_bt, entropy_bt, value_bt)):
        assert torch.isfinite(grad_bt).all()
        assert grad_bt[1, 1] == 0


def test_values_gradients_and_metrics_add_up_over_micro_batches():
    batch = small([1, 0, 1, 0, 0], [3, 1, 2, 2, 1], [0, 0, 1, 1, 1], max_length=4)
    method = grouprl.method("dapo")
    ready, logp_bt = method.prepare(batch), batch.old_bt + 0.3 * torch.arange(-7, 8, dtype=torch.float64).view(5, 3) / 7
    whole = method.loss(logp_bt, ready)
    parts = [method.loss(logp_bt[i : i + 1], ready.rows(torch.tensor([i]))) for i in (3, 0, 4, 1, 2)]
    near(sum(p.value for p in parts), whole.value)
    for name, value in whole.metrics.items():
        near(sum(p.metrics[name] for p in parts), value)


def test_metrics_average_over_rows_that_carry_a_gradient():
    """Row 2 stands in a zero-variance group: whether the trainer runs it or not, the metrics are the same."""
    batch = small([1, 0, 1], groups=[0, 0, 1])
    method = grouprl.method("grpo")
    ready = method.prepare(batch)
    assert method.zero_rows(ready).tolist() == [False, False, True]
    near(ready.share_bt, [[0.5], [0.5], [0.0]])
    logp_bt = batch.old_bt + f64([[0.5], [0.0], [5.0]])
    assert method.loss(logp_bt, ready).metrics["clip_fraction"] == pytest.approx(0.5)


def test_rows_are_zero_only_if_every_term_is():
    batch = small([1, 0, 1], groups=[0, 0, 1], ref_bt=[[-2.0]] * 3)
    with_kl = grouprl.method("grpo", kl_coef=0.1)
    assert not with_kl.zero_rows(with_kl.prepare(batch)).any()
    filtered = with_kl.with_parts(filter=(MixedGroups(),))
    assert filtered.zero_rows(filtered.prepare(batch)).tolist() == [False, False, True]
    masked = grouprl.method("grpo").with_parts(token_weight=(OffPolicyMask(delta=0.1),))
    far = batch.replace(behavior_bt=f64([[-1.0], [0.0], [-1.0]]))
    assert masked.zero_rows(masked.prepare(far)).tolist() == [False, True, True]
    critic = BASIC.with_parts(critic=ValueLoss(), advantage=GAE())
    valued = batch.replace(value_bt=f64([[1.0], [0.0], [1.0]]))
    assert not critic.zero_rows(critic.prepare(valued)).any()


def test_an_empty_step_has_loss_zero_and_no_gradient():
    batch = small([1.0, 1.0], truncated_b=[True, True])
    for name in ("dapo", "reinforce_rej"):
        method = grouprl.method(name)
        logp_bt = batch.old_bt.clone().requires_grad_()
        loss = method.loss(logp_bt, method.prepare(batch))
        assert loss.value.item() == 0.0
        assert not torch.autograd.grad(loss.value, logp_bt)[0].any()
        assert all(torch.isfinite(v) for v in loss.metrics.values())


def test_weights_of_a_step_are_those_of_its_own_rows():
    """Judged over the rollout, weighted per step."""
    batch = small([1, 0, 1, 0], groups=[0, 0, 1, 1])
    method = BASIC.with_parts(aggregate=SequenceMean())
    step = method.compute_loss_weights(method.compute_advantages(batch).rows(torch.tensor([0, 1])))
    near(step.weight_bt, [[0.5], [0.5]])


def test_given_advantages_pass_through():
    batch = small([0.0], [2]).replace(advantage_bt=f64([[1.0, -2.0]]))
    near(gradient(summed(Given(), PolicyGradient()), batch, batch.old_bt), [[-1.0, 2.0]])


def test_statistics_and_metrics_take_no_gradient():
    batch = small([1.0, 0.0]).replace(old_bt=f64([[-1.0], [-1.0]]).requires_grad_())
    ready = grouprl.method("grpo").prepare(batch)
    assert not ready.advantage_bt.requires_grad
    loss = grouprl.method("grpo").loss(f64([[-1.0], [-1.0]]).requires_grad_(), ready)
    assert not any(v.requires_grad for v in loss.metrics.values())


def test_needs_come_from_the_parts():
    assert grouprl.method("grpo").needs() == ("old_bt",)
    assert set(grouprl.method("minirl").needs()) == {"old_bt", "behavior_bt"}
    assert set(grouprl.method("rloo", kl_coef=0.1).needs()) == {"old_bt", "ref_bt"}
    assert "greedy_reward_b" in grouprl.method("remax").needs()
    assert grouprl.method("reinforce").needs() == ()
    assert grouprl.method("ppo", entropy_coef=0.1).outputs == ("log_prob", "entropy", "value")
    assert grouprl.method("ppo").outputs == ("log_prob", "value")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: BASIC.loss(f64([[0.0]]), small([1.0])), "call method.prepare first"),
        (lambda: BASIC.loss(f64([[0.0, 0.0]]), BASIC.prepare(small([1.0]))), r"logp_bt has shape \[1, 2\]"),
        (lambda: BASIC.value_loss(f64([[0.0]]), BASIC.prepare(small([1.0]))), "has no critic"),
        (
            lambda: grouprl.method("grpo").loss(
                f64([[0.0]]), grouprl.method("grpo").prepare(small([1.0], old_bt=None))
            ),
            "old_bt",
        ),
        (lambda: grouprl.method("dr_grpo").prepare(small([1.0, 0.0])), "max_length"),
        (lambda: grouprl.method("grppo"), "Did you mean 'grpo'"),
        (lambda: grouprl.method("dapo", clip_hig=0.3), "Did you mean 'clip_high'"),
        (lambda: grouprl.method("dapo", clip_high=-1), "clip_high = -1"),
        (lambda: grouprl.method("grpo", scale="std"), "scale = 'std'"),
        (lambda: grouprl.method("grpo", alone="refuse").prepare(small([1.0])), "one member"),
    ],
)
def test_errors_say_what_and_how(act, message):
    with pytest.raises(InputError, match=message):
        act()


def test_overlong_shaping_does_not_make_a_solved_group_look_mixed():
    method = BASIC.with_parts(reward_transform=(SoftOverlong(buffer=2, length=4),), filter=(MixedGroups(),))
    ready = method.prepare(small([1.0, 1.0], [1, 4]))
    near(ready.reward_b, [1.0, 0.0])
    assert not ready.weight_bt.any()
