"""Rules of methods whose papers could be checked in part: critics, returns, rewards of tokens, KL by the clock.

Expected numbers are computed here from the written facts, in plain Python.
"""

from __future__ import annotations

import math
import statistics

import pytest
import torch

import grouprl
from facts import gae, ppo, slope, standardised, still, whitened
from grouprl.core.batch import Batch
from small import f64, near, ragged, small

VALUES = [[0.3, -0.2, 0.5], [0.1, 0.4]]


def valued(rewards: list[float], lengths: list[int] | None = None, **fields: object) -> Batch:
    """Two sequences, of three tokens and of two, with the values of VALUES."""
    return small(rewards, lengths or [3, 2], value_bt=VALUES, **fields)


# --- 246 VC-PPO, 226 VAPO ---------------------------------------------------------------------------------------------


def test_vc_ppo_fits_the_critic_to_the_plain_outcome_and_the_policy_with_lambda_095() -> None:
    """Targets with λ = 1 are R at every token whatever V says; advantages have λ = 0.95; both from the same values."""
    ready = grouprl.method("vc_ppo", whiten=False).prepare(valued([1.0, -1.0]))
    near(ready.return_bt, [[1.0] * 3, [-1.0, -1.0, 0.0]])
    near(ready.advantage_bt, ragged([gae([0, 0, 1], VALUES[0], 0.95), gae([0, -1], VALUES[1], 0.95)]))


def test_vc_ppo_keeps_the_signal_over_a_thousand_tokens() -> None:
    """T = 1000, V = 0: with λ = 0.95 the first token's advantage is .95^999 of R; the critic's target is R."""
    batch = small([1.0], [1000], value_bt=[[0.0] * 1000])
    ready = grouprl.method("vc_ppo", whiten=False).prepare(batch)
    assert float(ready.advantage_bt[0, 0]) == pytest.approx(0.95**999)
    assert float(ready.return_bt[0, 0]) == 1.0


def test_vc_ppo_whitens_advantages_and_not_returns() -> None:
    ready = grouprl.method("vc_ppo").prepare(valued([1.0, -1.0]))
    flat = whitened([*gae([0, 0, 1], VALUES[0], 0.95), *gae([0, -1], VALUES[1], 0.95)])
    near(ready.advantage_bt, ragged([flat[:3], flat[3:]]))
    near(ready.return_bt[0], [1.0] * 3)


@pytest.mark.parametrize(("length", "lam"), [(20, 0.0), (100, 0.8), (1000, 0.98), (5, 0.0)])
def test_vapo_has_a_lambda_that_grows_with_length(length: int, lam: float) -> None:
    """λ = 1 - 1/(0.05·l), held at 0 or above: with V = 0 and an outcome of 1 the second last advantage is λ."""
    batch = small([1.0], [length], value_bt=[[0.0] * length]).replace(correct_b=torch.tensor([True]))
    ready = grouprl.method("vapo", whiten=False).prepare(batch)
    assert float(ready.advantage_bt[0, -2]) == pytest.approx(lam)
    assert float(ready.return_bt[0, 0]) == 1.0


def test_vapo_adds_the_likelihood_of_right_completions() -> None:
    """-(0.1/N) Σ log π over the N tokens of right completions; clip 0.2/0.28; nothing where nobody is right."""
    batch = valued([1.0, 0.0]).replace(correct_b=torch.tensor([True, False]))
    both, plain = (slope(grouprl.method("vapo", nll_coef=c), batch, still(batch))[1] for c in (0.1, 0.0))
    near(both - plain, [[-0.1 / 3] * 3, [0.0] * 3])
    nobody = batch.replace(correct_b=torch.tensor([False, False]))
    both, plain = (slope(grouprl.method("vapo", nll_coef=c), nobody, still(batch))[1] for c in (0.1, 0.0))
    near(both, plain)


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.25, 1.3])
def test_vapo_clips_higher_and_means_over_tokens(ratio: float) -> None:
    batch = valued([1.0, 0.0]).replace(correct_b=torch.tensor([False, False]))
    _, grad_bt, ready = slope(grouprl.method("vapo"), batch, [[math.log(ratio)] * 3, [0.0] * 3])
    near(grad_bt[0], [ppo(float(a), ratio, 0.8, 1.28) / 5 for a in ready.advantage_bt[0]])


