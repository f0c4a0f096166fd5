"""Rules of methods whose papers could be checked in part: which prompts, how many completions, what comes back.

Expected numbers are computed here from the written facts, in plain Python.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch

import grouprl
from facts import slope, standardised, still
from fake_context import FakeContext, seen
from grouprl.algorithms.curriculum.papers.bandit import ThompsonSampling
from grouprl.algorithms.curriculum.papers.informative_pairs import InformativePairs, d_optimal, of_pairs
from grouprl.methods.registry import CATALOGUE
from grouprl.tasks.adapters.trajectories.return_to_go import returns_to_go
from small import f64, near, small

# --- 354 VADE ---------------------------------------------------------------------------------------------------------


def test_vade_adds_right_and_wrong_completions_and_forgets_at_two_rates() -> None:
    """a += c, b += G - c; counts shrink by 0.9 where the prompt was sampled, by 0.999 elsewhere."""
    part = grouprl.method("vade").curriculum
    assert isinstance(part, ThompsonSampling)
    assert (part.prior, part.decay, part.sampled_decay) == (1.0, 0.999, 0.9)
    context, plain = FakeContext([0.5] * 4), [[0.0, 0.0] for _ in range(4)]
    for step, visits in enumerate([{0: (3, 4), 1: (0, 4)}, {1: (2, 4)}, {0: (4, 4), 3: (1, 4)}]):
        context.step = step
        for index, (right, completions) in visits.items():
            seen(context, index, right, completions)
        part.observe(None, None, context)
        for i in range(4):
            factor = 0.9 if i in visits else 0.999
            right, completions = visits.get(i, (0, 0))
            plain[i] = [plain[i][0] * factor + right, plain[i][1] * factor + completions - right]
    found = part.counts(context)
    np.testing.assert_allclose(np.stack(found).T, plain)


def test_vade_samples_what_promises_the_most_variance() -> None:
    """With sharp posteriors p(1 - p) is largest at one half, p(1 - p)² at one third."""
    right, wrong = [100, 50, 33, 5], [0, 50, 67, 95]
    for gain, order in (("variance", [1, 2, 3, 0]), ("information", [2, 1, 3, 0])):
        part, context = ThompsonSampling(gain=gain), FakeContext([0.5] * 4)
        context.state_of(part)["counts"] = torch.tensor([right, wrong], dtype=torch.float64) * 1000
        assert part.pick(4, np.random.default_rng(0), [], context) == order


# --- 353 Knapsack RL --------------------------------------------------------------------------------------------------


def worth(p: float, n: int) -> float:
    """[1 - p^N - (1-p)^N]·p(1-p)²."""
    return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2


def greedy(rates: list[float], total: int, low: int, high: int) -> list[int]:
    counts = [low] * len(rates)
    for _ in range(total - sum(counts)):
        open_ = [i for i, n in enumerate(counts) if n < high]
        best = max(open_, key=lambda i: worth(rates[i], counts[i] + 1) - worth(rates[i], counts[i]))
        counts[best] += 1
    return counts


def test_knapsack_rl_spends_completions_where_a_further_one_is_worth_most() -> None:
    """p of the last visit, one half before the first; 2 to 128 each; p is smoothed so that nothing is hopeless."""
    part = grouprl.method("knapsack_rl").allocation
    assert part is not None
    context = FakeContext([0.5] * 6, prompts=6, completions=8)
    for index, right in enumerate([0, 1, 3, 4, 6]):
        seen(context, index, right, 8)
    smoothed = {i: (r + 1) / 10 for i, r in enumerate([0, 1, 3, 4, 6])} | {5: 0.5}
    requests = context.take(6)
    counts = {r.index: r.completions for r in part.allot(requests, context)}
    rates = [smoothed[r.index] for r in requests]
    expected = dict(zip([r.index for r in requests], greedy(rates, 48, 2, 128), strict=True))
    assert sum(counts.values()) == 48
    assert sum(worth(smoothed[i], n) for i, n in counts.items()) == pytest.approx(
        sum(worth(smoothed[i], n) for i, n in expected.items())
    )
    assert max(range(101), key=lambda k: (k / 100) * (1 - k / 100) ** 2) == 33


def test_knapsack_rl_is_grpo_on_groups_of_any_size() -> None:
    rewards, groups = [1.0, 0.0, 1.0, 1.0, 0.0], [0, 0, 1, 1, 1]
    batch = small(rewards, groups=groups)
    expected = [*standardised(rewards[:2]), *standardised(rewards[2:])]
    near(grouprl.method("knapsack_rl").prepare(batch).advantage_bt[:, 0], expected)


# --- 233 online difficulty --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", range(11))
def test_online_difficulty_keeps_prompts_of_middling_pass_rate(right: int) -> None:
    """T_low ≤ p ≤ T_high, here 0.2 to 0.8 of ten completions; never 0 or 1."""
    rewards = [1.0] * right + [0.0] * (10 - right)
    method = grouprl.method("online_difficulty")
    ready = method.prepare(small(rewards).replace(correct_b=torch.tensor(rewards) > 0))
    keeps = 2 <= right <= 8
    assert bool((ready.weight_bt != 0).all()) == keeps
    assert bool((ready.weight_bt != 0).any()) == keeps
    assert method.refill is not None
    assert bool(method.refill.wanted(small(rewards).replace(correct_b=torch.tensor(rewards) > 0)).all()) == keeps


@pytest.mark.parametrize("right", range(5))
def test_online_difficulty_with_an_open_band_is_dapos_filter(right: int) -> None:
    rewards = [1.0] * right + [0.0] * (4 - right)
    batch = small(rewards, max_length=9).replace(correct_b=torch.tensor(rewards) > 0)
    kept = [
        (grouprl.method(n, **s).prepare(batch).weight_bt != 0).tolist()
        for n, s in (("online_difficulty", {"low": 0, "high": 1}), ("dapo", {}))
    ]
    assert kept[0] == kept[1]


# --- 111 SRPO, 336 PALU -----------------------------------------------------------------------------------------------


def test_srpo_history_drops_what_was_all_right_and_keeps_mixed_and_all_wrong() -> None:
    part = grouprl.method("srpo_history").curriculum
    assert part is not None
    context = FakeContext([0.5] * 3)
    first = [r.index for r in part.choose(3, context)]
    assert sorted(first) == [0, 1, 2]
    for index, right in enumerate([4, 2, 0]):
        seen(context, index, right, 4)
    context.step = 1
    assert sorted(r.index for r in part.choose(2, context)) == [1, 2]
    context.step = 2
    assert sorted(r.index for r in part.choose(2, context)) == [1, 2], "an all-right prompt does not come back"


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between the sorted values."""
    ordered, place = sorted(values), q * (len(values) - 1)
    low = math.floor(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


@pytest.mark.parametrize(
    ("lengths", "wrong", "tau"),
    [
        ([100, 150, 200], 0, 0.5),
        ([100, 120, 180, 200], 1, 0.5),
        ([100, 200], 2, 0.5),
        ([150] * 4, 0, 0.5),
        ([90, 110], 0, 0.25),
        ([], 4, 0.5),
    ],
)
def test_palu_shrinks_a_solved_prompts_budget_by_a_quantile_gap(lengths: list[int], wrong: int, tau: float) -> None:
    """R(q) ≥ 0.8: L ← L - (Q_1 - Q_{1-τ}) of the lengths of the right ones; else L_max. Three visits in a row."""
    part = grouprl.method("palu", shrink=tau).sampling
    assert part is not None
    context, most, budget = FakeContext([0.5], max_new_tokens=400, prompts=1), 400, 400
    for step in range(3):
        context.step = step
        within = [n for n in lengths if n <= budget]
        completions = len(lengths) + wrong
        seen(context, 0, len(lengths), completions, lengths=tuple(lengths))
        part.observe(context.sample(context.take(1)), None, context)
        solved = len(within) / completions >= 0.8
        budget = round(budget - (quantile(within, 1) - quantile(within, 1 - tau))) if solved else most
        budget = max(budget, 40)  # a floor, which the facts leave open
        (request,) = part.adjust([context.request(0)], context)
        assert request.max_new_tokens == budget


def test_palu_pays_nothing_beyond_the_budget() -> None:
    batch = small([1.0, 1.0, 0.0], truncated_b=[False, True, False])
    near(grouprl.method("palu").prepare(batch).reward_b, [1.0, 0.0, 0.0])


# --- 135 Skywork R1V2 -------------------------------------------------------------------------------------------------


def test_skywork_r1v2_trains_replayed_completions_on_the_advantage_they_had() -> None:
    """New rows are judged among themselves; replayed ones keep theirs; ratios are to the policy that sampled them."""
    batch = small([1.0, 0.0, 0.0]).replace(
        source_b=torch.tensor([0, 0, 3]),
        past={"advantage": f64([0.0, 0.0, 0.7])},
        behavior_bt=f64([[-1.0], [-1.0], [-1.1]]),
    )
    _, grad_bt, ready = slope(grouprl.method("skywork_r1v2"), batch, still(batch))
    a, b = standardised([1.0, 0.0])
    near(ready.advantage_bt[:, 0], [a, b, 0.7])
    near(grad_bt[:, 0], [-a / 3, -b / 3, -0.7 * math.exp(0.1) / 3])


def test_skywork_r1v2_stores_what_has_an_advantage_and_samples_by_its_size() -> None:
    """No completion of A = 0 is stored; over many steps draws are in proportion to |A|."""
    part = grouprl.method("skywork_r1v2").buffer
    assert part is not None
    context = FakeContext([0.5] * 4, completions=4)
    samples = context.sample(context.take(1))
    adv = [0.6, -0.2, 0.0, 0.2]
    prepared = context.batch(samples).replace(advantage_bt=f64([[a, a] for a in adv]))
    part.observe(samples, prepared, context)
    counts = dict.fromkeys(range(4), 0)
    for step in range(1, 1501):
        context.step = step
        mixed = part.mix(samples, context)
        assert mixed is not None
        (row,) = np.flatnonzero(mixed.source_b == 3)
        counts[int(mixed.sample_b[row])] += 1
    assert counts[2] == 0
    for i in (0, 1, 3):
        share = abs(adv[i])
        assert counts[i] / 1500 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 1500))


