"""KL estimators: values, and what their gradients mean, checked on a softmax bandit."""

from __future__ import annotations

from math import exp

import pytest
import torch
from torch import Tensor

import grouprl
from fake_context import FakeContext
from grouprl.algorithms.building import build_part
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.regularize.kl import GRADIENT, estimate
from grouprl.algorithms.regularize.kl_control import mean_kl
from grouprl.algorithms.regularize.regularize import EntropyBonus, KLLoss
from grouprl.algorithms.reward_transform.adaptive_kl_in_reward import AdaptiveKLInReward
from grouprl.algorithms.reward_transform.reward_transform import KLInReward
from grouprl.core.errors import InputError
from small import f64, near, prepared, small

LOGITS = f64([0.3, -0.8, 1.1, 0.0])
REFERENCE = f64([-0.5, 0.4, 0.2, 0.9]).log_softmax(0)


def exact(kind: str) -> Tensor:
    """Gradient with respect to the logits of KL(π||ref), KL(ref||π), or nothing."""
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(0)
    value = {
        "reverse": (logp.exp() * (logp - REFERENCE)).sum(),
        "forward": (REFERENCE.exp() * (REFERENCE - logp)).sum(),
        "none": logp.sum() * 0,
    }[kind]
    return torch.autograd.grad(value, logits)[0]


def expected(estimator: str) -> Tensor:
    """Expected gradient of the estimator as a loss over samples sampled from π and then held fixed: exact, no noise."""
    logits = LOGITS.clone().requires_grad_()
    logp = logits.log_softmax(0)
    batch = prepared([[0.0]] * 4).replace(old_bt=logp.detach()[:, None], ref_bt=REFERENCE[:, None])
    loss_bt = KLLoss(coef=1.0, estimator=estimator)(logp[:, None], batch).loss_bt
    return torch.autograd.grad((logp.detach().exp() * loss_bt[:, 0]).sum(), logits)[0]


@pytest.mark.parametrize(
    ("estimator", "meaning"),
    [
        ("k1", "none"),
        ("k2", "reverse"),
        ("k3", "forward"),
        ("k1+", "reverse"),
        ("k3+", "reverse"),
        ("weighted_k3", "reverse"),
    ],
)
def test_meaning_of_the_gradient(estimator, meaning):
    near(expected(estimator), exact(meaning), 1e-12)
    assert {"none": "zero on average", "reverse": "reverse KL(π || anchor)", "forward": "forward KL(anchor || π)"}[
        meaning
    ] in GRADIENT[estimator]


def test_the_two_directions_differ():
    assert (exact("reverse") - exact("forward")).abs().max() > 0.01
    assert (expected("abs") - exact("reverse")).abs().max() > 0.01


@pytest.mark.parametrize(("estimator", "value"), [("k1", 0.5), ("k2", 0.125), ("k3", exp(-0.5) - 0.5), ("abs", 0.5)])
def test_values(estimator, value):
    near(estimate(f64([0.5]), estimator), [value])
    near(estimate(f64([0.0]), estimator), [0.0])


@pytest.mark.parametrize(("estimator", "value"), [("k1+", -0.5), ("k3+", exp(0.5) - 1.5)])
def test_straight_through_has_the_value_of_one_and_the_slope_of_another(estimator, value):
    log = f64([-0.5]).requires_grad_()
    out = estimate(log, estimator)
    near(out.detach(), [value])
    near(torch.autograd.grad(out.sum(), log)[0], [-0.5])


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_estimate_the_divergence_without_bias(estimator):
    logp = LOGITS.log_softmax(0)
    truth = (logp.exp() * (logp - REFERENCE)).sum()
    near((logp.exp() * estimate(logp - REFERENCE, estimator)).sum(), truth, 1e-12)


def test_k3_is_never_negative():
    assert (estimate(torch.linspace(-5, 5, 101, dtype=torch.float64), "k3") >= 0).all()


def test_a_limit_bounds_value_and_gradient():
    logp_bt = f64([[0.0, 0.0]]).requires_grad_()
    batch = prepared([[0.0, 0.0]], ref_bt=[[30.0, 3.0]])
    out = KLLoss(coef=1.0, value_limit=10.0)(logp_bt, batch).loss_bt
    near(out.detach(), [[10.0, 10.0]])
    near(torch.autograd.grad(out.sum(), logp_bt)[0], [[0.0, 0.0]])


@pytest.mark.parametrize("distance", [-500.0, -100.0, -25.0, 25.0, 100.0, 500.0])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs", "k1+", "k3+", "abs+"])
def test_far_from_the_reference_the_slope_stays(estimator, distance):
    """Slopes of d, d²/2, exp(-d) - 1 + d (the exponential's is e^20 beyond 20) and |d|; '+' has that of d²/2."""
    log = f64([distance]).requires_grad_()
    (slope,) = torch.autograd.grad(estimate(log, estimator).sum(), log)
    of_k3 = 1 - exp(min(max(-distance, -20), 20))
    expected = {"k1": 1.0, "k2": distance, "k3": of_k3, "abs": distance / abs(distance)}.get(estimator, distance)
    assert float(slope) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("distance", "value", "slope"), [(-5.0, 10.0, -5.0), (25.0, 10.0, 25.0), (3.0, exp(-3) + 2, 3.0)]
)
def test_verls_low_var_kl_with_plus_has_the_value_of_one_and_the_whole_slope_of_the_other(distance, value, slope):
    log = f64([distance]).requires_grad_()
    out = estimate(log, "k3+", 10.0)
    near(out.detach(), [value])
    near(torch.autograd.grad(out.sum(), log)[0], [slope])


