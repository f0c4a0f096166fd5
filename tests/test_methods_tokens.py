"""Methods on chosen, weighed or compared tokens: what each promises, and that a run can use it."""

from __future__ import annotations

from pathlib import Path

import pytest

import grouprl
from batches import outcome, random_case
from small import near, small
from test_loop import launch, records

RUNS = ["forking_tokens", "d3s", "s_grpo_memory", "advantage_reweighting", "egsw"]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_can_use_it(tmp_path: Path, name: str) -> None:
    """Two steps of two updates each: every field the method reads is supplied, and the policy moves."""
    changes = {"eval": {"questions": 4, "final_questions": 4}, "batch": {"prompts": 6, "group": 4, "minibatches": 2}}
    last = records(launch(tmp_path / "run", method=name, **changes).folder, "train")
    assert len(last) == 2
    assert sum(record["grad_norm"] for record in last) > 0


def test_forking_tokens_scale_dapos_gradient_and_touch_a_fifth() -> None:
    case = random_case(3, sizes=(4, 4, 4), rewards="mixed", drift=0.0)
    ours = outcome(grouprl.method("forking_tokens"), case).grad_bt
    theirs = outcome(grouprl.method("dapo"), case).grad_bt
    kept_bt = ours != 0
    near(ours[kept_bt], theirs[kept_bt])
    tokens = int(case.batch.mask_bt.sum())
    assert abs(int(kept_bt.sum()) - 0.2 * tokens) <= 1


def test_low_probability_tokens_no_longer_dominate() -> None:
    """Of two tokens with the same advantage the unlikely one has the smaller factor; the base gives both the same."""
    batch = small([1, 0], [2, 1], old_bt=[[-0.01, -6.0], [-1.0]])
    base = grouprl.method("advantage_reweighting", alpha=0.0, kl_coef=0.0).prepare(batch)
    ours = grouprl.method("advantage_reweighting", alpha=0.5, kl_coef=0.0).prepare(batch)
    assert base.multiplier_bt[0, 0] == base.multiplier_bt[0, 1] == 1
    assert ours.multiplier_bt[0, 0] > 0.99
    assert ours.multiplier_bt[0, 1] < 0.502


def test_d3s_trains_on_the_share_it_promises() -> None:
    case = random_case(5, sizes=(6, 6, 6, 6), width=12, drift=0.0)
    ready = grouprl.method("d3s", sequences=0.5, tokens=0.4).prepare(case.batch)
    rows_b = (ready.multiplier_bt != 0).any(1)
    kept = ready.advantage_bt[:, 0][rows_b]
    assert 0 < int(rows_b.sum()) <= 12
    assert kept.abs().min() > 0.3
    assert float(ready.weight_bt[0, 0]) == pytest.approx(1 / float(ready.multiplier_bt.sum()))


def test_a_stochastic_sample_costs_no_gradient_elsewhere() -> None:
    case = random_case(6, sizes=(4, 4), width=12, drift=0.1)
    method = grouprl.method("s_grpo_memory", head=2, keep=0.3, limit=4)
    ready = method.prepare(case.batch)
    grad_bt = outcome(method, case, ready).grad_bt
    assert not grad_bt[~ready.active_bt].any()
    assert ready.active_bt.sum(1).max() <= 4
    near(ready.weight_bt.sum(1), [0.125] * 8)