# --- 66 XRPO ----------------------------------------------------------------------------------------------------------

T_975 = {3: 3.182446305, 4: 2.776445105, 7: 2.364624252, 8: 2.306004135}
"""Quantiles of Student's t at 0.975 by degrees of freedom, from a table."""


def half_width(n: int, spread: float) -> float:
    return T_975[n - 1] * spread / math.sqrt(n)


def test_xrpo_gives_further_completions_to_what_is_least_certain() -> None:
    """D = h(n) - h(n+1) at the same spread: .7955 - .6207 = .1748 at n = 4, s = ½; without spread the bonus alone."""
    part = grouprl.method("xrpo").augment[0]
    assert (round(half_width(4, 0.5), 4), round(half_width(5, 0.5), 4)) == (0.7956, 0.6208)
    from grouprl.algorithms.augment.papers.rounds import PromptRewards, UncertaintyRounds

    assert isinstance(part, UncertaintyRounds)
    for n, spread in ((4, 0.5), (8, 0.5), (4, 0.0)):
        narrower = half_width(n, spread) - half_width(n + 1, spread)
        bonus = part.priority(PromptRewards(n, 0.0), 64)
        assert part.priority(PromptRewards(n, spread), 64) - bonus == pytest.approx(narrower, abs=1e-6)
    assert part.priority(PromptRewards(4, 0.0), 640) > part.priority(PromptRewards(4, 0.0), 64)
    assert part.priority(PromptRewards(8, 0.0), 64) < part.priority(PromptRewards(4, 0.0), 64)
    assert part.split({0: PromptRewards(4, 0.5), 1: PromptRewards(4, 0.0)}, 1) == {0: 1, 1: 0}


