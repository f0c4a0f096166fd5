"""Lopti: two updates on one rollout, and what the plan says of methods with an update of their own."""

from __future__ import annotations

import pytest
import torch

from grouprl import Batch, method
from grouprl.algorithms.update.update import PHASE, TwoPhase, only
from grouprl.config.run import parse_config
from grouprl.methods.compose import compose
from grouprl.plan.plan import plan
from grouprl.training.update import Learner, update
from small import near
from updates import gradient, learner_of, make_batch, make_policy


def with_likely_tokens(batch: Batch) -> Batch:
    """Old probabilities on both sides of 0.5, and a reference."""
    assert batch.old_bt is not None
    old_bt = torch.where(batch.mask_bt, (batch.old_bt + 1.85).clamp(max=-0.05), 0)
    return batch.replace(old_bt=old_bt, behavior_bt=old_bt, ref_bt=old_bt - 0.2)


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "lopti", "kl_coef": 0.1},
        {"name": "ar_lopti", "kl_coef": 0.1},
        {"base": "lopti", "kl_coef": 0.1, "add": {"regularize": [{"part": "entropy_bonus", "coef": 0.05}]}},
        {"base": "ppo", "update": "two_phase"},
    ],
    ids=["lopti", "ar_lopti", "entropy", "critic"],
)
def test_the_gradients_of_both_phases_add_up_to_that_of_one_update(spec) -> None:
    chosen = compose(spec).method
    policy = make_policy(value_head=chosen.critic is not None)
    batch = with_likely_tokens(make_batch(policy))
    if chosen.critic is not None:
        batch = batch.replace(value_bt=torch.rand(batch.size, dtype=torch.float64))
    learner, prepared = learner_of(policy, chosen), chosen.compute_advantages(batch)
    low_bt = chosen.update.unlikely(prepared)
    assert 0.2 < float(low_bt[prepared.mask_bt].double().mean()) < 0.8
    (step,) = learner.steps(prepared.replace(marks={PHASE: low_bt}))
    learner.accumulate(step)
    whole = gradient(policy)
    halves = []
    for keep_bt in (step.marks[PHASE], ~step.marks[PHASE]):
        learner.accumulate(only(step, keep_bt))
        halves.append(gradient(policy))
    torch.testing.assert_close(halves[0] + halves[1], whole, rtol=1e-9, atol=1e-13)
    assert all(float(half.norm()) > 0.05 * float(whole.norm()) for half in halves)


@pytest.mark.parametrize(("order", "first"), [("low_first", True), ("high_first", False)])
def test_all_steps_of_the_first_phase_come_before_the_second(order, first) -> None:
    """Two minibatches and two epochs are eight steps; the tokens of a phase are its own, and all are used."""
    seen: list[tuple[bool, float]] = []

    class Watched(Learner):
        def take(self, step: Batch) -> dict[str, float]:
            keep_bt = step.weight_bt != 0
            low = step.old_bt[keep_bt].exp() < 0.5
            assert bool(low.all()) or not bool(low.any())
            seen.append((bool(low.all()), float(step.weight_bt.sum())))
            return {}

    policy, chosen = make_policy(), method("lopti", order=order)
    learner = Watched(policy, torch.optim.SGD(policy.parameters(), lr=0.0), chosen, parts=2, epochs=2)
    list(chosen.update(learner, chosen.compute_advantages(with_likely_tokens(make_batch(policy)))))
    assert [low for low, _ in seen] == [first] * 4 + [not first] * 4
    near(torch.tensor([a + b for (_, a), (_, b) in zip(seen[:4], seen[4:], strict=True)]), [1.0] * 4)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_a_phase_without_tokens_leaves_the_single_update(eta) -> None:
    found = []
    for name, settings in (("lopti", {"eta": eta}), ("advantage_reweighting", {"alpha": 0.0})):
        policy, chosen = make_policy(), method(name, **settings)
        prepared = chosen.compute_advantages(with_likely_tokens(make_batch(policy)))
        update(policy, torch.optim.AdamW(policy.parameters(), lr=1e-2), chosen, prepared, parts=2)
        found.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    assert torch.equal(found[0], found[1])


def test_the_second_phase_sees_the_moved_policy() -> None:
    policy, chosen = make_policy(), method("lopti", kl_coef=0.0)
    batch = make_batch(policy)
    old_bt = policy.logp(batch.inputs)
    batch = batch.replace(old_bt=old_bt, behavior_bt=old_bt)
    middle = TwoPhase(eta=0.5, by="quantile")
    chosen = chosen.with_parts(update=middle)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    records = list(middle(Learner(policy, optimizer, chosen), chosen.compute_advantages(batch)))
    assert records[0]["ratio_mean"] == pytest.approx(1.0, abs=1e-12)
    assert abs(records[1]["ratio_mean"] - 1) > 1e-4
    assert [r["unlikely_fraction"] for r in records] == pytest.approx([0.5, 0.5], abs=0.05)


def test_quantiles_are_those_of_the_rollouts_tokens() -> None:
    p = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.9, 0.0]], dtype=torch.float64)
    mask_bt = torch.tensor([[True, True, True], [True, True, False]])
    batch = Batch(
        mask_bt=mask_bt,
        group_b=torch.zeros(2, dtype=torch.int64),
        reward_b=torch.zeros(2, dtype=torch.float64),
        old_bt=torch.where(mask_bt, p.log(), 0),
    )
    low = lambda **settings: (TwoPhase(**settings).unlikely(batch) & mask_bt).tolist()  # noqa: E731
    assert low(eta=0.5, by="quantile") == [[True, True, False], [False, False, False]]  # the median is 0.3
    assert low(eta=0.25) == [[True, True, False], [False, False, False]]
    assert low(eta=0.5) == [[True, True, True], [True, False, False]]


def test_the_plan_counts_the_steps_of_both_phases() -> None:
    run = {"task": {"name": "addition", "digits": 1}, "model": {"name": "tiny"}, "batch": {"minibatches": 1}}
    found = plan(parse_config({**run, "method": "lopti"}))
    assert (found.batch.updates_per_rollout, found.batch.updates) == (2, 2 * found.config.steps)
    assert not any("clip" in sentence for sentence in found.idle), "the second phase's ratios are not 1"
    refused = plan(parse_config({**run, "method": {"base": "reinforce", "update": "two_phase"}})).refusals
    assert any("× phases of update is 2" in sentence for sentence in refused)
    assert any("optim.lr" in sentence for sentence in plan(parse_config({**run, "method": "trpo"})).idle)
