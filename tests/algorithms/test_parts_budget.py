"""Budgets of tokens: HBPO's rewards and advantages, PALU's limit, BRPO's segments."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from batches import outcome, random_case, same
from grouprl.algorithms.advantage.papers.budget_segments import BudgetSegments, earlier
from grouprl.algorithms.advantage_transform.papers.budget_gap import BudgetGap
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.papers.budget_cosine import BudgetCosine
from grouprl.algorithms.reward_transform.papers.fail_truncated import FailTruncated
from grouprl.core.batch import SOURCES, Batch
from grouprl.core.errors import InputError
from small import f64, near, small

LONGEST = 4096


def factor(length: float, budget: float, **settings) -> float:
    return float(BudgetCosine(length=LONGEST, **settings).factor(f64([length]), f64([budget]), LONGEST))


def budgeted(rewards, lengths, budgets, **fields) -> Batch:
    return small(rewards, lengths, keys={"budget": torch.tensor(budgets)}, **fields)


# --- HBPO's reward ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "late"), [(512, -0.704), (1024, -0.579), (2560, -0.204)])
def test_a_right_completion_far_behind_its_budget_earns_less_than_nothing(budget, late):
    assert factor(4000, budget) == pytest.approx(late, abs=1e-3)


@pytest.mark.parametrize(("budget", "worth"), [(512, 3.923), (1024, 3.696), (2048, 2.828), (2560, 2.222)])
def test_the_reward_is_flat_up_to_the_budget_and_continuous_there(budget, worth):
    assert factor(budget, budget) == pytest.approx(worth, abs=1e-3)
    assert factor(1, budget) == factor(budget, budget)
    assert factor(budget + 1e-6, budget) == pytest.approx(factor(budget, budget), abs=1e-6)
    assert factor(budget + 100, budget) < factor(budget, budget)


def test_the_release_takes_the_smaller_formula_below_the_budget_too():
    graded = 4 * math.cos(math.pi * 100 / 8192) - 412 / 4096
    assert factor(100, 512, below="min") == pytest.approx(graded)
    assert factor(100, 512, below="min") < factor(100, 512)
    assert factor(2000, 512, below="min") == factor(2000, 512)


@settings(max_examples=30, deadline=None)
@given(budget=st.integers(1, LONGEST), length=st.integers(1, LONGEST))
def test_no_length_beats_keeping_to_the_budget(budget, length):
    assert factor(length, budget) <= factor(budget, budget) + 1e-12


def test_rewards_row_by_row():
    batch = budgeted([1, 0, 1, 1, -1], [2, 1, 5, 1, 2], [2, 2, 2, 0, 4])
    shaped = BudgetCosine(length=4)(batch).reward_b
    near(shaped, [4 * math.cos(math.pi / 4), 0, 0, 4 * math.cos(math.pi / 8), -1])
    near(BudgetCosine()(batch.replace(max_length=4)).reward_b, shaped)


def test_a_budget_beyond_the_limit_is_the_limit():
    assert factor(10, 10_000) == pytest.approx(0, abs=1e-9)


def test_the_floor_holds_for_right_completions_alone():
    batch = budgeted([1, 0, 1], [7, 7, 1], [1, 1, 1])
    near(BudgetCosine(length=8, alpha=1.0)(batch).reward_b[0], 4 * math.cos(math.pi * 7 / 16) - 6)
    near(BudgetCosine(length=8, alpha=1.0, floor=0.0)(batch).reward_b, [0, 0, 4 * math.cos(math.pi / 16)])


# --- HBPO's second advantage --------------------------------------------------------------------------------------


def gap(batch: Batch, **settings) -> torch.Tensor:
    return BudgetGap(**settings)(torch.zeros_like(batch.mask_bt, dtype=batch.dtype), batch)[:, 0]


def test_a_budget_that_reaches_its_ideal_adds_nothing_and_others_lose():
    batch = BudgetCosine(length=8)(budgeted([1, 1, 1, 0], [2, 1, 4, 4], [2, 2, 4, 4]))
    short, long = 4 * math.cos(math.pi / 8), 4 * math.cos(math.pi / 4)
    near(batch.reward_b, [short, short, long, 0])
    near(gap(batch, length=8), [0, 0, -long / 2, -long / 2])
    near(gap(batch, length=8, weight=2.0), [0, 0, -long, -long])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_the_gap_is_never_positive(seed):
    batch = random_case(seed, rewards="binary").batch
    shaped = BudgetCosine()(batch)
    assert (BudgetGap()(torch.zeros_like(batch.old_bt), shaped) <= 1e-12).all()


def test_rows_without_budget_or_outside_statistics_get_no_gap():
    batch = budgeted([1, 0, 5], None, [0, 2, 2], stat_b=torch.tensor([True, True, False]))
    near(gap(batch, length=8), [0, -4 * math.cos(math.pi / 8), 0])


def test_equal_budgets_of_two_prompts_are_two_budgets():
    batch = budgeted([3, 1], None, [2, 2], groups=[0, 1])
    ideal = 4 * math.cos(math.pi / 8)
    near(gap(batch, length=8), [3 - ideal, 1 - ideal])


def test_the_release_adds_the_second_advantage_twice():
    case = random_case(3, rewards="mixed")
    none, once, twice = (
        grouprl.method("hbpo", intra_weight=w).prepare(case.batch).advantage_bt for w in (0.0, 1.0, 2.0)
    )
    near(twice - once, once - none)
    assert (once != none).any()


def test_a_missing_budget_is_named():
    with pytest.raises(InputError, match=r"batch\.keys\.budget"):
        grouprl.method("hbpo", length=10).prepare(small([1, 0]))


def test_a_gap_without_weight_says_so():
    assert BudgetGap(weight=0.0).idle(RunFacts())
    assert not BudgetGap().idle(RunFacts())


# --- PALU ---------------------------------------------------------------------------------------------------------


def test_cut_off_completions_earn_nothing_and_a_penalty_stays():
    batch = small([1, 1, -1], truncated_b=[False, True, True])
    near(FailTruncated()(batch).reward_b, [1, 0, -1])


def test_palu_is_grpo_while_nothing_is_cut_off():
    case = random_case(5)
    case = dataclasses.replace(case, batch=case.batch.replace(truncated_b=torch.zeros_like(case.batch.truncated_b)))
    same(outcome(grouprl.method("palu"), case), outcome(grouprl.method("grpo"), case))


def test_palu_hands_its_numbers_to_the_budget_of_each_prompt():
    budget = grouprl.method("palu", target=0.5, shrink=0.25, floor=0.2).sampling
    assert (budget.target, budget.shrink, budget.floor) == (0.5, 0.25, 0.2)


# --- BRPO ---------------------------------------------------------------------------------------------------------

SCORES = f64([[0, 0.5, 1, 1], [0, 0, 0, 1]])


def advantages(scores=SCORES, **settings) -> torch.Tensor:
    rows = len(scores)
    return BudgetSegments(**settings).segment_advantages(
        scores, torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.float64)
    )


def test_segments_of_two_thoughts():
    near(advantages(), [[0.1875, 0.296875, 0.2291666667, 0.0535714286], [-0.1875, -0.078125, 0.0625, 0.1875]], 1e-9)


def test_one_budget_is_dr_grpo():
    near(advantages(f64([[1], [0], [0], [1]])), [[0.5], [-0.5], [-0.5], [0.5]])


def test_equal_scores_everywhere_teach_nothing():
    for prior in ("uniform", "linear", "base"):
        for baseline in ("both", "v2only"):
            assert advantages(torch.full((3, 4), 0.7).double(), prior=prior, baseline=baseline).abs().max() < 1e-12


def test_baselines():
    returns = f64([[0.625, 0.625, 0.5, 0.25], [0.25] * 4])
    own = f64([[0, 0, 1 / 6, 5 / 28], [0, 0, 0, 0]])
    near(advantages(baseline="none"), returns)
    near(advantages(baseline="v1only"), returns - own)
    near(advantages(baseline="v2only"), returns - returns.mean(0))


def test_the_own_baseline_never_reads_its_own_or_later_scores():
    changed = SCORES.clone()
    changed[0, 2:] = 9.0
    near(earlier(changed)[0, :3], earlier(SCORES)[0, :3])
    near(earlier(f64([[1, 0, 1]])), [[0, 1, 1 / 3]])


def test_priors():
    near(BudgetSegments(prior="uniform").weights(4), [0.25] * 4)
    near(BudgetSegments(prior="linear").weights(4), [0.1, 0.2, 0.3, 0.4])
    near(BudgetSegments(prior="base").weights(4), [0, 0, 0, 1])
    near(advantages(prior="base", baseline="none"), [[1] * 4, [1] * 4])


def thoughts(**fields) -> Batch:
    given = {
        "turn_reward_bs": [[1.0, 0.0], [0.0, 0.0], [9.0, 9.0], [9.0, 9.0]],
        "source_b": [0, 0, SOURCES["extra"], SOURCES["extra"]],
        "turn_bt": torch.tensor([[0, 0, 1], [0, -1, -1], [-1, -1, -1], [-1, -1, -1]]),
        "keys": {"cut": torch.tensor([-1, -1, 4, 4])},
    }
    return small([7, 7, 1, 0], [3, 2, 1, 1], **(given | fields))


def test_tokens_get_the_advantage_of_their_segment_and_completions_that_of_their_cut():
    adv_bt = BudgetSegments()(thoughts())
    near(adv_bt, [[0.25, 0.25, -0.25], [-0.25, 0, 0], [0.5, 0, 0], [-0.5, 0, 0]])


def test_completions_of_different_cuts_are_not_compared():
    assert not BudgetSegments()(thoughts(keys={"cut": torch.tensor([-1, -1, 4, 5])}))[2:].any()


def test_a_segment_without_scores_is_refused():
    with pytest.raises(InputError, match="segment 1, turn_reward_bs has only 1"):
        BudgetSegments()(thoughts(turn_reward_bs=[[1.0], [0.0], [0.0], [0.0]]))


def test_a_thought_alone_is_judged_by_its_own_earlier_scores_only():
    near(advantages(f64([[0, 1]])), [[0, 0.25]])