# --- 175 DVPO ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", ["value", "zero"])
def test_dvpo_follows_the_differences_of_given_values_and_the_kl_alone(terminal: str) -> None:
    """r_t = -β(log π_old - log π_ref); δ_T uses the value of the whole completion, or 0 as in the released code."""
    ref = [[-1.5, -0.5, -1.0], [-2.0, -1.0]]
    end = [0.9, -0.3] if terminal == "value" else [0.0, 0.0]
    after_bt = ragged([[0.0, 0.0, 0.9], [0.0, -0.3]])
    batch = valued([5.0, -7.0], ref_bt=ref).replace(stats={"value_after": after_bt})
    method = grouprl.method("dvpo", whiten=False, kl_coef=0.1, terminal=terminal)
    rewards = [[-0.1 * (-1 - r) for r in row] for row in ref]
    expected = [gae(r, v, 0.95, e) for r, v, e in zip(rewards, VALUES, end, strict=True)]
    near(method.prepare(batch).advantage_bt, ragged(expected))


def test_dvpo_with_lambda_0_is_the_difference_of_neighbouring_values() -> None:
    batch = valued([9.0, 9.0], ref_bt=[[-1.0] * 3, [-1.0] * 2])
    batch = batch.replace(stats={"value_after": ragged([[0, 0, 0.5], [0, 0.4]])})
    near(grouprl.method("dvpo", lam=0.0, whiten=False).prepare(batch).advantage_bt, [[-0.5, 0.7, 0.0], [0.3, 0.0, 0.0]])
    assert grouprl.method("dvpo").critic is None, "the value model is never updated"


# --- 268 direct advantages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_dapo_direct_fits_log_ratios_to_one_step_advantages(beta: float) -> None:
    """½(log π/π_ref - A/β)², A = V(s + a) - V(s), at the end R - V(s); the critic is fitted to R."""
    moved = [[0.1, -0.2, 0.3], [0.0, 0.5]]
    loss, grad_bt, ready = slope(grouprl.method("dapo_direct", beta=beta), valued([1.0, 0.0]), moved)
    adv = [[-0.5, 0.7, 0.5], [0.3, -0.4]]
    near(ready.advantage_bt, ragged(adv))
    near(ready.return_bt, ragged([[1.0] * 3, [0.0] * 2]))
    gaps = [[m - a / beta for m, a in zip(*rows, strict=True)] for rows in zip(moved, adv, strict=True)]
    near(grad_bt, ragged([[g / 5 for g in row] for row in gaps]))
    assert loss == pytest.approx(sum(g * g for row in gaps for g in row) / 2 / 5)


def test_dapo_direct_starts_as_a_policy_gradient() -> None:
    """At the reference the gradient is -(A/β)∇log π."""
    batch = valued([1.0, 0.0])
    near(
        slope(grouprl.method("dapo_direct", beta=2.0), batch, still(batch))[1],
        ragged([[0.05, -0.07, -0.05], [-0.03, 0.04]]),
    )


# --- 157 MDPO ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", [0.0, 0.3, -0.4])
@pytest.mark.parametrize("step_size", [1.0, 0.25])
def test_mdpo_weighs_by_the_ratio_and_pulls_back_by_the_kl(move: float, step_size: float) -> None:
    """-ρA + KL(π||π_old)/t, no clip; the KL's gradient on a sampled token is ρ·log ρ; A standardised over the batch."""
    _, grad_bt, ready = slope(grouprl.method("mdpo", step_size=step_size), valued([1.0, 0.0]), [[move] * 3, [move] * 3])
    adv = whitened([*gae([0, 0, 1], VALUES[0], 0.95), *gae([0, 0], VALUES[1], 0.95)])
    near(ready.advantage_bt, ragged([adv[:3], adv[3:]]))
    rho = math.exp(move)
    flat = [(-rho * a + rho * move / step_size) / 5 for a in adv]
    near(grad_bt, ragged([flat[:3], flat[3:]]))


def test_mdpo_rests_at_the_old_policy_tilted_by_the_advantage() -> None:
    """One state, three actions, exact A: at π ∝ π_old·exp(tA) the expected gradient of all logits is 0."""
    old, adv, t = [0.5, 0.3, 0.2], [0.7, -0.5, -1.0], 0.4
    mass = [p * math.exp(t * a) for p, a in zip(old, adv, strict=True)]
    new = [m / sum(mass) for m in mass]
    batch = small([0.0] * 3, old_bt=[[math.log(p)] for p in old], value_bt=[[0.0]] * 3)
    method = grouprl.method("mdpo", step_size=t, whiten=False)
    ready = method.prepare(batch).replace(advantage_bt=f64([[a] for a in adv]))
    logit = f64([math.log(p) for p in new]).requires_grad_()
    logp_b = torch.log_softmax(logit, 0)
    weighted = ready.replace(weight_bt=f64([[p] for p in old]))  # the expectation over π_old instead of a mean
    (grad,) = torch.autograd.grad(method.loss(logp_b[:, None], weighted).value, logit)
    near(grad, [0.0] * 3)


