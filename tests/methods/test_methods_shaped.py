"""What the methods on critics, scale, length, rarity and pruning promise; each runs in the trainer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import grouprl
from grouprl.algorithms.advantage.returns import GAE
from grouprl.algorithms.part import RunFacts
from grouprl.methods import CATALOGUE
from single_runs import launch, records
from small import f64, gradient, near, small

FAMILIES = ("decoupled_critic", "length", "normalised", "pruning", "rarity", "thinking")
NAMES = [name for name, entry in CATALOGUE.items() if entry.family in FAMILIES]


def advantages(name: str, batch: grouprl.Batch, **options) -> torch.Tensor:
    return grouprl.method(name, **options).prepare(batch).advantage_bt


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_of_training(name, tmp_path: Path):
    """With a reward on which even an untrained policy's completions differ."""
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def parity(completion, **_):\n    return float(sum(map(ord, completion)) % 2)\n")
    settings = {"batch": {"prompts": 4, "group_size": 4, "minibatches": 2}, "reward": {"function": f"{rewards}:parity"}}
    found = records(launch(tmp_path / "run", method=name, **settings).folder, "train")
    assert [r["step"] for r in found] == [1, 2]
    assert all(math.isfinite(r["loss"]) and r["grad_norm"] > 0 and r["rows_trained"] > 0 for r in found)


# --- critics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vc_ppo", "vapo"])
def test_the_critic_s_targets_are_the_outcome_whatever_it_says(name):
    value_bt = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ready = grouprl.method(name).prepare(small([1, -1], [1000, 600], groups=[0, 1], value_bt=value_bt))
    near(ready.return_bt[0], torch.ones(1000), 1e-9)
    near(ready.return_bt[1, :600], -torch.ones(600), 1e-9)


def test_the_far_end_is_lost_at_lambda_95_and_kept_at_1():
    batch = small([1], [1000], value_bt=torch.zeros(1, 1000).double())
    near(advantages("vc_ppo", batch, whiten=False)[0, 0], 0.95**999, 1e-12)
    near(advantages("vc_ppo", batch, whiten=False, lam=1.0)[0, 0], 1.0)


@pytest.mark.parametrize(("length", "lam"), [(1000, 0.98), (100, 0.8), (20, 0.0), (1, 0.0)])
def test_vapo_s_lambda_grows_with_length(length, lam):
    batch = small([1], [length], value_bt=torch.zeros(1, length).double())
    adv_bt = advantages("vapo", batch, whiten=False)
    near(adv_bt[0, -1], 1.0)
    near(adv_bt[0, 0], lam ** (length - 1), 1e-9)


def test_an_unbounded_alpha_is_monte_carlo():
    batch = small([1], [5], value_bt=[[0.1, 0.2, 0.3, 0.4, 0.5]])
    near(advantages("vapo", batch, whiten=False, length_alpha=1e12)[0], [0.9, 0.8, 0.7, 0.6, 0.5], 1e-9)


def test_the_likelihood_of_right_completions_adds_its_share():
    batch = small([1, 0], [2, 3], value_bt=torch.zeros(2, 3).double())
    with_it, without = (gradient(grouprl.method("vapo", nll_coef=c), batch, batch.old_bt) for c in (0.1, 0.0))
    near(with_it - without, [[-0.05, -0.05, 0], [0, 0, 0]])
    wrong = small([0, -1], [2, 3], value_bt=torch.zeros(2, 3).double())
    with_it, without = (gradient(grouprl.method("vapo", nll_coef=c), wrong, wrong.old_bt) for c in (0.1, 0.0))
    assert torch.equal(with_it, without)


def test_a_lambda_that_is_always_zero_is_named():
    assert any("lambda 0" in s for s in GAE(length_alpha=0.05).idle(RunFacts(max_length=20)))
    assert not GAE(length_alpha=0.05).idle(RunFacts(max_length=21))
    assert not GAE().idle(RunFacts(max_length=5))


# --- scale ------------------------------------------------------------------------------------------------------------


def test_an_outlier_of_ten_sigma_teaches_nothing():
    rewards = [0.0] * 199 + [1.0]
    adv = advantages("stable_reinforce", small(rewards, groups=list(range(200))))[:, 0]
    assert float((f64(rewards) - 0.005)[-1] / (0.005 * 0.995) ** 0.5) > 10
    assert adv[-1] == 0
    assert adv[:-1].lt(0).all()


