"""How many completions each prompt gets, how long and how hot: hand values and simulated prompt sets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fake_context import CharacterPolicy, FakeContext, seen
from grouprl.algorithms.allocation.papers.allocation import (
    GradientVariance,
    GreedyFilter,
    Knapsack,
    gradient_weight,
    knapsack,
    rounded,
    value,
)
from grouprl.algorithms.augment.papers.rounds import PromptRewards, UncertaintyRounds, half_width, standing, student
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.sampling.papers.budget import EntropyTemperature, LengthBudget
from grouprl.core.batch import SOURCES
from grouprl.records.joining import join
from grouprl.records.prompt_history import Visit
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, subset


def counts(requests: Sequence[RolloutRequest]) -> list[int]:
    return [request.completions for request in requests]


# ── knapsack ─────────────────────────────────────────────────────────────────────────────────────────────────────

SIX = [0.05, 0.2, 1 / 3, 0.5, 0.8, 0.95]


def test_knapsack_by_hand() -> None:
    split = knapsack(SIX, 48, 2, 32)
    assert split == [10, 13, 9, 7, 7, 2]
    assert sum(value(p, n) for p, n in zip(SIX, split, strict=True)) == pytest.approx(0.4319, abs=5e-5)
    assert sum(value(p, 8) for p in SIX) == pytest.approx(0.4155, abs=5e-5)


def test_knapsack_equals_brute_force() -> None:
    rates = [0.05, 0.2, 1 / 3]
    splits = (s for s in itertools.product(range(2, 19), repeat=3) if sum(s) == 18)
    assert tuple(knapsack(rates, 18, 2, 18)) == max(splits, key=lambda s: sum(map(value, rates, s))) == (2, 9, 7)


@given(
    rates=st.lists(st.floats(0, 1), min_size=1, max_size=4),
    total=st.integers(4, 14),
    low=st.integers(1, 2),
    high=st.integers(3, 8),
)
def test_knapsack_is_best_and_spends_everything(rates: list[float], total: int, low: int, high: int) -> None:
    split = knapsack(rates, total, low, high)
    room = range(low, high + 1)
    if not low * len(rates) <= total <= high * len(rates):
        assert sum(split) == min(total, high * len(rates))
        return
    found = max(sum(map(value, rates, s)) for s in itertools.product(room, repeat=len(rates)) if sum(s) == total)
    assert sum(split) == total
    assert all(n in room for n in split)
    assert sum(map(value, rates, split)) == pytest.approx(found, abs=1e-12)


def test_equal_rates_share_equally_and_the_best_rate_is_a_third() -> None:
    assert knapsack([0.3] * 4, 32, 2, 32) == [8] * 4
    grid = np.linspace(0, 1, 3001)
    assert grid[np.argmax(grid * (1 - grid) ** 2)] == pytest.approx(1 / 3, abs=1e-3)


def test_worthless_completions_go_to_what_was_never_right() -> None:
    assert knapsack([0.0, 1.0, 0.0], 18, 2, 7) == [7, 4, 7]
    assert knapsack([0.0, 1.0, 0.0], 12, 2, 32) == [5, 2, 5]


def test_too_few_completions_are_split_evenly() -> None:
    assert knapsack([0.5, 0.1, 0.9], 4, 2, 8) == [2, 1, 1]


def test_knapsack_reads_the_last_visit_smoothed() -> None:
    part, context = Knapsack(low=2, high=30), FakeContext([0.5] * 4, completions=8)
    for index, right in enumerate((0, 4, 8)):
        seen(context, index, right, 8)
    assert [part.rate(i, context) for i in range(4)] == [0.1, 0.5, 0.9, 0.5]
    requests = part.allot([context.request(i) for i in range(4)], context)
    assert counts(requests) == knapsack([0.1, 0.5, 0.9, 0.5], 32, 2, 30)
    assert sum(counts(requests)) == 32
    assert (context.notes["completions_least"], context.notes["completions_most"]) == (
        min(counts(requests)),
        max(counts(requests)),
    )


def test_knapsack_refuses_groups_outside_its_bounds() -> None:
    assert Knapsack(low=4).refuse(RunFacts(group_size=2, examples=8))
    assert Knapsack(high=4).refuse(RunFacts(group_size=8, examples=8))
    assert Knapsack().refuse(RunFacts(examples=None))
    assert Knapsack().refuse(RunFacts(examples=8)) == []


# ── greedy filter ────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_prompts_with_a_wrong_greedy_completion_are_sampled() -> None:
    context = FakeContext([0.9, 0.1, 0.6, 0.3])
    requests = GreedyFilter().allot([context.request(i) for i in range(4)], context)
    assert counts(requests) == [0, 4, 0, 4]
    assert context.notes == {"completions_probed": 4, "prompts_skipped": 0.5}


def test_the_greedy_completion_must_earn_what_is_wanted() -> None:
    context = FakeContext([0.9, 0.1])
    assert counts(GreedyFilter(solved=2.0).allot(context.take(2), context)) == [4, 4]


def test_nothing_is_left_where_all_is_solved() -> None:
    context = FakeContext([0.9] * 3)
    assert counts(GreedyFilter().allot(context.take(3), context)) == [0, 0, 0]


# ── variance of the gradient ─────────────────────────────────────────────────────────────────────────────────────


class Normed(CharacterPolicy):
    """Gradient norms by the prompt's number, as its prompt shows it ("q3=")."""

    def __init__(self, norms: Sequence[float]) -> None:
        self.norms, self.requested = norms, []

    def gradient_norms(self, tokens: Any, block: str) -> torch.Tensor:
        self.requested.append((len(tokens), block))
        return torch.tensor([self.norms[int(chr(prompt[1]))] for prompt in tokens.prompt_ids])


