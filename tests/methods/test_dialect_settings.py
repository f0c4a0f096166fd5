"""Settings of TRL and verl by their names there: what they compute, by hand."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

import grouprl
from grouprl.algorithms.filter.mismatch_rejection import MismatchRejection
from grouprl.algorithms.token_weight.importance import GeometricImportance, MaskedImportance, TruncatedImportance
from grouprl.core.errors import InputError
from small import f64, near, small

RATIOS = (0.5, 0.9, 1.05, 1.15, 1.5)


@pytest.mark.parametrize("delta", [0.7, 1.0, 1.1, 1.2, 1.3])
def test_a_delta_within_the_clip_computes_what_trl_computes(delta):
    """-min(min(ρ, δ)·A, clip(ρ, 0.8, 1.2)·A), whatever δ is; A is ±0.70700679 after TRL's 1e-4."""
    batch = small([1.0, 0.0], [5, 5])
    method = grouprl.method("grpo@trl", delta=delta)
    prepared = method.prepare(batch)
    logp_bt = (batch.old_bt + f64([RATIOS, RATIOS]).log()).requires_grad_()
    loss = method.loss(logp_bt, prepared).value
    free_bt = f64([RATIOS, RATIOS]).requires_grad_()
    adv_bt = prepared.advantage_bt
    expected = -torch.min(free_bt.clamp(max=delta) * adv_bt, free_bt.clamp(0.8, 1.2) * adv_bt).mean()
    near(loss.detach(), expected.detach())
    (slope_bt,) = torch.autograd.grad(expected, free_bt)
    near(torch.autograd.grad(loss, logp_bt)[0], slope_bt * free_bt.detach())


@pytest.mark.parametrize(
    ("mode", "part"),
    [
        ("token_truncate", TruncatedImportance(low=0.5, high=3.0, level="token")),
        ("sequence_truncate", TruncatedImportance(low=0.5, high=3.0, level="sequence_sum")),
        ("token_mask", MaskedImportance(low=0.5, high=3.0, level="token")),
        ("sequence_mask", MaskedImportance(low=0.5, high=3.0, level="sequence_sum")),
    ],
)
def test_trls_sampler_correction(mode, part):
    settings = {
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": mode,
        "vllm_importance_sampling_clip_min": 0.5,
    }
    for name in ("grpo@trl", "dapo@trl", "cispo@trl", "sapo@trl"):
        assert grouprl.method(name, **settings).token_weight == (part,)
    assert grouprl.method("grpo@trl").token_weight == ()