@pytest.mark.parametrize(("distance", "gradient"), [(25.0, 0.5), (-25.0, 0.5 * (1 - exp(20)))])
def test_trls_kl_pulls_back_at_any_distance(distance, gradient):
    """Two tokens, β = 1: half of the slope 1 - exp(-d) each."""
    batch = small([1.0, 1.0], old_bt=[[-1.0], [-1.0]], ref_bt=[[-1.0 - distance], [-1.0]])
    method = grouprl.method("grpo@trl", beta=1.0, use_bias_correction_kl=False)
    logp_bt = f64([[-1.0], [-1.0]]).requires_grad_()
    method.loss(logp_bt, method.prepare(batch)).value.backward()
    near(logp_bt.grad, [[gradient], [0.0]], 1e-6)


def test_verl_clamps_low_var_kl_in_the_reward_and_for_its_controller():
    batch = small([1.0], [2], old_bt=[[-1.0, -1.0]], ref_bt=[[4.0, -1.0]])
    settings = {"use_kl_in_reward": True, "kl_coef": 1.0}
    (clamped,) = grouprl.method("grpo@verl", kl_penalty="low_var_kl", **settings).reward_transform
    near(clamped(batch).token_reward_bt, [[-10.0, 0.0]])
    assert mean_kl(batch, "k3", 10.0) == 5.0
    for name, value in (("kl", 5e2), ("abs", -5e2), ("mse", -125e3)):
        (free,) = grouprl.method("grpo@verl", kl_penalty=name, **settings).reward_transform
        far = batch.replace(ref_bt=f64([[499.0, -1.0]]))
        near(free(far).token_reward_bt, [[value, 0.0]])


def test_the_controller_is_fed_what_the_reward_has():
    context, batch = FakeContext(), small([1.0], [1], old_bt=[[-1.0]], ref_bt=[[4.0]])
    part = AdaptiveKLInReward(coef=1.0, estimator="k3", value_limit=10.0, target=20.0, horizon=1)
    part.observe(None, batch, context)
    assert part.current(context) == pytest.approx(1 - 0.2), "10 is below the target, 142 is above"


def test_the_anchor_may_be_the_old_policy():
    batch = prepared([[0.0]])
    near(KLLoss(coef=2.0, estimator="k2", anchor="old")(batch.old_bt + 0.5, batch).loss_bt, [[0.25]])
    assert "policies are the same" in KLLoss(anchor="old").idle(RunFacts())[0]


def test_terms_without_effect_and_terms_that_cannot_work():
    assert "coefficient is 0" in KLLoss(coef=0.0).idle(RunFacts())[0]
    assert "expected gradient is 0" in KLLoss(estimator="k1").idle(RunFacts())[0]
    assert KLLoss().idle(RunFacts()) == []
    assert "reference model" in KLLoss().refuse(RunFacts(has_reference=False))[0]
    assert KLLoss().refuse(RunFacts(has_reference=True)) == []
    with pytest.raises(InputError, match="ref_bt"):
        KLLoss()(prepared([[0.0]]).old_bt, prepared([[0.0]]))


def test_rows_of_a_term_without_weight_are_zero():
    assert KLLoss(coef=0.0).zero_rows(prepared([[0.0], [1.0]])).all()
    assert not KLLoss().zero_rows(prepared([[0.0], [1.0]])).any()


def test_entropy_bonus():
    part, batch = EntropyBonus(coef=0.5), prepared([[0.0]])
    near(part(batch.old_bt, batch, f64([[3.0]])).loss_bt, [[-1.5]])
    with pytest.raises(InputError, match="Pass entropy_bt"):
        part(batch.old_bt, batch)


def test_kl_in_the_reward():
    """log π_old is -1; the reference has -1.5 and -0.8, so k1 is 0.5 and -0.2."""
    batch = small([1.0], [2], ref_bt=[[-1.5, -0.8]])
    near(KLInReward(coef=0.1)(batch).token_reward_bt, [[-0.05, 0.02]])
    near(KLInReward(coef=0.1)(batch).total_reward_b, [0.97])
    near(KLInReward(coef=0.1, level="sequence")(batch).reward_b, [0.97])
    near(KLInReward(coef=0.1, estimator="k2")(batch).token_reward_bt, [[-0.0125, -0.002]])
    twice = KLInReward(coef=0.1)(KLInReward(coef=0.1)(batch))
    near(twice.token_reward_bt, [[-0.1, 0.04]])


def test_kl_in_the_reward_of_no_weight_needs_no_reference():
    part = KLInReward(coef=0.0)
    assert part.needs() == ()
    near(part(small([1.0])).reward_b, [1.0])
    assert part.idle(RunFacts())
    assert "reference model" in KLInReward().refuse(RunFacts(has_reference=False))[0]


@pytest.mark.parametrize("name", ["scheduled_kl", "convex_kl", "adaptive_kl"])
@pytest.mark.parametrize("distance", [-30.0, -20.5, -19.0, 3.0, 30.0])
def test_tokens_lost_by_far_are_still_pulled_back(name, distance):
    """Slope 1 - exp(-d) of k3, with d held within ±20: beyond, the slope at the limit, not none."""
    batch = small([0.0], ref_bt=[[-1.0 - distance]], step=0, steps=2)
    batch = batch.replace(past={"kl_coef": f64([1.0])})
    term = build_part("regularize", name, {"coef": 1.0, **({"curve": "constant"} if name == "scheduled_kl" else {})})
    leaf_bt = f64([[-1.0]]).requires_grad_()
    (grad_bt,) = torch.autograd.grad(term(leaf_bt, batch).loss_bt.sum(), leaf_bt)
    held = max(-20.0, min(20.0, distance))
    assert float(grad_bt) == pytest.approx(1 - exp(-held), rel=1e-9)
