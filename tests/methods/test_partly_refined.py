"""Sr-DPO: what is taken off by hand, its limits, prefixed prompts, and a run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import grouprl
from grouprl import Batch
from grouprl.algorithms.augment.papers.preferences.prefixed import with_prefix
from grouprl.records.examples import Chat
from short_runs import trained_steps
from small import near, small

SCORES = [0.4, -0.2, 0.5, 0.1]


def batch_of(scores: list[float], twins: list[int], rewards: list[float] | None = None) -> Batch:
    size = len(scores)
    batch = small(rewards or [1, 0, 1, 0], groups=[0] * size, old_bt=[[x - 1] for x in scores], ref_bt=[[-1.0]] * size)
    return batch.replace(keys={"twin": torch.tensor(twins)})


def outcome(batch: Batch, method: str = "sr_dpo", **settings: object) -> tuple[torch.Tensor, torch.Tensor]:
    made = grouprl.method(method, **settings)
    logp_bt = batch.old_bt.clone().requires_grad_()
    value = made.loss(logp_bt, made.prepare(batch)).value
    return value.detach(), torch.autograd.grad(value, logp_bt)[0]


@pytest.mark.parametrize(
    ("loss", "expected"), [("dpo", math.log1p(math.exp(-0.1 * (0.6 - 0.5 * 0.4)))), ("ipo", (0.6 - 0.5 * 0.4 - 5) ** 2)]
)
def test_a_pair_needs_the_larger_a_margin_the_clearer_it_is_behind_the_prefix(loss: str, expected: float) -> None:
    """Δ = 0.4 + 0.2 and, behind the prefix, Δ_p = 0.5 - 0.1; λ = 0.5 and β = 0.1, whose target of IPO is 5."""
    method, batch = grouprl.method("sr_dpo", loss=loss), batch_of(SCORES, [1, 2, -1, -2])
    near(method.loss(batch.old_bt, method.prepare(batch)).value, expected)


def test_an_empty_prefix_would_shrink_beta():
    """A prefix that changes nothing takes coef·Δ off: the value is DPO's at β·(1 - coef), the slope is not."""
    value, _ = outcome(batch_of([0.4, -0.2, 0.4, -0.2], [1, 2, -1, -2]), coef=0.25)
    near(value, math.log1p(math.exp(-0.1 * 0.75 * 0.6)))


def test_what_is_prefixed_is_neither_learned_nor_paired():
    value, grad_bt = outcome(batch_of(SCORES, [1, 2, -1, -2]))
    swapped, _ = outcome(batch_of([0.4, -0.2, 0.1, 0.5], [1, 2, -2, -1]))
    near(value, swapped)
    assert not grad_bt[2:].any()
    alone, alone_grad_bt = outcome(batch_of(SCORES[:2], [1, 2], [1, 0]), "dpo")
    for one, other in zip(outcome(batch_of(SCORES, [1, 2, -1, -2]), coef=0.0), (alone, alone_grad_bt), strict=True):
        near(one[: len(other)] if one.ndim else one, other)


def test_far_scores_stay_finite():
    for loss in ("dpo", "ipo"):
        value, grad_bt = outcome(batch_of([500.0, -500.0, -500.0, 500.0], [1, 2, -1, -2]), loss=loss)
        assert value.isfinite()
        assert grad_bt.isfinite().all()


def test_a_prefix_begins_the_users_first_message():
    assert with_prefix("caf>", "p ") == "p caf>"
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "q"}
    assert with_prefix((system, user, user), "p ") == (system, {"role": "user", "content": "p q"}, user)
    kept = with_prefix(Chat((system, user), [{"name": "add"}], {"thinking": True}), "p ")
    assert (kept.tools, kept.variables) == (({"name": "add"},), {"thinking": True})
    assert with_prefix((system,), "p ") == ({"role": "user", "content": "p"}, system)


def test_a_run_begins_at_log_2_and_trains_its_own_rows_alone(tmp_path: Path):
    config = {
        "task": "preferences",
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": {"name": "sr_dpo", "prefix": "abc>"},
        "steps": 2,
        "batch": {"prompts": 4, "group_size": 2},
        "optim": {"lr": 1e-2},
        "eval": {"every": 0, "final_prompts": 1},
    }
    steps = trained_steps(config, tmp_path / "run")
    assert steps[0]["loss"] == pytest.approx(math.log(2), rel=1e-5)
    assert [step["rows_trained"] for step in steps] == [0.5, 0.5]
    assert steps[1]["loss"] != pytest.approx(math.log(2), rel=1e-5)
