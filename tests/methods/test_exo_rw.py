"""EXO for rewards: a list's reverse KL by hand and by differences, its limits, rows left out, far scores, a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import grouprl
from batches import pieces_of
from grouprl import Batch, InputError
from grouprl.algorithms.objective.papers.list_kl import ListKl
from grouprl.algorithms.part import RunFacts
from short_runs import trained_steps
from small import near, small

SCORES = [0.4, -0.2, 0.9, 0.1, -0.7]
REWARDS = [1.0, 0.0, 2.5, 0.5, 0.5]


def batch_of(scores: list[float], rewards: list[float], groups: list[int] | None = None) -> Batch:
    """Completions of one token with these log-ratios."""
    return small(rewards, groups=groups, old_bt=[[x - 1] for x in scores], ref_bt=[[-1.0]] * len(scores))


def outcome(batch: Batch, method: str = "exo_rw", **settings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    made = grouprl.method(method, **settings)
    logp_bt = batch.old_bt.clone().requires_grad_()
    value = made.loss(logp_bt, made.prepare(batch)).value
    return value.detach(), torch.autograd.grad(value, logp_bt)[0]


def softmax(values: list[float]) -> list[float]:
    total = sum(map(math.exp, values))
    return [math.exp(x) / total for x in values]


def by_hand(scores: list[float], rewards: list[float], beta_pi: float = 1.0, beta_r: float = 1.0) -> float:
    f, g = softmax([beta_pi * x for x in scores]), softmax([x / beta_r for x in rewards])
    return sum(p * math.log(p / q) for p, q in zip(f, g, strict=True))


@pytest.mark.parametrize(("beta_pi", "beta_r"), [(1.0, 1.0), (0.1, 0.5), (3.0, 2.0)])
def test_a_list_by_hand(beta_pi: float, beta_r: float) -> None:
    value, _ = outcome(batch_of(SCORES, REWARDS), beta_pi=beta_pi, beta_r=beta_r)
    near(value, by_hand(SCORES, REWARDS, beta_pi, beta_r))


def test_groups_weigh_by_their_size() -> None:
    value, _ = outcome(batch_of(SCORES, REWARDS, [4, 4, 4, 2, 2]))
    near(value, (3 * by_hand(SCORES[:3], REWARDS[:3]) + 2 * by_hand(SCORES[3:], REWARDS[3:])) / 5)


def test_scores_are_sums_over_tokens() -> None:
    batch = small([1, 0], [3, 1], old_bt=[[-0.5, -0.7, -0.9], [-1.4]], ref_bt=[[-1.0] * 3, [-1.0]])
    near(outcome(batch)[0], by_hand([0.9, -0.4], [1, 0]))


@pytest.mark.parametrize(("flips", "beta"), [(0.1, 0.1), (1e-3, 0.5), (0.4, 1.0)])
def test_two_completions_are_a_pair_with_a_smoothed_label(flips: float, beta: float) -> None:
    """Rewards log((1-ε)/ε)·β_r apart."""
    apart = 0.7 * math.log((1 - flips) / flips)
    batch = batch_of(SCORES[:4], [apart, 0.0, 2.0 - apart, 2.0], [0, 0, 1, 1])
    ours = outcome(batch, beta_pi=beta, beta_r=0.7)
    for one, other in zip(ours, outcome(batch, "exo", beta=beta, flips=flips), strict=True):
        near(one, other)


@pytest.mark.parametrize(("beta_pi", "beta_r"), [(1.0, 1.0), (0.2, 4.0)])
def test_scores_that_differ_as_rewards_do_are_the_optimum(beta_pi: float, beta_r: float) -> None:
    """Up to a constant of the list: s = R/(β_π·β_r) + 3."""
    scores = [r / (beta_pi * beta_r) + 3 for r in REWARDS]
    value, grad_bt = outcome(batch_of(scores, REWARDS), beta_pi=beta_pi, beta_r=beta_r)
    near(value, 0.0)
    near(grad_bt, torch.zeros_like(grad_bt))


def test_equal_rewards_ask_for_equal_scores() -> None:
    value, grad_bt = outcome(batch_of(SCORES, [0.5] * 5))
    near(value, by_hand(SCORES, [0.0] * 5))
    assert grad_bt[2] > 0 > grad_bt[4]
    near(grad_bt.sum(), 0.0)


def test_a_constant_of_the_prompt_in_rewards_or_scores_changes_nothing() -> None:
    groups = [0, 0, 0, 1, 1]
    one = outcome(batch_of(SCORES, REWARDS, groups))
    shift = [7.0, 7.0, 7.0, -2.0, -2.0]
    moved = [x + y for x, y in zip(REWARDS, shift, strict=True)]
    higher = [x + y for x, y in zip(SCORES, shift, strict=True)]
    for other in (outcome(batch_of(SCORES, moved, groups)), outcome(batch_of(higher, REWARDS, groups))):
        near(other[0], one[0])
        near(other[1], one[1])


def test_the_order_of_rows_does_not_matter() -> None:
    batch, order_b = batch_of(SCORES, REWARDS, [0, 1, 0, 1, 0]), torch.tensor([3, 0, 4, 1, 2])
    (value, grad_bt), (other, other_bt) = outcome(batch), outcome(batch.rows(order_b))
    near(other, value)
    near(other_bt, grad_bt[order_b])


def test_gradients_are_those_of_finite_differences() -> None:
    batch = small(REWARDS, [2, 1, 3, 2, 1], [0, 0, 0, 1, 1], ref_bt=[[-1.0] * n for n in (2, 1, 3, 2, 1)])
    noise_bt = torch.randn(batch.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = grouprl.method("exo_rw", beta_pi=0.7, beta_r=0.4)
    ready = made.prepare(batch)
    logp_bt = (noise_bt - 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x_bt: made.loss(x_bt, ready).value, logp_bt)


def test_a_step_in_pieces_of_whole_groups_adds_up() -> None:
    batch = batch_of(SCORES, REWARDS, [0, 1, 0, 1, 0])
    made = grouprl.method("exo_rw")
    ready = made.prepare(batch)
    pieces = pieces_of(made, batch.group_b, torch.Generator().manual_seed(1))
    assert made.couples == "group"
    assert len(pieces) == 2
    near(sum(made.loss(batch.old_bt[rows], ready.rows(rows)).value for rows in pieces), outcome(batch)[0])


def test_padding_and_rows_without_tokens_do_not_matter() -> None:
    wide = {"mask_bt": torch.tensor([[False, True, False]] * 5 + [[False] * 3])}
    score_bt = torch.tensor([[math.nan, x - 1, math.inf] for x in SCORES] + [[math.nan] * 3], dtype=torch.float64)
    batch = small([*REWARDS, 9.0], old_bt=None, ref_bt=torch.full_like(score_bt, -1.0), **wide)
    value, grad_bt = outcome(batch.replace(old_bt=score_bt))
    expected, expected_bt = outcome(batch_of(SCORES, REWARDS))
    near(value, expected)
    near(grad_bt[:5, 1:2], expected_bt)
    assert not grad_bt[5].any()
    assert not grad_bt[:, [0, 2]].any()


def test_rows_that_do_not_count_are_in_no_list() -> None:
    """They stay in the denominator of the mean over rows."""
    stat_b = torch.tensor([True, True, True, True, False])
    value, grad_bt = outcome(batch_of(SCORES, REWARDS).replace(stat_b=stat_b))
    near(value, by_hand(SCORES[:4], REWARDS[:4]) * 4 / 5)
    assert not grad_bt[4].any()
    near(grad_bt[:4], outcome(batch_of(SCORES[:4], REWARDS[:4]))[1] * 4 / 5)


def test_a_completion_without_others_is_left_out_of_the_mean_too() -> None:
    """Of the last group one row counts."""
    batch = batch_of([*SCORES, 0.3, 0.8, -0.1], [*REWARDS, 1.0, 1.0, 0.0], [0] * 5 + [1, 2, 2])
    value, grad_bt = outcome(batch.replace(stat_b=torch.tensor([True] * 7 + [False])))
    near(value, by_hand(SCORES, REWARDS))
    assert not grad_bt[5:].any()
    alone, alone_bt = outcome(batch_of([0.4], [1.0]))
    assert alone == 0
    assert not alone_bt.any()


def test_rows_that_have_no_gradient_are_told() -> None:
    batch = batch_of(SCORES, REWARDS, [0, 0, 0, 0, 3]).replace(stat_b=torch.tensor([True, True, True, False, True]))
    advantage_bt = batch.broadcast(batch.reward_b)
    assert ListKl().zero_rows(batch.replace(advantage_bt=advantage_bt)).tolist() == [False] * 3 + [True] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [-500.0, 500.0])
def test_far_scores_and_rewards_stay_finite(gap: float, dtype: torch.dtype) -> None:
    """Certain of one completion, and even among two of which one is 500 nats worse by its reward."""
    batch = batch_of([gap, 0.0, 0.0], [0.0, -500.0, 0.0])
    made = grouprl.method("exo_rw")
    batch = batch.replace(**{x: getattr(batch, x).to(dtype) for x in ("old_bt", "ref_bt", "reward_b")})
    logp_bt = batch.old_bt.clone().requires_grad_()
    value = made.loss(logp_bt, made.prepare(batch)).value
    (grad_bt,) = torch.autograd.grad(value, logp_bt)
    assert grad_bt.isfinite().all()
    expected = math.log(2) if gap > 0 else -math.log(2) + 0.5 * (500 + math.log(2)) + 0.5 * math.log(2)
    near(value.double(), expected, 1e-3)


def test_without_a_reference_or_a_score_of_each_completion_it_says_so() -> None:
    made = grouprl.method("exo_rw")
    with pytest.raises(InputError, match="ref_bt"):
        outcome(batch_of(SCORES, REWARDS).replace(ref_bt=None))
    with pytest.raises(ValueError, match="score of each completion"):
        ListKl(score=grouprl.method("aot").objective.score)
    facts = RunFacts(group_size=1, has_reference=False)
    told = " ".join(made.objective.refuse(facts))
    assert "group_size is 1" in told
    assert made.objective.refuse(RunFacts(group_size=4)) == []


def test_a_run_on_scored_lists_begins_at_the_kl_of_an_even_choice(tmp_path: Path) -> None:
    """log π/π_ref is 0 at the first step, so that f is even; scores may be equal."""
    scores = [0.0, 2.0, 0.5, 0.5]
    row = {"completions": ["ab", "b", "c", "acb"], "scores": scores}
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps({"prompt": f"{x}>", **row}) + "\n" for x in "abcdefgh"))
    config = {
        "task": {"name": f"pairs:{tmp_path / 'lists.jsonl'}"},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": "exo_rw",
        "steps": 1,
        "batch": {"prompts": 4, "group_size": 4},
        "eval": {"every": 0, "final_prompts": 1},
    }
    (step,) = trained_steps(config, tmp_path / "run")
    assert step["loss"] == pytest.approx(by_hand([0.0] * 4, scores), rel=1e-5)
    assert step["grad_norm"] > 0
