"""COPO, SEED-GRPO and Intuitor: what their papers promise."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

import grouprl
from batches import random_case
from grouprl.algorithms.advantage_transform.papers.add_outcome import AddOutcome
from grouprl.algorithms.advantage_transform.papers.semantic_scale import SemanticScale
from grouprl.algorithms.objective.papers.two_level_clip import TwoLevelClip
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.reward_transform.papers.certainty import CertaintyReward
from grouprl.algorithms.reward_transform.papers.prompt_advantage import PromptAdvantage, completion_entropy
from small import f64, gradient, near, slopes, small


def keyed(rewards, completions, groups=None, **fields):
    lengths = fields.pop("lengths", None)
    return small(rewards, lengths, groups, **fields).replace(keys={"answer": torch.tensor(completions)})


# --- entropy of completions
# ---------------------------------------------------------------------------------------------


def test_completion_entropy_counts_each_group_alone():
    batch = keyed([0.0] * 6, [7, 7, 8, 8, 7, 7], [0, 0, 0, 0, 1, 1])
    near(completion_entropy(batch), [log(2)] * 4 + [0.0, 0.0])


def test_completions_out_of_statistics_do_not_count():
    batch = keyed([0.0] * 3, [7, 7, 8]).replace(stat_b=torch.tensor([True, True, False]))
    near(completion_entropy(batch)[:2], [0.0, 0.0])


@pytest.mark.parametrize(("completions", "low", "high"), [([3] * 8, 0.0, 1e-12), (list(range(8)), 1 - 1e-4, 1.0)])
def test_copo_trusts_the_group_only_where_completions_differ(completions, low, high):
    shaped = PromptAdvantage()(keyed([1.0, 0.0] * 4, completions))
    assert low <= float(shaped.rewards["local"][0]) <= high


def test_a_lone_prompt_has_no_global_advantage():
    near(PromptAdvantage()(keyed([1.0, 1.0], [0, 0])).rewards["prompt"], [0.0, 0.0])
    assert PromptAdvantage().idle(RunFacts(prompts=1))
    assert not PromptAdvantage().idle(RunFacts(prompts=2))


def test_prompts_count_once_however_many_completions_they_have():
    shaped = PromptAdvantage(blend="dead", eps=0.0)(keyed([1.0, 1.0, 1.0, 0.0], [0] * 4, [0, 0, 0, 1]))
    near(shaped.rewards["prompt"], [0.5 / 0.5**0.5] * 3 + [-0.5 / 0.5**0.5])


def test_dead_groups_teach_in_copo_and_not_in_grpo():
    batch = keyed([1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1], [0, 0, 1, 1])
    logp_bt = batch.old_bt.clone()
    grad_bt = gradient(grouprl.method("copo"), batch, logp_bt)
    assert (grad_bt[:2] < 0).all()
    assert (grad_bt[2:] > 0).all()
    assert not gradient(grouprl.method("grpo"), batch, logp_bt).any()


def test_the_dead_variant_leaves_mixed_groups_to_grpo():
    batch = keyed([1.0, 0.0, 1.0, 1.0], [0, 1, 2, 2], [0, 0, 1, 1])
    logp_bt = batch.old_bt.clone()
    copo, grpo = (gradient(m, batch, logp_bt) for m in (grouprl.method("copo", blend="dead"), grouprl.method("grpo")))
    near(copo[:2], grpo[:2])
    assert (copo[2:] < 0).all()


def test_advantages_of_opposite_sign_are_clipped_each_on_its_side():
    rewards = {"local": f64([0.5]), "prompt": f64([-0.75])}
    batch = small([0.0]).replace(advantage_bt=f64([[2.0]]), rewards=rewards)
    loss_bt, grad_bt = slopes(TwoLevelClip(), [[log(1.5)]], batch)
    near(loss_bt, [[-1.0 * 1.2 + 0.75 * 1.5]])
    near(grad_bt, [[0.75 * 1.5]])
    loss_bt, grad_bt = slopes(TwoLevelClip(), [[log(0.5)]], batch)
    near(loss_bt, [[-1.0 * 0.5 + 0.75 * 0.8]])
    near(grad_bt, [[-0.5]])


def test_two_level_clip_dual_bounds_the_negative_side():
    batch = small([0.0]).replace(advantage_bt=f64([[0.0]]), rewards={"local": f64([0.5]), "prompt": f64([-1.0])})
    loss_bt, grad_bt = slopes(TwoLevelClip(dual_clip=3.0), [[2.0]], batch)
    near(loss_bt, [[3.0]])
    near(grad_bt, [[0.0]])


# --- semantic entropy -----------------------------------------------------------------------------------------------


def scaled(completions, logp=None, part=None, **fields):
    n = len(completions)
    batch = keyed([0.0] * n, completions, behavior_bt=[[x] for x in (logp or [-1.0] * n)], **fields)
    return (part or SemanticScale())(torch.ones(n, 1, dtype=torch.float64), batch)[:, 0]


def test_agreement_leaves_the_step_as_it_is():
    near(scaled([4, 4, 4]), [1.0] * 3)
    near(scaled([4]), [1.0])


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_equally_likely_different_completions(size, normalized):
    x = 0.5 * (1.0 if normalized else log(size))
    for curve, factor in {"inverse": 1 / (1 + x), "exp": exp(-x), "linear": 1 - x}.items():
        part = SemanticScale(alpha=0.5, curve=curve, normalized=normalized)
        near(scaled(list(range(size)), part=part), [max(factor, 0.0)] * size)


def test_clusters_weigh_by_likelihood():
    mass = [exp(-1), exp(-2), exp(-3)]
    p = [(mass[0] + mass[1]) / sum(mass), mass[2] / sum(mass)]
    entropy = -sum(x * log(x) for x in p)
    part = SemanticScale(alpha=1.0, normalized=False)
    near(scaled([5, 5, 6], [-1.0, -2.0, -3.0], part), [1 / (1 + entropy)] * 3)


def test_likelihoods_are_means_over_tokens():
    batch = keyed([0.0, 0.0], [0, 1], lengths=[1, 3], behavior_bt=[[-1.0], [-1.0] * 3])
    near(SemanticScale().semantic_entropy(batch), [log(2)] * 2)


def test_seed_grpo_scales_whole_groups():
    case = random_case(1, (4, 3), rewards="mixed")
    base, ours = (grouprl.method(n).prepare(case.batch).advantage_bt for n in ("dr_grpo", "seed_grpo"))
    live_bt = base != 0
    ratio_n = (ours / base)[live_bt]
    assert ((ratio_n > 0) & (ratio_n <= 1)).all()
    for group in (0, 1):
        of_group = live_bt & (case.batch.group_b == group)[:, None]
        factors = (ours / base)[of_group]
        near(factors, factors[:1].expand(len(factors)))


# --- certainty ------------------------------------------------------------------------------------------------------


def test_certainty_of_known_distributions():
    def certainty(p):
        z = f64(p).log()
        return float(z.logsumexp(-1) - z.mean(-1))

    assert certainty([0.9, 0.1]) == pytest.approx(1.2039728)
    assert certainty([0.25] * 4) == pytest.approx(log(4))
    batch = small([1.0, 0.0], [2, 1], stats={"certainty": f64([[certainty([0.9, 0.1]), log(2)], [0.5, 9.0]])})
    near(CertaintyReward()(batch).reward_b, [(1.2039728 + log(2)) / 2, 0.5], 1e-6)


def test_intuitor_does_not_ask_the_verifier():
    case = random_case(2)
    other = case.batch.replace(reward_b=-3 * case.batch.reward_b, correct_b=~case.batch.correct_b)
    a, b = (grouprl.method("intuitor").prepare(x).advantage_bt for x in (case.batch, other))
    assert torch.equal(a, b)
    assert a.any()


def test_a_constant_added_to_the_certainty_changes_nothing():
    case = random_case(3)
    shifted = case.batch.replace(stats={**case.batch.stats, "certainty": case.batch.stats["certainty"] + 7.0})
    a, b = (grouprl.method("intuitor").prepare(x).advantage_bt for x in (case.batch, shifted))
    near(a, b, 1e-6)


def test_no_gradient_reaches_the_certainty():
    case = random_case(4)
    held = case.batch.stats["certainty"].clone().requires_grad_()
    batch = case.batch.replace(stats={**case.batch.stats, "certainty": held})
    assert not grouprl.method("intuitor").prepare(batch).advantage_bt.requires_grad


def test_the_outcome_is_standardised_apart():
    batch = small([0.0, 100.0, 0.0]).replace(raw_reward_b=f64([0.0, 100.0, 0.0]))
    near(
        AddOutcome(weight=2.0, eps=0.0)(torch.zeros(3, 1, dtype=torch.float64), batch)[:, 0],
        [-2 / 3**0.5, 4 / 3**0.5, -2 / 3**0.5],
    )
    assert AddOutcome().idle(RunFacts(group_size=1))