# --- 229 D-PPO --------------------------------------------------------------------------------------------------------


def test_d_ppo_drops_tokens_of_each_sign_that_agree_least_with_the_others() -> None:
    """x = ρA; score x·Σx; of each sign the share p of smallest score leaves; the loss of the rest is scaled up."""
    adv = [1.0, 2.0, 3.0, 4.0, 5.0, -1.0, -2.0, -3.0, -0.5, -1.5]
    ratio = [1.1, 0.9, 1.0, 1.15, 1.0, 1.0, 1.1, 0.9, 1.0, 1.05]
    batch = small([0.0] * 10, value_bt=[[0.0]] * 10)
    method = grouprl.method("d_ppo", whiten=False)
    ready = method.prepare(batch).replace(advantage_bt=f64([[a] for a in adv]))
    leaf_bt = (batch.old_bt + f64([[math.log(r)] for r in ratio])).requires_grad_()
    (grad_bt,) = torch.autograd.grad(method.loss(leaf_bt, ready).value, leaf_bt)
    x = [a * r for a, r in zip(adv, ratio, strict=True)]
    score = [v * sum(x) for v in x]
    kept: set[int] = set()
    for sign in (1, -1):
        side = sorted((i for i in range(10) if x[i] * sign > 0), key=lambda i: score[i])
        kept |= set(side[int(0.2 * len(side)) :])
    scale = 10 / len(kept)
    near(grad_bt, [[scale * ppo(adv[i], ratio[i], 0.8, 1.2) / 10 if i in kept else 0.0] for i in range(10)])


def test_d_ppo_without_dropping_is_ppo() -> None:
    batch = valued([1.0, 0.0])
    moved = [[0.1, -0.3, 0.3], [0.25, 0.0]]
    _, grad_bt, ready = slope(grouprl.method("d_ppo", drop=0.0), batch, moved)
    expected = [
        [ppo(float(a), math.exp(m), 0.8, 1.2) / 5 for a, m in zip(ready.advantage_bt[i], row, strict=False)]
        for i, row in enumerate(moved)
    ]
    near(grad_bt, ragged(expected))


# --- 341 Text2Grad ----------------------------------------------------------------------------------------------------


def test_text2grad_pays_tokens_by_praise_and_blame_less_the_kl() -> None:
    """r_t = [good] - [poor] - β(log π_old - log π_ref); GAE(1, 0.95); the outcome is not read; overlaps cancel."""
    marks = {"good": [[True, True, False], [False] * 3], "poor": [[False, True, False], [True, False, False]]}
    ref = [[-1.2, -1.0, -0.5], [-1.0, -3.0]]
    batch = valued([9.0, -9.0], ref_bt=ref).replace(marks={k: torch.tensor(v) for k, v in marks.items()})
    rewards = [
        [1 - 0.2 * 0.2, 0.0, -0.2 * -0.5],
        [-1.0, -0.2 * 2.0],
    ]
    ready = grouprl.method("text2grad", whiten=False).prepare(batch)
    near(ready.advantage_bt, ragged([gae(r, v, 0.95) for r, v in zip(rewards, VALUES, strict=True)]))


# --- 277 duration-aware -----------------------------------------------------------------------------------------------


def test_duration_aware_weighs_turns_by_their_time_over_the_mean() -> None:
    """Durations 1 and 10 weigh 0.1818 and 1.8182; the critic is not weighted."""
    batch = valued([1.0, 0.0], turn_bt=[[0.0] * 3, [0.0, 0.0, -1.0]])
    batch = batch.replace(turn_bt=batch.turn_bt.long(), stats={"duration": ragged([[1.0] * 3, [10.0] * 2])})
    weighted = slope(grouprl.method("duration_aware"), batch, still(batch))[1]
    even = batch.replace(stats={"duration": ragged([[4.0] * 3, [4.0] * 2])})
    plain = slope(grouprl.method("duration_aware"), even, still(batch))[1]
    near(
        weighted,
        [[float(g) * 0.18181818181818182 for g in plain[0]], [float(g) * 1.8181818181818181 for g in plain[1]]],
    )