def test_a_ratio_of_e_to_the_50_is_a_finite_loss():
    batch = small([1, 0, 0, 1], groups=[0, 1, 2, 3])
    method = grouprl.method("stable_reinforce")
    value = method.loss(batch.old_bt + f64([[50], [50], [-50], [-50]]), method.prepare(batch)).value
    assert 0 < float(value) < 1000


def test_asymmetry_leaves_solved_and_hopeless_prompts_alone():
    for rewards in ([1, 1, 1], [0, 0, 0]):
        batch = small(rewards, [1, 2, 9], ref_bt=torch.full((3, 9), -1.0).double())
        ready = grouprl.method("apo_asymmetric", length_base=2.0).prepare(batch)
        assert not ready.advantage_bt.any()


# --- length -----------------------------------------------------------------------------------------------------------


def test_lead_amplifies_the_only_right_completion_and_damps_it_among_many():
    hard, easy = small([1, 0, 0, 0]), small([1, 1, 1, 0])
    plain_hard, plain_easy = (advantages("grpo", b)[0, 0] for b in (hard, easy))
    near(advantages("grpo_lead", hard)[0, 0] / plain_hard, 1.4926, 1e-3)
    near(advantages("grpo_lead", easy)[0, 0] / plain_easy, 0.95, 1e-3)


def test_conciseness_is_learnt_only_where_everything_is_right():
    one_wrong = small([1, 1, 0, 0], [1, 3, 2, 3], max_length=4)
    near(advantages("conciser", one_wrong), advantages("grpo", one_wrong))
    all_right = advantages("conciser", small([1, 1, 1], [1, 2, 4], max_length=4))[:, 0]
    assert all_right.argmax() == 0
    near(all_right.sum(), 0.0)


@pytest.mark.parametrize("name", ["grpo_lead", "self_rewarded_efficiency", "open_rs"])
def test_of_two_right_completions_the_shorter_is_better(name):
    short, long, wrong = advantages(name, small([1, 1, 0], [1, 3, 2], max_length=4))[:, 0]
    assert short > long > wrong


def test_the_control_token_s_gradient_does_not_know_lengths():
    first = []
    for n in (3, 30):
        batch = small([1, 0.5, -1, -1], [n] * 4)
        first.append(gradient(grouprl.method("degrpo"), batch, batch.old_bt)[:, 0])
    near(first[0], first[1])
    near(first[0], -1e-3 / 4 * f64(1.125, 0.625, -0.875, -0.875), 1e-12)


# --- rarity and pruning ----------------------------------------------------------------------------------------------


def test_the_rarer_of_two_right_completions_is_pushed_more():
    batch = small([1, 1, 0], old_bt=[[-1.0], [-4.0], [-2.0]])
    likely, rare, wrong = advantages("unlikeliness", batch)[:, 0]
    assert rare > likely > wrong


def test_rarity_alone_does_not_make_a_solved_prompt_teach():
    batch = small([1, 1, 1, 0], groups=[0, 0, 1, 1], old_bt=[[-1.0], [-4.0], [-2.0], [-2.5]])
    ready = grouprl.method("unlikeliness").prepare(batch)
    assert not ready.advantage_bt[:2].any()
    assert not ready.weight_bt[:2].any()


def test_pruning_changes_who_learns_not_how_much_each_is_worth():
    batch = small([1, 0.6, 0.3, 0], [1, 2, 1, 2])
    whole, half = (advantages("cppo", batch, rate=r) for r in (0.0, 0.5))
    kept = half.ne(0)
    assert kept.any(1).tolist() == [True, False, False, True]
    assert torch.equal(half[kept], whole[kept])


def test_no_rate_is_grpo_bit_by_bit():
    batch = small([1, 0.6, 0.3, 0], [1, 2, 1, 2])
    a, b = grouprl.method("cppo", rate=0.0, eps=1e-6).prepare(batch), grouprl.method("grpo").prepare(batch)
    assert torch.equal(a.advantage_bt, b.advantage_bt)
    assert torch.equal(a.weight_bt, b.weight_bt)
