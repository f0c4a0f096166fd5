"""PDPPO: the larger of two advantages, and the critic of the state between a decision and the chance after it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl import InputError
from grouprl.algorithms.advantage_transform.papers.post_decision import PostCritic, PostDecision
from grouprl.algorithms.part import RunFacts
from grouprl.core.batch import Batch
from grouprl.envs.construction.inventory import Inventory, after_order
from grouprl.policy import ArrayInputs
from grouprl.records.examples import Example
from part_context import PartContext

AFTER = "grouprl.envs.construction.inventory:after_order"


def stored(value: float, post: float) -> Batch:
    """Two rows of up to two orders in a store without lead; the second row has one."""
    inputs = ArrayInputs.of(
        [np.array([[0.0, 1.0], [0.5, 0.5]], np.float32), np.array([[0.25, 1.0]], np.float32)], [[2, 4], [1]]
    )
    mask_bt = inputs.present_bt()
    return Batch(
        mask_bt=mask_bt,
        group_b=torch.arange(2),
        reward_b=torch.zeros(2),
        value_bt=torch.where(mask_bt, value, 0.0),
        return_bt=torch.where(mask_bt, 1.0, 0.0),
        stats={"post_value": torch.where(mask_bt, post, 0.0)},
        inputs=inputs,
    )


def test_the_advantage_is_the_larger_of_the_two_by_hand() -> None:
    """Returns of 1: against V = 0.25 it is 0.75, against Vˣ = 0.5 it is 0.5."""
    batch = stored(0.25, 0.5)
    adv_bt = torch.where(batch.mask_bt, 0.75, 0.0)
    expected = {"max": 0.75, "mean": 0.625, "after": 0.5}
    for combine, found in expected.items():
        out_bt = PostDecision(combine=combine)(adv_bt, batch)  # type: ignore[arg-type]
        assert out_bt[batch.mask_bt].tolist() == pytest.approx([found] * 3)
    other = stored(0.5, 0.25)
    assert float(PostDecision()(torch.where(other.mask_bt, 0.5, 0.0), other)[0, 0]) == 0.75


def test_critics_that_agree_leave_the_advantage() -> None:
    batch = stored(0.3, 0.3)
    adv_bt = torch.tensor([[0.7, -0.2], [0.1, 0.0]])
    for combine in ("max", "mean", "after"):
        assert torch.allclose(PostDecision(combine=combine)(adv_bt, batch), adv_bt)  # type: ignore[arg-type]


def test_the_maximum_of_two_estimates_is_too_large_by_half_over_the_root_of_pi() -> None:
    luck = np.random.default_rng(0)
    one, other = (torch.from_numpy(luck.normal(0, 0.5, (1, 200_000))) for _ in range(2))
    batch = Batch(
        mask_bt=torch.ones(1, 200_000, dtype=torch.bool),
        group_b=torch.zeros(1, dtype=torch.int64),
        reward_b=torch.zeros(1, dtype=torch.float64),
        value_bt=other - one,
        stats={"post_value": torch.zeros(1, 200_000, dtype=torch.float64)},
    )
    assert float(PostDecision()(one, batch).mean()) == pytest.approx(0.5 / np.pi**0.5, abs=0.005)


def test_the_state_after_an_order_is_what_demand_is_taken_from() -> None:
    """With a lead of one: the order of before arrives, this one is on its way; demand alone lies between it and the
    next observation.
    """
    world = Inventory(lead=1, periods=3)
    seen = np.asarray(world.reset(Example("any", {}), 5).values)
    for order in (3, 0, 6):
        after_f = after_order(seen[None], np.array([order]))[0]
        demanded = world._demands[world.period]
        shown: Any = world.step(order).observation
        assert after_f[1] == pytest.approx(order / 4)
        assert after_f[0] - demanded / 4 == pytest.approx(shown.values[0])
        assert after_f[1] == pytest.approx(shown.values[1])
        assert after_f[2] == seen[-1]
        seen = np.asarray(shown.values)
    one = after_order(np.array([[0.5, 1.0]]), np.array([2]))
    assert one.tolist() == [[1.0, 1.0]]


def test_known_values_after_the_decision_leave_less_noise_than_those_before_it() -> None:
    """One period, equal orders of 0 to 4: by total variance, Var(G - Vˣ) = Var(G - V) - Var(Vˣ), in exact sums."""
    world = Inventory(periods=1)
    cost_ad = np.array([[-world.after(0, (), a, d)[2] for d in range(5)] for a in range(5)])
    post_a = cost_ad.mean(1)
    before, after = cost_ad - post_a.mean(), cost_ad - post_a[:, None]
    assert after.var() == pytest.approx(before.var() - post_a.var())
    assert after.var() < 0.75 * before.var()
    assert np.allclose(after.mean(1), 0), "against Vˣ alone every order has the advantage 0"
    assert np.allclose(np.maximum(before, after).mean(1), np.maximum(post_a - post_a.mean(), 0))


def test_the_second_critic_learns_the_returns_and_goes_on_where_it_was() -> None:
    """Fitted in two rollouts through the memory, and at once: the same to the bit."""
    state_nf = torch.linspace(-1, 1, 32)[:, None]
    return_n = state_nf[:, 0].square()
    apart, whole = PartContext(), PartContext()
    part, longer = PostDecision(lr=1e-2, steps=30), PostDecision(lr=1e-2, steps=60)
    errors = [PostCritic(part, apart, 1).fit(state_nf, return_n) for _ in range(2)]  # type: ignore[arg-type]
    PostCritic(longer, whole, 1).fit(state_nf, return_n)  # type: ignore[arg-type]
    assert errors[1] < 0.5 * errors[0]
    for name, tensor in apart.store["net"].items():
        assert torch.equal(tensor, whole.store["net"][name])


def test_values_are_filled_in_where_an_action_was_taken_and_fitted_to_the_returns() -> None:
    context, part = PartContext(), PostDecision(after=AFTER, lr=1e-2, steps=200)
    batch = stored(0.0, 0.0)
    first = part.fill(batch, None, context)  # type: ignore[arg-type]
    assert first.stats["post_value"][1, 1] == 0
    assert bool((first.stats["post_value"][batch.mask_bt] != 0).all())
    assert 0 <= context.notes["post_value_share"] <= 1
    part.observe(None, batch, context)  # type: ignore[arg-type]
    found = part.fill(batch, None, context).stats["post_value"]  # type: ignore[arg-type]
    assert found[batch.mask_bt].tolist() == pytest.approx([1.0] * 3, abs=0.05)
    assert context.notes["post_value_error"] > 0.1
    part.observe(None, None, context)  # type: ignore[arg-type]


def flat_answer(seen_nf: np.ndarray, action_n: np.ndarray) -> np.ndarray:
    """A function that returns a number for each decision, not a row."""
    return seen_nf[:, 0]


def test_wrong_functions_and_rows_are_told() -> None:
    batch = stored(0.0, 0.0)
    with pytest.raises(InputError, match="a row of finite numbers"):
        PostDecision(after=f"{__file__}:flat_answer").states(batch)
    with pytest.raises(InputError, match="one array of observations"):
        PostDecision(after=AFTER).states(batch.replace(inputs=None))
    assert "method.after" in PostDecision().refuse(RunFacts())[0]
    assert PostDecision(after=AFTER).refuse(RunFacts()) == []


def test_a_run_fits_both_critics(tmp_path: Any) -> None:
    grouprl.train(
        {
            "task": {"name": "env:grouprl.envs.construction.inventory:Inventory", "turns": 4, "config": {"periods": 4}},
            "model": {"name": "mlp", "settings": {"hidden": [8]}},
            "method": {"name": "pdppo", "after": AFTER, "size": 16, "post_lr": 1e-2},
            "steps": 6,
            "batch": {"prompts": 8, "group_size": 1, "epochs": 2},
            "optim": {"lr": 0.01, "schedule": "constant"},
            "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "train"]
    assert rows[-1]["post_value_error"] < rows[0]["post_value_error"]
    assert all(0 <= row["post_value_share"] <= 1 for row in rows)
