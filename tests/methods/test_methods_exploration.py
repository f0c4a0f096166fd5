"""HICRA, THR, NTHR and distribution-centric DCPO: what their papers promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import grouprl
from batches import random_case
from grouprl.algorithms.advantage_transform.papers.distribution import TemperedBlend
from grouprl.algorithms.advantage_transform.papers.influence import HiddenReward, SparedTokens
from grouprl.algorithms.advantage_transform.papers.planning import PlanningBoost
from grouprl.algorithms.building import build_part
from grouprl.algorithms.part import RunFacts
from grouprl.core.errors import InputError
from grouprl.orchestrator import text_features as enrich
from grouprl.policy.language.load import load_policy
from single_runs import launch, records
from small import f64, near, ragged, small


def marked(plan, advantages, **fields):
    lengths = [len(row) for row in advantages]
    mark_bt = torch.zeros(len(lengths), max(lengths), dtype=torch.bool)
    for i, row in enumerate(plan):
        mark_bt[i, : len(row)] = torch.tensor(row)
    return ragged(advantages), small([0.0] * len(lengths), lengths, **fields).replace(marks={"plan": mark_bt})


# --- planning -------------------------------------------------------------------------------------------------------


def test_planning_tokens_gain_and_are_spared():
    near(PlanningBoost()(*marked([[True, False], [True]], [[1.0, 1.0], [-1.0]])), [[1.2, 1.0], [-0.8, 0.0]])


@settings(max_examples=20, deadline=None)
@given(alpha=st.floats(0, 0.99), adv=st.floats(-5, 5))
def test_below_one_alpha_keeps_signs(alpha, adv):
    adv_bt, batch = marked([[True]], [[adv]])
    assert float((PlanningBoost(alpha=alpha)(adv_bt, batch) * adv_bt).sum()) >= 0


def test_no_phrase_found_is_grpo():
    case = random_case(1)
    bare = case.batch.replace(marks={"plan": torch.zeros_like(case.batch.mask_bt)})
    ours = grouprl.method("hicra", scale="sample_std").prepare(bare).advantage_bt
    near(ours, grouprl.method("grpo").prepare(bare).advantage_bt)


def test_the_verl_rule_amplifies_long_good_completions_only():
    entropy = {"entropy_bt": [[1.0, 1.0, 2.0, 1.0], [1.0, 5.0, 1.0, 1.0], [1.0], [1.0]]}
    rows = [[1.0] * 4, [-1.0] * 4, [1.0], [1.0]]
    adv_bt, batch = marked([[True], [True], [True], [True]], rows, **entropy)
    near(
        PlanningBoost(rule="verl")(adv_bt, batch),
        [[1.2, 1.0, 1.2, 1.0], [-1.0] * 4, [1.0, 0, 0, 0], [1.0, 0, 0, 0]],
    )


def test_the_length_rule_is_per_group():
    adv_bt, batch = marked([[True] * 2, [True], [True] * 3], [[1.0, 1.0], [1.0], [1.0] * 3], entropy_bt=[[1.0] * 3] * 3)
    batch = batch.replace(group_b=torch.tensor([0, 0, 1]))
    got = PlanningBoost(rule="verl")(adv_bt, batch)
    near(got, [[1.2, 1.2, 0], [1.0, 0, 0], [1.0, 1.0, 1.0]])


def test_phrases_are_found_wherever_a_sentence_has_them():
    policy = load_policy("tiny", alphabet="Wwaitx :", hidden=8, layers=1, heads=2, intermediate=8)
    texts = ["Wait:", "x wait", "xwaix"]
    ids = [policy.encode(text) for text in texts]
    batch = small([0.0] * 3, [len(row) for row in ids])
    mark_bt = enrich.marked(batch, ids, enrich.windows(policy.encode, ["wait", "not writable"]))
    assert [mark_bt[i, : len(row)].tolist() for i, row in enumerate(ids)] == [
        [True] * 4 + [False],
        [False] + [True] * 5,  # the space before it belongs to the phrase
        [False] * 5,
    ]


def test_phrases_cannot_be_empty():
    with pytest.raises(InputError, match="phrases"):
        build_part("advantage_transform", "planning_boost", {"phrases": []})
    assert PlanningBoost(alpha=0.0).idle(RunFacts())


# --- influence ------------------------------------------------------------------------------------------------------


def influenced(scores, right, groups=None, **fields):
    lengths = [len(row) for row in scores]
    batch = small([float(x) for x in right], lengths, groups, correct_b=torch.tensor(right), **fields)
    return batch.replace(stats={"influence": ragged(scores)})


def ones(batch):
    return torch.where(batch.correct_b[:, None], 1.0, -1.0).double() * batch.mask_bt


def test_the_threshold_is_the_least_mean_of_the_right_completions():
    batch = influenced([[4.0, 2.0], [9.0, 1.0], [3.1, 2.9]], [True, True, False])
    near(HiddenReward(p=0.0)(ones(batch), batch), [[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    near(HiddenReward(p=0.0, beta=0.0)(ones(batch), batch), [[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]])


def test_the_sign_of_p_swaps_which_tokens_are_amplified():
    batch = influenced([[4.0, -4.0], [4.0, -4.0]], [True, False])
    near(HiddenReward(p=0.5, beta=None)(ones(batch), batch), [[1.5, 0.5], [-0.5, -1.5]])
    near(HiddenReward(p=-0.5, beta=None)(ones(batch), batch), [[0.5, 1.5], [-1.5, -0.5]])


@pytest.mark.parametrize("part", [HiddenReward(p=0.5), SparedTokens()])
def test_groups_without_both_signs_stay(part):
    batch = influenced([[4.0, 0.1], [3.0, 0.1], [2.0], [5.0]], [True, True, False, False], [0, 0, 1, 1])
    near(part(ones(batch), batch), ones(batch))


def test_nthr_touches_wrong_completions_above_the_threshold_only():
    batch = influenced([[1.0], [3.0, 0.5], [0.9, 1.1], [0.0]], [True, False, False, False])
    near(SparedTokens()(ones(batch), batch), [[1.0, 0.0], [-0.5, -1.0], [-1.0, -0.5], [-1.0, 0.0]])


def test_influence_as_double_sum_is_largest_for_the_token_that_is_shared():
    """s of every token from g and h, as in the paper, and what the parts make of it."""
    g = torch.Generator().manual_seed(0)
    hidden_nh = torch.randn(6, 4, generator=g, dtype=torch.float64)
    hidden_nh[3] = hidden_nh[0]
    token_n = torch.tensor([0, 1, 2, 0, 1, 2])
    gap_nv = torch.nn.functional.one_hot(token_n, 3) - torch.full((6, 3), 1 / 3, dtype=torch.float64)
    right_n = torch.tensor([True, True, True, False, False, False])
    double_n = ((gap_nv @ gap_nv.T) * (hidden_nh @ hidden_nh.T))[:, right_n].sum(1)
    matrix_vh = gap_nv[right_n].T @ hidden_nh[right_n]
    score_n = ((gap_nv @ matrix_vh) * hidden_nh).sum(1)
    near(score_n, double_n)
    near(score_n[0], score_n[3])
    batch = influenced([score_n[:3].tolist(), score_n[3:].tolist()], [True, False])
    spared_bt = SparedTokens(beta=0.0)(ones(batch), batch)[1] != -1
    assert torch.equal(spared_bt, score_n[3:] > 0)


# --- tempering ------------------------------------------------------------------------------------------------------


def tempered(logits, tokens, rewards, entropy, step=1):
    """One-token completions of a softmax policy, with its tempered log-probs."""

    def read(t):
        return (logits / t).log_softmax(-1)[tokens][:, None]

    batch = small(rewards, old_bt=read(1.0)).replace(step=step, last_entropy=entropy)
    return batch.replace(stats={"logp@1.2": read(1.2), "logp@0.8": read(0.8)})


def test_hot_weights_favour_unlikely_tokens_and_average_to_one():
    logits, tokens = f64([3.0, 1.0, 0.0]), torch.arange(3)
    batch = tempered(logits, tokens, [1.0] * 3, 0.0)
    hot_v = TemperedBlend()._weights(batch, 0.0)[:, 0]
    cold_v = TemperedBlend()._weights(batch, 9.0)[:, 0]
    assert hot_v[0] < 1 < hot_v[2]
    assert cold_v[2] < 1 < cold_v[0]
    p_v = logits.softmax(-1)
    near((p_v * hot_v).sum(), 1.0)
    near((p_v * cold_v).sum(), 1.0)


def test_nothing_right_blends_nothing():
    batch = tempered(f64([1.0, 0.0]), torch.tensor([0, 1]), [0.0, 0.0], 0.0)
    near(TemperedBlend()(f64([[2.0], [-2.0]]), batch), [[2.0], [-2.0]])


def test_the_first_step_has_entropy_zero_and_later_ones_must_know_it():
    batch = tempered(f64([1.0, 0.0]), torch.tensor([0, 1]), [1.0, 0.0], None, step=0)
    assert TemperedBlend().entropy_before(batch) == 0.0
    with pytest.raises(InputError, match="last_entropy"):
        TemperedBlend().entropy_before(batch.replace(step=1))


@pytest.mark.parametrize(("entropy", "rises"), [(0.0, True), (5.0, False)])
def test_on_a_bandit_whose_arms_are_all_right_the_entropy_follows_the_target(entropy, rises):
    """Exact expected step: the advantage is α·q alone, for all rewards are equal."""
    logits = f64([1.0, 0.0]).requires_grad_()
    p_v = logits.detach().softmax(-1)
    batch = tempered(logits.detach(), torch.arange(2), [1.0, 1.0], entropy)
    adv_v = TemperedBlend(target=1.0)(torch.zeros(2, 1, dtype=torch.float64), batch)[:, 0]
    (p_v * adv_v * logits.log_softmax(-1)).sum().backward()
    moved = (logits.detach() + 0.1 * logits.grad).softmax(-1)

    def h(p):
        return float(-(p * p.log()).sum())

    assert (h(moved) > h(p_v)) == rises
    assert h(moved) != h(p_v)


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["hicra", "thr", "nthr", "dcpo_distribution", "copo", "seed_grpo", "intuitor"])
def test_a_run_can_use_it(tmp_path: Path, method: str) -> None:
    """Two steps of two updates: every field is supplied, and the policy moves."""
    changes: dict[str, Any] = {
        "warmup": {"steps": 90, "batch": 32, "lr": 2e-2},
        "eval": {"prompts": 4, "final_prompts": 4},
        "batch": {"prompts": 6, "group_size": 4, "minibatches": 2},
    }
    last = records(launch(tmp_path / "run", method=method, data={"prompts": 9}, **changes).folder, "train")
    assert len(last) == 2
    assert sum(record["grad_norm"] for record in last) > 0
