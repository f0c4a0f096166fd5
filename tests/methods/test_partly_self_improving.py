"""SRPO: its conditions of optimality in closed form, its limits, revisions as prompts, and a run."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

import grouprl
from grouprl import Batch
from grouprl.algorithms.augment.papers.preferences.revised import after_answer
from grouprl.records.examples import Chat
from short_runs import trained_steps
from small import f64, near, small

TWIN, SHOWN = [1, 2, -1, -1, -2, -2], [0, 0, 1, 2, 1, 2]


def batch_of(scores: list[float], rewards: tuple[float, float] = (1.0, 0.0)) -> Batch:
    """Completions 1 and 2 alone, then 1 after 1, 1 after 2, 2 after 1, 2 after 2, by their log-ratios."""
    rewards_b = [rewards[abs(number) - 1] for number in TWIN]
    batch = small(rewards_b, groups=[0] * 6, old_bt=[[x - 1] for x in scores], ref_bt=[[-1.0]] * 6)
    return batch.replace(keys={"twin": torch.tensor(TWIN), "shown": torch.tensor(SHOWN)})


def outcome(batch: Batch, **settings: object) -> tuple[torch.Tensor, torch.Tensor]:
    made = grouprl.method("srpo_robust", **settings)
    logp_bt = batch.old_bt.clone().requires_grad_()
    value = made.loss(logp_bt, made.prepare(batch)).value
    return value.detach(), torch.autograd.grad(value, logp_bt)[0]


def test_where_policy_and_reference_agree():
    """½·(¼ + ¼) + ½·1."""
    near(outcome(batch_of([0.0] * 6))[0], 0.75)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_solution_of_the_game_is_where_the_expected_slope_is_0(alpha: float):
    """Four actions, P(a > b) at random, the reference even: the closed forms of answer and revision."""
    beta, draws = 0.7, torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wins = (draws.triu(1) + (1 - draws).triu(1).T).fill_diagonal_(0.5)  # [i,j]: how likely i beats j
    scale_a = (wins / beta).exp().mean(0)  # Z+(y1), over revisions y2
    revise_ab = wins / beta - scale_a.log()  # R+(a | b)
    answer_a = -scale_a.log()  # R(a), up to a constant
    for a, b in itertools.combinations(range(4), 2):
        scores = [answer_a[a], answer_a[b], *(revise_ab[i, j] for i in (a, b) for j in (a, b))]
        scores = [float(x) for x in scores]
        first, second = (outcome(batch_of(scores, won), beta=beta, alpha=alpha)[1] for won in ((1, 0), (0, 1)))
        near(wins[a, b] * first + wins[b, a] * second, torch.zeros(6, 1, dtype=torch.float64), 1e-12)
        assert first.abs().max() > 0.01


def test_which_completion_comes_first_does_not_matter():
    scores = [0.4, -0.2, 0.5, 0.1, -0.3, 0.7]
    turned = [scores[i] for i in (1, 0, 5, 4, 3, 2)]
    near(outcome(batch_of(turned, (0.0, 1.0)))[0], outcome(batch_of(scores))[0])


def test_terms_by_alpha():
    """(½ + 0.06)² + (½ - 0.08)² and (1 - 0.1)²."""
    scores = [0.4, -0.2, 0.5, 0.1, -0.3, 0.7]
    near(outcome(batch_of(scores), alpha=0.0)[0], 0.56**2 + 0.42**2)
    near(outcome(batch_of(scores), alpha=1.0)[0], 0.81)
    grad_bt = outcome(batch_of(scores), alpha=0.0)[1]
    assert not grad_bt[:2].any(), "what teaches to revise says nothing of answers"


def test_revisions_count_in_no_pair_and_ties_have_no_loss():
    value, grad_bt = outcome(batch_of([0.3] * 6, (1.0, 1.0)))
    assert not value
    assert not grad_bt.any()
    method = grouprl.method("srpo_robust")
    ready = method.prepare(batch_of([0.0] * 6))
    assert ready.edges["pairs"].index_e2.tolist() == [[0, 1]]
    assert not method.zero_rows(ready).any()


def test_far_scores_stay_finite():
    value, grad_bt = outcome(batch_of([500.0, -500.0] * 3))
    assert value.isfinite()
    assert grad_bt.isfinite().all()


def test_metrics_are_those_of_pairs():
    method, batch = grouprl.method("srpo_robust"), batch_of([0.4, -0.2, 0.5, 0.1, -0.3, 0.7])
    found = method.loss(batch.old_bt, method.prepare(batch)).metrics
    near(found["rewards/margins"], 0.06)
    near(found["revision_margin"], 0.1 - 0.7)
    near(found["pair_accuracy"], f64(1.0))


def test_an_answer_is_shown_before_it_is_revised():
    assert after_answer("caf>", "fa", "\nAgain: ") == "caf>fa\nAgain: "
    user = {"role": "user", "content": "q"}
    asked = [user, {"role": "assistant", "content": "a"}, {"role": "user", "content": "Again:"}]
    assert list(after_answer((user,), "a", "\nAgain: ")) == asked
    kept = after_answer(Chat((user,), [{"name": "add"}], {"thinking": True}), "a", "b")
    assert (kept.tools, kept.variables) == (({"name": "add"},), {"thinking": True})


def test_a_run_begins_at_three_quarters_and_trains_revisions_too(tmp_path: Path):
    config = {
        "task": "preferences",
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": {"name": "srpo_robust", "revise": ">"},
        "steps": 2,
        "batch": {"prompts": 4, "group_size": 2},
        "optim": {"lr": 1e-2},
        "eval": {"every": 0, "final_prompts": 1},
    }
    steps = trained_steps(config, tmp_path / "run")
    assert steps[0]["loss"] == pytest.approx(0.75, rel=1e-5)
    assert [step["rows_trained"] for step in steps] == [1.0, 1.0]
    assert math.isfinite(steps[1]["loss"])
    assert steps[1]["loss"] != pytest.approx(0.75, rel=1e-5)
