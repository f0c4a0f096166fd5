"""Prefixes, plans, cut-off completions, prompts left out and completions brought back."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import grouprl
from batches import outcome, random_case, same
from grouprl.algorithms.advantage.papers.plan_credit import PlanRelative
from grouprl.algorithms.advantage_transform.papers.zero_truncated import ZeroTruncated
from grouprl.algorithms.advantage_transform.stored_advantage import StoredAdvantage
from grouprl.algorithms.building import build_part
from grouprl.algorithms.filter.difficulty import band_rows
from grouprl.algorithms.filter.filter import MixedGroups, mixed_rows
from grouprl.algorithms.filter.papers.difficulty_band import DifficultyBand
from grouprl.algorithms.filter.replay_apart import ReplayApart
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.papers.continuation_reward import ContinuationReward
from grouprl.algorithms.token_weight.papers.prefix_mask import PrefixMask
from grouprl.core.batch import SOURCES, Batch
from grouprl.core.errors import InputError
from small import f64, gradient, near, small

# --- prefixes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "kept"), [(20, 3), (7, 1), (6, 0), (1, 0)])
def test_fifteen_percent_of_a_completion(length, kept):
    factor_bt = PrefixMask(grow=0.0)(small([1], [length]))
    near(factor_bt, [[1.0] * kept + [0.0] * (length - kept)])


@pytest.mark.parametrize(
    ("step", "share"), [(0, 0.15), (1, 0.15), (2, 0.2), (5, 0.25), (8, 0.35), (10, 0.35), (99, 0.35)]
)
def test_the_share_grows_in_equal_parts_of_the_run(step, share):
    assert PrefixMask().share(small([1], step=step, steps=10)) == pytest.approx(share)


def test_a_limit_between_two_shares_is_reached():
    part = PrefixMask(start=0.15, grow=0.1, limit=0.3)
    assert part.sizes == 3
    assert part.share(small([1], step=9, steps=10)) == pytest.approx(0.3)


def test_the_prefix_counts_the_policys_tokens_only():
    mask_bt = torch.tensor([[True, False, True, True, False, True]])
    near(PrefixMask(start=0.5, grow=0.0, limit=0.5)(small([1], mask_bt=mask_bt)), [[1, 0, 1, 0, 0, 0]])


def test_tokens_behind_the_prefix_have_no_gradient_and_denominators_stay():
    method = grouprl.method("pppo", continuations=0, prefix_start=0.5, prefix_grow=0.0, prefix_limit=0.5)
    batch = small([1, 0], [4, 1])
    grad_bt = gradient(method, batch, batch.old_bt)
    near(grad_bt, [[-0.707105781 / 5] * 2 + [0] * 2, [0] * 4], 1e-8)


def test_prefixes_without_any_token_leave_a_finite_loss_of_zero():
    method = grouprl.method("pppo", continuations=0, prefix_grow=0.0)
    batch = small([1, 0], [6, 3])
    loss = method.loss(batch.old_bt, method.prepare(batch))
    assert float(loss.value) == 0
    assert method.zero_rows(method.prepare(batch)).all()


def test_the_reward_counts_continuations_and_the_completion():
    batch = small([1, 0, 0]).replace(rewards={"continuations": f64([8, 2, 0])})
    near(ContinuationReward()(batch).reward_b, [9, 2, 0])
    with pytest.raises(InputError, match=r"batch\.rewards\.continuations"):
        ContinuationReward()(small([1]))


def test_a_prefix_part_says_what_cannot_work():
    assert PrefixMask().refuse(RunFacts(max_length=2))
    assert not PrefixMask().refuse(RunFacts(max_length=100))
    assert PrefixMask(start=1.0, limit=1.0).idle(RunFacts())
    assert PrefixMask(grow=0.0).idle(RunFacts())
    assert not PrefixMask().idle(RunFacts())
    with pytest.raises(ValueError, match=r"limit 0\.1 < start 0\.15"):
        PrefixMask(limit=0.1)


# --- plans --------------------------------------------------------------------------------------------------------


def planned(rewards, plans, groups=None, **fields) -> Batch:
    lengths = [2] * len(rewards)
    return small(rewards, lengths, groups, keys={"plan": torch.tensor(plans)}, **fields)


def first_token(batch: Batch) -> dict[str, torch.Tensor]:
    return {"plan": batch.mask_bt & (torch.arange(2) == 0)}


def test_a_plan_is_worth_the_mean_of_its_leaves():
    adv = PlanRelative(eps=0.0)(planned([1, 0, 0, 0], [0, 0, 1, 1]))[:, 0]
    rewards = f64([1.5, 0.5, 0, 0])
    near(adv, (rewards - rewards.mean()) / rewards.std())


@pytest.mark.parametrize("settings", [{"weight": 0.0}, {"credit": "span"}])
def test_one_completion_per_plan_is_grpo(settings):
    batch = planned([1, 0, 0.5, 0], [0, 1, 2, 3])
    batch = batch.replace(marks=first_token(batch))
    near(PlanRelative(**settings)(batch), grouprl.method("grpo").prepare(batch).advantage_bt)


def test_each_plan_counts_once_however_many_completions_follow_it():
    batch = planned([1, 1, 1, 0], [0, 0, 0, 1])
    adv_bt = PlanRelative(credit="span", eps=0.0)(batch.replace(marks=first_token(batch)))
    root = 0.5**0.5
    near(adv_bt[:, 0], [root, root, root, -root])
    near(adv_bt[:, 1], [0.5, 0.5, 0.5, -1.5])


def test_equal_numbers_in_two_prompts_are_two_plans():
    batch = planned([1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 1])
    assert not PlanRelative()(batch)[2:].any()


def test_a_weightless_plan_says_what_happens():
    assert "plain group-relative" in PlanRelative(weight=0.0).idle(RunFacts())[0]
    assert "no gradient" in PlanRelative(weight=0.0, credit="span").idle(RunFacts())[0]


# --- cut-off completions ----------------------------------------------------------------------------------------------


def test_cut_completions_get_zero_and_keep_their_place_in_denominators():
    method = grouprl.method("srpo_history")
    batch = small([1, 0, 0], [1, 1, 2], truncated_b=[False, True, False])
    ready = method.prepare(batch)
    near(ready.advantage_bt[:, 0], [1.154698538, 0, -0.577349269], 1e-8)
    near(ready.weight_bt.sum(1), [0.25, 0.25, 0.5])
    near(ZeroTruncated()(f64([[3.0], [3.0]]), small([0, 0], truncated_b=[True, False])), [[0], [3]])


# --- prompts left out -------------------------------------------------------------------------------------------


def shares(*right: int, of: int = 5) -> Batch:
    rewards = [float(i < r) for r in right for i in range(of)]
    return small(rewards, groups=[g for g in range(len(right)) for _ in range(of)])


def test_the_band_keeps_its_ends_and_never_a_dead_group():
    batch = shares(0, 1, 2, 4, 5)
    kept = band_rows(batch, 0.2, 0.8).reshape(5, 5)
    assert kept.all(1).tolist() == [False, True, True, True, False]
    assert torch.equal(kept.any(1), kept.all(1))
    assert band_rows(batch, 0.3, 0.7).reshape(5, 5).any(1).tolist() == [False, False, True, False, False]


def test_the_open_band_is_dapos_filter():
    case = random_case(6, rewards="binary")
    assert torch.equal(band_rows(case.batch, 0.0, 1.0), mixed_rows(case.batch))
    ours, theirs = DifficultyBand(low=0.0, high=1.0)(case.batch), MixedGroups()(case.batch)
    assert torch.equal(ours.loss_mask_bt, theirs.loss_mask_bt)
    assert torch.equal(ours.stat_b, theirs.stat_b)


def test_the_refill_wants_what_the_filter_keeps():
    refill = build_part("refill", "difficulty_band", {"low": 0.3, "high": 0.7, "max_rounds": 3})
    batch = shares(1, 2, 4)
    assert torch.equal(refill.wanted(batch), DifficultyBand(low=0.3, high=0.7)(batch).loss_mask_bt.any(1))
    assert not refill.idle(RunFacts())
    assert build_part("refill", "difficulty_band", {"max_rounds": 1}).idle(RunFacts())


@pytest.mark.parametrize("kind", ["filter", "refill"])
def test_an_empty_band_is_refused(kind):
    with pytest.raises(InputError, match=r"low 0\.8 > high 0\.2"):
        build_part(kind, "difficulty_band", {"low": 0.8, "high": 0.2})


# --- completions brought back -----------------------------------------------------------------------------------------

OLD = SOURCES["replay"]


def test_replayed_completions_keep_their_advantage_and_leave_statistics_alone():
    case = random_case(7)
    source_b = torch.zeros_like(case.batch.group_b)
    source_b[[0, 5]] = OLD
    batch = case.batch.replace(source_b=source_b)
    ready = grouprl.method("skywork_r1v2").prepare(batch)
    near(ready.advantage_bt[0], batch.past["advantage"][0] * batch.mask_bt[0])
    fresh = (source_b == 0).nonzero()[:, 0]
    near(ready.advantage_bt[fresh], grouprl.method("grpo").prepare(batch.rows(fresh)).advantage_bt)


def test_an_empty_buffer_is_grpo():
    case = random_case(8, on_policy=True)
    batch = case.batch.replace(source_b=None)
    case = dataclasses.replace(case, batch=batch)
    same(outcome(grouprl.method("skywork_r1v2"), case), outcome(grouprl.method("grpo"), case))


def test_stored_advantages_reach_replayed_rows_alone():
    batch = small([0, 0], [2, 1], source_b=[OLD, 0], past={"advantage": f64([3, 4])})
    near(StoredAdvantage()(f64([[1, 1], [1, 0]]), batch), [[3, 3], [1, 0]])
    assert ReplayApart()(batch).stats_b.tolist() == [False, True]


@pytest.mark.parametrize("step", [0.0, 0.3])
def test_a_replayed_row_has_the_ratio_to_the_policy_that_sampled_it(step):
    batch = small([1, 0], source_b=[OLD, OLD], old_bt=f64([[-9], [-9]]), behavior_bt=f64([[-1], [-1]]))
    method = grouprl.method("dots", scale="none", clip_high=0.5)
    grad_bt = gradient(method, batch, batch.behavior_bt + step)
    near(grad_bt, f64([[-0.25], [0.25]]) * math.exp(step))


def test_the_stores_get_their_numbers():
    rollouts = grouprl.method("dots", fresh_share=0.75, capacity=9).buffer
    assert (rollouts.fresh_share, rollouts.capacity) == (0.75, 9)
    assert grouprl.method("dots", fresh_share=1.0).buffer is None
    completions = grouprl.method("skywork_r1v2", replay_share=0.5, capacity=7).buffer
    assert (completions.share, completions.capacity) == (0.5, 7)