# --- 290 MO-DT --------------------------------------------------------------------------------------------------------


def test_mo_dt_clones_actions_what_is_seen_next_and_what_is_to_go() -> None:
    """mean of -log π + w_s·e_s + w_R·e_R over all actions, where returns to go are Σ of the rewards from t on."""
    method, batch = grouprl.method("mo_dt", observation=0.3, to_go=0.7), small([2.0, 0.0], [2, 1])
    logp, sees, earns = [-0.5, -1.5, -2.0], [0.2, 0.4, 0.0], [1.0, 0.25, 0.09]
    spread = [f64([[x[0], x[1]], [x[2], 9.0]]).requires_grad_() for x in (logp, sees, earns)]
    ready = method.compute_loss_weights(method.compute_advantages(batch))
    given = {"observation_error": spread[1], "to_go_error": spread[2]}
    loss = method.loss(spread[0], ready, outputs=given).value
    near(loss, sum(-a + 0.3 * s + 0.7 * r for a, s, r in zip(logp, sees, earns, strict=True)) / 3)
    for slope_bt, weight in zip(torch.autograd.grad(loss, spread), (-1.0, 0.3, 0.7), strict=True):
        near(slope_bt, [[weight / 3, weight / 3], [weight / 3, 0.0]])
    assert returns_to_go(np.array([1.0, 0.0, -3.0])).tolist() == [-2.0, -3.0, -3.0]


