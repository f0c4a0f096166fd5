"""Groups that hold demonstrations, variants of a prompt, several formats, or completions of different likelihood."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from batches import outcome, random_case, same
from grouprl.algorithms.advantage.papers.anchored_relative import AnchoredRelative
from grouprl.algorithms.advantage.papers.shared_variants import SharedVariants
from grouprl.algorithms.advantage_transform.papers.novelty import NoveltyBonus, novelty
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.papers.demonstration import AsymmetricReward, DemonstrationReward
from grouprl.algorithms.reward_transform.papers.formats import FormatDiversity, ParallelReward
from grouprl.core.batch import SOURCES, Batch
from grouprl.core.errors import InputError
from small import f64, near, small

SHOWN = SOURCES["demonstration"]


def keyed(rewards, lengths=None, groups=None, fields=None, **keys) -> Batch:
    return small(rewards, lengths, groups, keys={k: torch.tensor(v) for k, v in keys.items()}, **(fields or {}))


# --- TempSamp-R1 --------------------------------------------------------------------------------------------------


def shaped(*rewards: float) -> torch.Tensor:
    return AsymmetricReward()(small(rewards)).reward_b


def test_shaped_rewards():
    near(shaped(0, 0.2, 0.5, 0.7, 0.8, 0.9, 1), [0.0868, 0.3215, 0.5964, 0.7388, 0.8, 0.8010, 0.8018], 5e-5)


@settings(max_examples=40, deadline=None)
@given(pair=st.lists(st.floats(-2, 2, allow_subnormal=False), min_size=2, max_size=2))
def test_shaping_keeps_the_order(pair):
    low, high = sorted(pair)
    a, b = shaped(low, high)
    assert a <= b
    assert a < b or high - low < 1e-9


def test_shaping_is_continuous_and_finite_far_away():
    a, b = shaped(0.8 - 1e-9, 0.8 + 1e-9)
    assert float(b - a) == pytest.approx(0, abs=1e-8)
    assert torch.isfinite(shaped(-1e12, 1e12)).all()


def test_an_anchored_demonstration_gets_more_than_the_best():
    batch = small([0.2, 0.5, 0.7, 1.0], source_b=[0, 0, 0, SHOWN])
    adv = AnchoredRelative()(batch)[:, 0]
    near(adv[3], 1.2 * 0.927168966, 1e-8)
    near(adv[:3].sum(), 0)


def test_without_spread_among_the_sampled_the_anchor_is_zero():
    assert not AnchoredRelative()(small([0.5, 0.5, 1.0], source_b=[0, 0, SHOWN])).any()
    assert not AnchoredRelative()(small([0.5, 1.0], source_b=[0, SHOWN])).any()


def test_the_anchor_is_its_own_groups():
    batch = small([1, 0, 1, 0.5, 0.5, 1], groups=[0, 0, 0, 1, 1, 1], source_b=[0, 0, SHOWN, 0, 0, SHOWN])
    near(AnchoredRelative(eps=0.0)(batch)[:, 0], [math.sqrt(0.5), -math.sqrt(0.5), 1.2 * math.sqrt(0.5), 0, 0, 0])


def test_only_demonstrations_are_scaled_down():
    near(DemonstrationReward(factor=0.5)(small([1, 1, -1], source_b=[0, SHOWN, SHOWN])).reward_b, [1, 0.5, -0.5])
    assert DemonstrationReward(factor=1.0).idle(RunFacts())


# --- variants -----------------------------------------------------------------------------------------------------


def test_a_position_biased_judge_is_punished_only_by_the_union():
    rewards, variant = [1] * 4 + [0] * 4, [0] * 4 + [1] * 4
    union = grouprl.method("eis_grpo").prepare(keyed(rewards, variant=variant)).advantage_bt[:, 0]
    near(union.abs(), [0.935412597] * 8, 1e-8)
    assert not grouprl.method("grpo").prepare(keyed(rewards, groups=variant)).advantage_bt.any()


def test_one_variant_gives_twice_grpo():
    case = random_case(2)
    b = case.batch.group_b
    alone = {**case.batch.keys, "variant": torch.zeros_like(b), "own": torch.ones_like(b)}
    batch = case.batch.replace(keys=alone)
    double = grouprl.method("share_grpo").prepare(batch).advantage_bt
    near(double, 2 * grouprl.method("grpo").prepare(batch).advantage_bt, 1e-9)


def test_a_solved_and_a_failed_variant_differ_globally_alone():
    batch = keyed([1, 1, 0, 0], variant=[0, 0, 1, 1], own=[1, 1, 1, 1])
    near(SharedVariants()(batch)[:, 0], [0.866023904, 0.866023904, -0.866023904, -0.866023904], 1e-8)
    separate = keyed([1, 1, 0, 0], groups=[0, 0, 1, 1], variant=[0, 0, 1, 1], own=[1] * 4)
    assert not SharedVariants()(separate).any()


def test_pairing_changes_no_statistic():
    plain = SharedVariants()(keyed([1, 0, 1, 1], variant=[0, 0, 1, 1], own=[1] * 4))[:, 0]
    paired = keyed([1, 0, 1, 1, 1, 0, 1, 1], variant=[0, 0, 1, 1, 1, 1, 0, 0], own=[1] * 4 + [0] * 4)
    adv = SharedVariants()(paired)[:, 0]
    near(adv[:4], plain)
    near(adv[4:], SharedVariants(local_weight=0.0)(paired)[:4, 0])


def test_shared_variants_without_scale_and_outside_statistics():
    fields = {"stat_b": torch.tensor([True, True, False])}
    batch = keyed([1, 0, 9], variant=[0, 0, 0], own=[1, 1, 1], fields=fields)
    near(SharedVariants(scale="none")(batch)[:, 0], [1, -1, 0])


# --- formats ------------------------------------------------------------------------------------------------------


def factors(form, step: int, rewards=None) -> torch.Tensor:
    batch = keyed(rewards or [1] * len(form), form=form, fields={"step": step, "steps": 10})
    return FormatDiversity()(batch).reward_b


@pytest.mark.parametrize(("step", "alpha"), [(0, 4), (5, 2.5), (10, 1), (15, 1)])
def test_rare_formats_earn_more_until_the_end(step, alpha):
    near(factors([0, 0, 1, 1, 1, 1, 1, 1], step)[:2], [alpha] * 2)


@pytest.mark.parametrize("step", [0, 3, 9])
def test_one_format_earns_what_it_always_did(step):
    near(factors([2] * 8, step), [1] * 8)


def test_a_solved_group_becomes_informative():
    near(factors([3] * 6 + [0] * 2, 0), [4 / 3] * 6 + [4] * 2)


def test_no_format_no_reward_and_wrong_stays_wrong():
    near(factors([-1, 0, 1, 1], 0, [1, 0, 1, 0]), [0, 0, 2, 0])


def test_formats_are_counted_in_their_own_group():
    batch = keyed([1] * 4, groups=[0, 0, 1, 1], form=[0, 1, 0, 0], fields={"step": 0, "steps": 10})
    near(FormatDiversity()(batch).reward_b, [2, 2, 1, 1])


def test_at_the_end_ada_grpo_is_grpo():
    case = random_case(4)
    case = dataclasses.replace(case, batch=case.batch.replace(step=10, steps=10))
    same(outcome(grouprl.method("ada_grpo"), case), outcome(grouprl.method("grpo"), case))


# --- alternating rewards ------------------------------------------------------------------------------------------


def paid(step: int | None = None, **settings) -> torch.Tensor:
    batch = keyed([1, 1, 0, 0], form=[1, 0, 1, 0], fields={"step": step})
    return ParallelReward(**settings)(batch).reward_b


@pytest.mark.parametrize("step", range(20))
def test_two_of_ten_steps_pay_for_parallel_thinking(step):
    near(paid(step), [1.2 if step % 10 >= 8 else 1, 1, -1, -1])


def test_the_other_stages():
    near(paid(stage="accuracy"), [1, 1, -1, -1])
    near(paid(stage="block"), [1.5, 1, -0.5, -1])
    near(paid(0, period=1, bonus_steps=1), [1.2, 1, -1, -1])


def test_stages_read_only_what_they_need():
    assert ParallelReward(stage="accuracy").needs() == ()
    assert ParallelReward(stage="block").needs() == ("keys.form",)
    with pytest.raises(InputError, match=r"batch\.step"):
        paid(None)


def test_settings_of_another_stage_say_that_they_do_nothing():
    assert not ParallelReward(period=5).idle(RunFacts())
    assert ParallelReward(stage="block", period=5).idle(RunFacts()) == [
        "parallel_reward.period has no effect with stage block"
    ]
    assert len(ParallelReward(stage="accuracy", with_block=2.0, block_bonus=1.0).idle(RunFacts())) == 2


def test_more_bonus_steps_than_steps_are_refused():
    with pytest.raises(ValueError, match="bonus_steps 3 > period 2"):
        ParallelReward(period=2, bonus_steps=3)


# --- novelty ------------------------------------------------------------------------------------------------------


def sharpened(adv, old, rewards=None, **settings) -> torch.Tensor:
    batch = small(rewards or [1] * len(adv), old_bt=f64([[x] for x in old]))
    return NoveltyBonus(**settings)(f64([[a] for a in adv]), batch)[:, 0]


def test_unlikely_right_completions_get_up_to_half_more():
    near(novelty(small([1] * 3, old_bt=f64([[-1], [-0.2], [-0.2]])), "test"), [0.5866, 1.3056, 1.3056], 5e-5)
    near(sharpened([1, 1, 1], [-1, -0.2, -0.2]), [1.5, 1, 1])


def test_below_the_cap_the_bonus_is_the_rate():
    eta = math.exp(-0.05)
    near(sharpened([1, 1], [-1.1, -1.0]), [1 + 2.5 * (1 - eta), 1])


def test_wrong_and_negative_completions_get_nothing():
    near(sharpened([1, -1, 1], [-3, -3, -0.1], rewards=[0, 1, 1]), [1, -1, 1])


def test_likelihood_is_per_token_and_per_group():
    batch = small([1, 1, 1], [1, 2, 1], groups=[0, 0, 1], old_bt=f64([[-1, 9], [-1, -1], [-5, 9]]))
    near(novelty(batch, "test"), [1, 1, 1])


def test_no_bonus_says_so():
    assert NoveltyBonus(coef=0.0).idle(RunFacts())
    assert NoveltyBonus(cap=0.0).idle(RunFacts())
    assert not NoveltyBonus().idle(RunFacts())