def test_gradient_weights_by_hand() -> None:
    rate_q = np.array([0.25, 1.0, 0.0])
    assert gradient_weight(rate_q, np.ones(3), 0.0, 2.0).tolist() == [2.0, 1.0, 0.0]
    near = gradient_weight(np.array([0.01]), np.ones(1), 1e-3, 2.0)[0]
    assert near == pytest.approx(1 / math.sqrt(0.01 + 1e-3 / 0.01))


def test_split_of_a_quarter_against_certainty_is_two_to_one() -> None:
    part = GradientVariance(alpha=0.0)
    assert part.split(np.array([0.25, 1.0]), np.ones(2), 12) == [8, 4]
    assert part.split(np.array([0.5] * 4), np.ones(4), 10) == [3, 3, 2, 2]
    assert part.split(np.array([0.0, 0.5]), np.array([0.0, 1.0]), 9) == [0, 9]
    assert part.split(np.zeros(3), np.zeros(3), 9) == [3, 3, 3]


def test_filters_of_gvm() -> None:
    assert GradientVariance(skip_above=0.9).split(np.array([1.0, 0.5]), np.ones(2), 8) == [0, 8]
    assert GradientVariance(alpha=0.0, skip_below=1.0).split(np.array([0.04, 1.0]), np.ones(2), 12) == [0, 12]


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=9), st.integers(0, 200))
def test_rounding_keeps_the_sum_and_moves_nothing_by_one(weights: list[float], total: int) -> None:
    weight_q = np.array(weights)
    split = rounded(weight_q, total)
    assert sum(split) == total
    assert all(abs(n - x) < 1 for n, x in zip(split, weight_q / weight_q.sum() * total, strict=True))


def test_gvm_probes_and_measures_right_completions_only() -> None:
    policy = Normed([1.0, 3.0, 5.0])
    context = FakeContext([1.0, 1.0, 0.0], completions=4, policy=policy)
    requests = GradientVariance(probe=6, alpha=0.0).allot([context.request(i) for i in range(3)], context)
    assert counts(requests) == [3, 9, 0]
    assert [request.first for request in requests] == [6, 6, 6]
    assert policy.requested == [(12, "embedding")]
    assert context.notes["completions_probed"] == 18
    assert not set(context.sample(requests).sample_b.tolist()) & set(range(6))


def test_the_allocated_gradient_estimate_varies_less_than_the_even_one() -> None:
    """Each prompt's estimate is the mean over accepted of n_i samples; its variance is G²/(n_i p_i) at large n."""
    rate_q, norm_q = np.array([0.05, 0.3, 0.9, 0.9]), np.array([1.0, 3.0, 0.5, 1.0])
    rng = np.random.default_rng(0)

    def spread(split: Sequence[int]) -> float:
        accepted = rng.binomial(np.array(split), rate_q, size=(4000, 4))
        noise = rng.normal(size=(4000, 4)) * norm_q * np.sqrt(accepted) / (np.array(split) * rate_q)
        return float(noise.sum(1).var())

    split = GradientVariance(alpha=1e-3).split(rate_q, norm_q, 400)
    assert sum(split) == 400
    assert spread(split) < 0.9 * spread([100] * 4)


# ── rounds ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_student_quantiles_of_the_tables() -> None:
    table = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 7: 2.3646, 10: 2.2281, 30: 2.0423, 100: 1.9840}
    for freedom, t in table.items():
        assert student(0.05, freedom) == pytest.approx(t, abs=1e-4)
    assert student(0.01, 5) == pytest.approx(4.0321, abs=1e-4)
    assert student(0.5, 1) == pytest.approx(1.0, abs=1e-9)