def test_without_a_cap_trls_correction_has_no_upper_bound():
    settings = {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_clip_max": None}
    batch = small([1.0], [1], old_bt=[[-1.0]], behavior_bt=[[-10.0]])
    (weight,) = grouprl.method("grpo@trl", **settings).token_weight
    near(weight(batch), [[exp(9)]], 1e-6)


@pytest.mark.parametrize(("mode", "log_sampler"), [("token_truncate", log(3) - 0.5), ("token_mask", log(1e-8) - 0.5)])
def test_vespo_has_the_samplers_ratio_inside_its_weight(mode, log_sampler):
    """Log-ratios of trainer to sampler 2 (beyond log 3) and -0.5; no drift since: w is their product."""
    batch = small([1.0, 0.0], [2, 1], old_bt=[[-1.0, -1.0], [-1.0]], behavior_bt=[[-3.0, -0.5], [-1.0]])
    method = grouprl.method("vespo@trl", vllm_importance_sampling_correction=True, vllm_importance_sampling_mode=mode)
    prepared = method.prepare(batch)
    logp_bt = batch.old_bt.clone().requires_grad_()
    method.loss(logp_bt, prepared).value.backward()
    log_w = max(log_sampler, log(1e-8))
    weight = exp(2 * log_w + 3 * (1 - exp(log_w)))
    advantage = 0.5 / (0.5**0.5 + 1e-4)
    near(logp_bt.grad, [[-weight * advantage / 3] * 2, [advantage / 3, 0.0]])
    assert method.token_weight == (), "the weight has it: nothing multiplies the loss"


def test_vespo_refuses_the_modes_that_trl_refuses():
    with pytest.raises(InputError, match="vllm_importance_sampling_mode"):
        grouprl.method("vespo@trl", vllm_importance_sampling_mode="sequence_mask")


@pytest.mark.parametrize(("level", "ours"), [("token", "token"), ("sequence", "sequence_sum")])
def test_verls_rollout_is(level, ours):
    for name in ("grpo@verl", "dapo@verl", "sapo@verl", "kl_cov@verl", "gpg@verl", "rloo@verl"):
        method = grouprl.method(name, rollout_is=level, rollout_is_threshold=5.0)
        assert method.token_weight == (TruncatedImportance(high=5.0, level=ours),)


def test_a_threshold_with_a_lower_bound_masks():
    for level, ours in (("token", "token"), ("sequence", "sequence_sum")):
        method = grouprl.method("grpo@verl", rollout_is=level, rollout_is_threshold="0.5_5")
        assert method.token_weight == (MaskedImportance(low=0.5, high=5.0, level=ours),)


def test_verls_gmpo_takes_the_geometric_mean_of_token_weights():
    """Ratios of trainer to sampler e (truncated at 2) and e^-1: the mean of log 2 and -1."""
    batch = small([1.0], [2], old_bt=[[-1.0, -2.0]], behavior_bt=[[-2.0, -1.0]])
    (weight,) = grouprl.method("gmpo@verl", rollout_is="token").token_weight
    assert weight == GeometricImportance(high=2.0)
    near(weight(batch), [[exp((log(2) - 1) / 2)] * 2])
    with pytest.raises(InputError, match="lower bound"):
        grouprl.method("gmpo@verl", rollout_is="token", rollout_is_threshold="0.5_2")


def test_verls_gspo_has_no_gradient_beyond_e_to_the_10():
    """Completions of negative advantage whose tokens are likelier by 9, 12 and 500 nats."""
    batch = small([1.0, 0.0, 0.0, 0.0], [1, 1, 1, 1])
    method = grouprl.method("gspo@verl")
    ready = method.prepare(batch)
    logp_bt = (batch.old_bt + f64([[0.0], [9.0], [12.0], [500.0]])).requires_grad_()
    loss = method.loss(logp_bt, ready).value
    (grad_bt,) = torch.autograd.grad(loss, logp_bt)
    adv_b = ready.advantage_bt[:, 0]
    near(grad_bt[1:], [[-adv_b[1] * exp(9) / 4], [0.0], [0.0]], 1e-6)
    near(loss.detach(), -(adv_b[0] + adv_b[1] * exp(9) + 2 * adv_b[2] * exp(10)) / 4, 1e-6)


def test_several_rejections_of_verls():
    """Each sees every token, so those of completions come first; one threshold holds for all."""
    method = grouprl.method("grpo@verl", rollout_rs="token_k1, seq_max_k3", rollout_rs_threshold="0.5_2, 0.1")
    first = MismatchRejection(statistic="k3", over="sequence_max", high=0.1)
    assert method.filter == (first, MismatchRejection(statistic="k1", over="token", low=0.5, high=2.0))
    shared = grouprl.method("grpo@verl", rollout_rs="token_k2,seq_mean_k2,token_k2", rollout_rs_threshold=0.3)
    assert [part.high for part in shared.filter] == [0.3, 0.3]


@pytest.mark.parametrize(
    ("options", "thresholds", "what"),
    [("token_k4", 1, "token_k"), (",", 1, "rollout_rs = ','"), ("token_k1,token_k2,token_k3", "1,2", "3 options")],
)
def test_rejections_that_verl_refuses(options, thresholds, what):
    with pytest.raises(InputError, match=what):
        grouprl.method("grpo@verl", rollout_rs=options, rollout_rs_threshold=thresholds)


@pytest.mark.parametrize(
    ("option", "threshold", "part"),
    [
        ("token_k1", "0.5_2.5", MismatchRejection(statistic="k1", over="token", low=0.5, high=2.5)),
        ("seq_sum_k1", 2.0, MismatchRejection(statistic="k1", over="sequence_sum", high=2.0)),
        ("seq_mean_k3", "0.01", MismatchRejection(statistic="k3", over="sequence_mean", high=0.01)),
        ("seq_max_k2", 0.3, MismatchRejection(statistic="k2", over="sequence_max", high=0.3)),
    ],
)
def test_verls_rollout_rs(option, threshold, part):
    assert grouprl.method("grpo@verl", rollout_rs=option, rollout_rs_threshold=threshold).filter == (part,)
    assert grouprl.method("dapo@verl", rollout_rs=option, rollout_rs_threshold=threshold).filter[-1] == part


@pytest.mark.parametrize("threshold", ["a", "1_2_3", "-1", 0.0])
def test_thresholds_that_are_none_of_verls_are_refused(threshold):
    with pytest.raises(InputError, match="rollout_rs_threshold"):
        grouprl.method("grpo@verl", rollout_rs="token_k1", rollout_rs_threshold=threshold)


def test_a_rejection_needs_its_threshold():
    for settings in ({"rollout_rs": "token_k2"}, {"rollout_rs_threshold": 0.1}):
        with pytest.raises(InputError, match="with both or with neither"):
            grouprl.method("grpo@verl", **settings)


def test_verls_dual_clip_can_be_turned_off():
    batch = small([1.0, 0.0], [1, 1])
    logp_bt = (batch.old_bt + f64([[0.0], [log(4)]])).requires_grad_()
    method = grouprl.method("grpo@verl", clip_ratio_c=None)
    method.loss(logp_bt, method.prepare(batch)).value.backward()
    near(logp_bt.grad[1], [4 * 0.70710578 / 2], 1e-7)


def test_gmpo_of_trl_masks_truncated_completions():
    batch = small([1.0, 0.0], [1, 1], truncated_b=[True, False])
    method = grouprl.method("gmpo@trl", mask_truncated_completions=True)
    logp_bt = batch.old_bt.clone().requires_grad_()
    method.loss(logp_bt, method.prepare(batch)).value.backward()
    near(logp_bt.grad, [[0.0], [0.5 / (0.5**0.5 + 1e-4) / 2]])


def test_gmpo_of_trl_takes_the_mean_over_the_tokens_of_largest_entropy():
    """Of entropies 1 to 5 and a share of 0.5 those from 3 up: one token of the first completion, two of the second."""
    batch = small([1.0, 0.0], [3, 2])
    method = grouprl.method("gmpo@trl", top_entropy_quantile=0.5)
    assert method.outputs == ("log_prob", "entropy")
    assert method.couples == "batch"
    log_bt, advantage = f64([[0.1, 0.2, 0.3], [0.1, -0.2, 0.0]]), 0.5 / (0.5**0.5 + 1e-4)
    logp_bt = (batch.old_bt + log_bt).requires_grad_()
    entropy_bt = f64([[1, 3, 2], [4, 5, 0]])
    loss = method.loss(logp_bt, method.prepare(batch), entropy_bt).value
    near(loss.detach(), -advantage * (exp(0.2) - exp(-0.05)) / 2)
    up, down = -advantage * exp(0.2) / 2, advantage * exp(-0.05) / 4
    near(torch.autograd.grad(loss, logp_bt)[0], [[0.0, up, 0.0], [down, down, 0.0]])


def test_a_completion_without_tokens_of_large_entropy_has_no_gradient():
    batch = small([1.0, 0.0], [1, 1])
    method = grouprl.method("gmpo@trl", top_entropy_quantile=0.0)
    logp_bt = (batch.old_bt + 0.1).requires_grad_()
    method.loss(logp_bt, method.prepare(batch), f64([[1.0], [2.0]])).value.backward()
    assert logp_bt.grad[0] == 0
    assert logp_bt.grad[1] > 0
    with pytest.raises(InputError, match="top_entropy_mean got no entropies"):
        method.loss(logp_bt, method.prepare(batch))


@pytest.mark.parametrize(
    ("name", "lists"),
    [
        ("online_dpo@trl", {"beta": [0.2]}),
        ("xpo@trl", {"beta": [0.2], "alpha": [1e-3]}),
        ("nash_md@trl", {"beta": [0.2], "mixture_coef": [0.25]}),
    ],
)
def test_trls_lists_of_a_single_value_per_epoch_are_that_value(name, lists):
    ours, theirs = grouprl.method(name, **{key: each for key, (each,) in lists.items()}), grouprl.method(name, **lists)
    for stage in ("objective", "augment", "regularize"):
        assert getattr(ours, stage) == getattr(theirs, stage)


@pytest.mark.parametrize("values", [[], [0.2, 0.1]])
def test_lists_of_several_values_per_epoch_are_refused_in_words(values):
    with pytest.raises(InputError, match=rf"beta = \[.*a value per epoch.*one of the {len(values)}"):
        grouprl.method("online_dpo@trl", beta=values)


def test_a_range_holds_for_the_value_of_a_list():
    with pytest.raises(InputError, match=r"mixture_coef = .*less than or equal to 1"):
        grouprl.method("nash_md@trl", mixture_coef=[1.5])


def test_a_wrong_name_in_a_list_of_losses_is_named_by_its_place():
    with pytest.raises(InputError) as caught:
        grouprl.method("dpo@trl", loss_type=["sigmoid", "sigmoidd"])
    assert "loss_type.1 = 'sigmoidd'" in str(caught.value)
    with pytest.raises(InputError, match=r"dpo@trl\.loss_type = 'kto_pair'"):
        grouprl.method("dpo@trl", loss_type="kto_pair")