# --- 91 SPA-RL --------------------------------------------------------------------------------------------------------


def test_spa_rl_pays_each_turn_its_share_and_for_being_valid() -> None:
    """α·c_k + β·g_k on the last token of turn k, α = 1, β = 0.5; the outcome itself is not paid again."""
    batch = valued([1.0, 1.0], turn_bt=[[0.0, 0.0, 1.0], [0.0, 1.0, -1.0]]).replace(
        valid_bs=torch.tensor([[True, False], [True, True]]),
        stats={"progress": ragged([[0.3, 0.3, 0.6], [0.2, 0.9]])},
    )
    batch = batch.replace(turn_bt=batch.turn_bt.long())
    ready = grouprl.method("spa_rl", whiten=False).prepare(batch)
    rewards = [[0.0, 0.3 + 0.5, 0.6], [0.2 + 0.5, 0.9 + 0.5]]
    near(ready.advantage_bt, ragged([gae(r, v, 0.95) for r, v in zip(rewards, VALUES, strict=True)]))


# --- 19 GRPO-D --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", ["constant", "linear", "cosine", "exponential"])
def test_grpo_d_lets_the_kl_grow_between_its_bounds(curve: str) -> None:
    """Slope of β(t)·k3 at distance 0.5; monotone from 0.001 to 0.04 over the run; constant: GRPO with that KL."""
    found = []
    for step in range(11):
        batch = small([1, 0], ref_bt=[[-1.5]] * 2, step=step, steps=11)
        grad_bt = slope(grouprl.method("grpo_d", curve=curve), batch, still(batch))[1]
        plain = [-a / 2 for a in standardised([1, 0])]
        per_unit = (1 - math.exp(-0.5)) / 2
        found.append([(float(g) - p) / per_unit for g, p in zip(grad_bt[:, 0], plain, strict=True)])
    weights = [statistics.fmean(pair) for pair in found]
    assert weights == sorted(weights)
    if curve == "constant":
        assert weights == pytest.approx([0.04] * 11)
        return
    assert (weights[0], weights[-1]) == pytest.approx((0.001, 0.04))
    middle = {"linear": 0.0205, "cosine": 0.0205, "exponential": math.sqrt(0.001 * 0.04)}[curve]
    assert weights[5] == pytest.approx(middle)


# --- 156 TRPO ---------------------------------------------------------------------------------------------------------


def test_trpo_maximises_the_weighted_advantage_without_a_clip() -> None:
    """L = mean ρA, A by GAE, standardised; the trust region is the step's (tests/test_methods_learn_hook)."""
    moved = [[0.9, -0.9, 0.1], [0.5, 0.0]]
    with pytest.warns(UserWarning, match="optimiser steps"):
        _, grad_bt, ready = slope(grouprl.method("trpo"), valued([1.0, 0.0]), moved)
    adv = whitened([*gae([0, 0, 1], VALUES[0], 0.95), *gae([0, 0], VALUES[1], 0.95)])
    near(ready.advantage_bt, ragged([adv[:3], adv[3:]]))
    flat = [-a * math.exp(m) / 5 for a, m in zip(adv, [m for row in moved for m in row], strict=True)]
    near(grad_bt, ragged([flat[:3], flat[3:]]))


# --- 201 PDPPO --------------------------------------------------------------------------------------------------------


def test_pdppo_takes_the_larger_of_two_advantages() -> None:
    """G - V and G - Vˣ with V of the state seen and Vˣ of the state after the decision; λ 1, the reward at the end."""
    post = [[0.5, -0.4, 0.5], [0.0, 0.6]]
    entry = grouprl.method("pdppo", lam=1.0, gamma=1.0, whiten=False)
    turns = {"turn_bt": torch.tensor([[0, 1, 2], [0, 1, -1]]), "turn_reward_bs": f64([[0, 0, 1], [0, 0, 0]])}
    ready = entry.compute_advantages(valued([1.0, 0.0]).replace(stats={"post_value": ragged(post)}, **turns))
    expected = [
        [reward - min(v, x) for v, x in zip(values, posts, strict=True)]
        for reward, values, posts in zip([1.0, 0.0], VALUES, post, strict=True)
    ]
    near(ready.advantage_bt, ragged(expected))