def test_half_widths_by_hand() -> None:
    assert half_width(4, 0.5, 0.05) == pytest.approx(0.7955, abs=2e-4)
    assert half_width(5, 0.5, 0.05) == pytest.approx(0.6207, abs=2e-4)
    part = UncertaintyRounds(bonus=0.0)
    assert part.priority(PromptRewards(4, 0.5), 8) == pytest.approx(0.1748, abs=1e-4)


def test_without_spread_only_the_bonus_remains() -> None:
    assert UncertaintyRounds(bonus=0.0).priority(PromptRewards(4, 0.0), 8) == 0
    assert UncertaintyRounds(bonus=0.3).priority(PromptRewards(4, 0.0), 8) == pytest.approx(
        0.3 * math.sqrt(math.log(8) / 4)
    )


def test_uncertain_prompts_get_the_completions_and_none_is_lost() -> None:
    part = UncertaintyRounds(bonus=0.01)
    more = part.split({0: PromptRewards(4, 0.5), 1: PromptRewards(4, 0.0), 2: PromptRewards(4, 0.2)}, 12)
    assert sum(more.values()) == 12
    assert more[0] > more[2] > more[1]


def test_prompts_alike_get_equally_many() -> None:
    assert set(UncertaintyRounds().split({k: PromptRewards(4, 0.5) for k in range(4)}, 8).values()) == {2}


def test_rounds_sample_further_completions_of_the_same_prompts() -> None:
    context = FakeContext([0.5, 1.0, 0.0], completions=4)
    first = context.sample([context.request(i) for i in range(3)])
    rows = UncertaintyRounds(extra=1.5, rounds=3)(first, context)
    assert len(rows) == 12 + 18
    assert rows.group_b.tolist() == sorted(rows.group_b.tolist())
    names = list(zip(rows.group_b.tolist(), rows.sample_b.tolist(), strict=True))
    assert len(set(names)) == 30
    sizes = [int((rows.group_b == g).sum()) for g in range(3)]
    assert sizes[0] == max(sizes) == context.notes["completions_most"]
    assert [round_rows.group_b.tolist() for round_rows in context.sampled[1:]]


def test_rounds_measure_only_what_the_policy_sampled() -> None:
    context = FakeContext([0.5], completions=4)
    sampled = context.sample([context.request(0)])
    both = join(
        [
            sampled,
            context.rows_of_texts([RolloutRequest(0, 0, context.task.example("train", 0), 1, first=9)], ["right"]),
        ]
    )
    assert standing(both, np.arange(5)) == standing(sampled, np.arange(4))


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────────────────────


def visit(right: int, completions: int, lengths: Sequence[int]) -> Visit:
    return Visit(0, completions, right, right / completions, 0.0, 0.0, tuple(lengths))


def test_budgets_shrink_while_solved_and_jump_back() -> None:
    part = LengthBudget()
    full = list(range(100, 201))
    assert part.after(200, visit(101, 101, full), 200) == 150
    assert part.after(150, visit(51, 51, full[:51]), 200) == 125
    assert part.after(125, visit(3, 4, [100, 110, 120]), 200) == 200
    assert part.after(150, visit(0, 4, []), 200) == 200


def test_equal_lengths_and_the_floor_hold_a_budget() -> None:
    part = LengthBudget(floor=0.25)
    assert part.after(60, visit(4, 4, [50] * 4), 200) == 60
    assert part.after(60, visit(4, 4, [1, 1, 1, 60]), 200) == 50


def test_a_target_of_zero_with_nothing_right_has_no_quantile() -> None:
    assert LengthBudget(target=0.0).after(60, visit(0, 4, []), 200) == 200


def test_a_budget_follows_its_prompt_through_a_run() -> None:
    def lengths(index: int, number: int) -> int:
        return 6 + 2 * (number % 4) if index == 0 else 9

    part, context = LengthBudget(floor=0.1), FakeContext([1.0, 0.0], max_new_tokens=20, lengths=lengths)
    budgets = []
    for _ in range(4):
        requests = part.adjust([context.request(0), context.request(1)], context)
        budgets.append([request.max_new_tokens for request in requests])
        context.finish(context.sample(requests), part)
    assert [b[1] for b in budgets] == [20] * 4
    assert [b[0] for b in budgets] == [20, 17, 14, 11]
    assert context.notes["length_budget"] == pytest.approx(15.5)