# --- every entry has its rule -----------------------------------------------------------------------------------------


def test_every_entry_that_could_be_checked_in_part_has_a_rule_of_its_own() -> None:
    """Its name stands in one of these files; a name more here than there is means one was renamed."""
    from pathlib import Path

    files = [*Path(__file__).parent.rglob("test_partly_*.py")]
    text = "".join(file.read_text() for file in files)
    partly = {name for name, entry in CATALOGUE.items() if entry.card.confidence != "verified"}
    assert len(partly) > 60
    assert {name for name in partly if f'grouprl.method("{name}"' not in text} == set()
    assert statistics.fmean(f.read_text().count("\n") for f in files) < 400, "files of a few hundred lines"


# --- 263 ADPO ---------------------------------------------------------------------------------------------------------


def test_adpo_chooses_what_adds_most_to_log_det_of_the_information() -> None:
    """H = γI + Σ σ'(z)·φφ' with φ = β·(features of the two rows apart), z = β·Δ; every remaining pair is tried."""
    part, rng = grouprl.method("adpo", beta=0.4, ridge=0.7, size=5).curriculum, np.random.default_rng(0)
    assert isinstance(part, InformativePairs)
    feature, log_ratio = rng.normal(size=(14, 5)), rng.normal(size=14)
    phi = part.beta * (feature[::2] - feature[1::2])
    logit = part.beta * (log_ratio[::2] - log_ratio[1::2])
    matrix, plain = part.ridge * np.eye(5), list[int]()
    for _ in range(4):
        grown = {
            i: matrix + np.outer(phi[i], phi[i]) / (1 + math.exp(-logit[i])) / (1 + math.exp(logit[i]))
            for i in range(7)
            if i not in plain
        }
        best = max(grown, key=lambda i: np.linalg.slogdet(grown[i])[1])
        matrix, plain = grown[best], [*plain, best]
    pairs = of_pairs(part.beta * f64(feature.tolist()), part.beta * f64(log_ratio.tolist()), torch.arange(14) // 2, 7)
    order, inverse, _ = d_optimal(torch.eye(5, dtype=torch.float64) / part.ridge, *pairs, 4)
    assert order == plain
    np.testing.assert_allclose(np.linalg.inv(inverse), matrix)