def test_completions_that_were_cut_off_are_no_right_ones() -> None:
    part = LengthBudget(target=0.75)
    assert part.after(10, visit(4, 4, [6, 8, 10, 10]), 20) == 9
    assert part.after(10, visit(4, 4, [6, 8, 10, 10]), 20, cut=1) == 8
    assert part.after(10, visit(4, 4, [6, 8, 10, 10]), 20, cut=2) == 20
    assert part.after(10, visit(4, 4, [10] * 4), 20, cut=4) == 20


def test_completions_beyond_the_budget_are_no_right_ones() -> None:
    assert LengthBudget(target=0.75).after(10, visit(4, 4, [6, 8, 10, 14]), 20) == 8
    assert LengthBudget(target=0.75).after(10, visit(4, 4, [6, 8, 14, 14]), 20) == 20


def test_a_budget_below_every_completion_recovers() -> None:
    part, context = LengthBudget(), FakeContext([1.0], max_new_tokens=20, lengths=lambda i, n: 9)
    context.state_of(part)["budget"] = {0: 4}
    sampled = context.sample(part.adjust([context.request(0)], context))
    sampled.rollout.truncated_b[:] = True
    context.finish(sampled, part)
    assert context.state_of(part)["budget"] == {0: 20}


def test_a_request_of_its_own_smaller_budget_keeps_it() -> None:
    context = FakeContext([0.5])
    request = RolloutRequest(0, 0, context.task.example("train", 0), 4, max_new_tokens=3)
    assert LengthBudget().adjust([request], context)[0].max_new_tokens == 3


def test_length_budget_says_when_it_cannot_work() -> None:
    assert LengthBudget().refuse(RunFacts(examples=None))
    assert LengthBudget(shrink=0.0).idle(RunFacts())
    assert LengthBudget(floor=1.0).idle(RunFacts())
    assert LengthBudget().idle(RunFacts()) == []


# ── temperature ──────────────────────────────────────────────────────────────────────────────────────────────────


def entropies(context: FakeContext, values: Sequence[float]) -> ScoredSamples:
    """One row whose tokens have these entropies."""
    request = context.request(0)
    rows = context.rows([(request, 0)], [(7,) * len(values)], [True])
    rows.rollout.entropy_bt[:] = torch.tensor([list(values)])
    return rows


def test_temperature_follows_entropy_on_the_scale_of_the_step_before() -> None:
    part, context = EntropyTemperature(tau=0.1), FakeContext([0.5])
    assert part.scaling(context) is None
    logs = [-2.0, -1.0, -1.0, -1.0, 0.0, 1.0]  # pivot: 0.8-quantile of six, the nearest is number 4: 0
    part.observe(entropies(context, [math.exp(x) for x in logs]), None, context)
    scaling = part.scaling(context)
    assert scaling is not None
    requested = torch.tensor([math.exp(x) for x in (0.0, 0.5, 1.0, 3.0, -1.0, -2.0, -9.0)])
    assert scaling.factors(requested).tolist() == pytest.approx([1.0, 1.05, 1.1, 1.1, 0.95, 0.9, 0.9])
    assert scaling.factors(torch.zeros(1)).item() == pytest.approx(0.9)


def test_rows_that_were_left_out_do_not_widen_the_scale() -> None:
    context = FakeContext([0.5], lengths=lambda i, n: (3, 9)[n])
    both = context.sample([replace(context.request(0), completions=2)])
    both.rollout.entropy_bt[1] = 5.0
    part = EntropyTemperature()
    part.observe(subset(both, np.array([0])), None, context)
    assert context.state_of(part)["scale"][0] == pytest.approx(math.log(0.5))


def test_the_released_form_never_cools() -> None:
    context = FakeContext([0.5])
    part = EntropyTemperature(tau=0.1, released=True)
    part.observe(entropies(context, [math.exp(x) for x in (-2.0, -1.0, 0.0, 0.0, 0.0, 1.0)]), None, context)
    scaling = part.scaling(context)
    assert scaling is not None
    assert scaling.factors(torch.tensor([math.exp(-2.0), math.exp(-1.0)])).tolist() == pytest.approx([1.1, 1.05])


def test_equal_entropies_leave_the_temperature() -> None:
    part, context = EntropyTemperature(), FakeContext([0.5])
    part.observe(entropies(context, [0.7] * 5), None, context)
    scaling = part.scaling(context)
    assert scaling is not None
    assert scaling.factors(torch.tensor([0.7], dtype=torch.float64)).item() == pytest.approx(1.0)


def test_the_scale_is_that_of_sampled_completions() -> None:
    part, context = EntropyTemperature(), FakeContext([0.5])
    part.observe(entropies(context, [0.1, 0.5, 1.0]).with_source("replay"), None, context)
    assert part.scaling(context) is None
    assert SOURCES["sampled"] == 0
