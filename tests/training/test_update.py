"""Optimiser steps: denominators of the whole step, rows without gradient, both routes, on a real tiny model."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from grouprl import Batch, RunError, method
from grouprl.algorithms.update.update import Update
from grouprl.config.rates import learning_rate
from grouprl.config.sections import Optim
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.training.steps import sloping
from grouprl.training.update import Learner, minibatches, update
from updates import accumulate, gradient, make_batch, make_policy


def test_gradient_does_not_depend_on_the_token_budget() -> None:
    grpo = method("grpo")
    found = []
    for budget in (8, 24, 4096):
        policy = make_policy(budget)
        metrics = accumulate(policy, grpo, grpo.prepare(make_batch(policy)))
        found.append((gradient(policy), metrics))
    for other, metrics in found[1:]:
        torch.testing.assert_close(other, found[0][0], rtol=1e-10, atol=1e-13)
        assert metrics == pytest.approx(found[0][1], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "cispo", "reinforce"])
def test_rows_without_gradient_are_skipped_without_a_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, chosen = make_policy(), method(name)
    step = chosen.compute_loss_weights(
        chosen.compute_advantages(
            make_batch(policy).replace(
                correct_b=torch.zeros(16, dtype=torch.bool), truncated_b=torch.zeros(16, dtype=torch.bool), max_length=8
            )
        )
    )
    seen: list[int] = []
    real = CausalPolicy.evaluate
    monkeypatch.setattr(
        CausalPolicy,
        "evaluate",
        lambda self, tokens, *a, **kw: (seen.append(len(tokens)), real(self, tokens, *a, **kw))[1],
    )
    accumulate(policy, chosen, step)
    lazy = gradient(policy)
    skipped = 16 - sum(seen)
    monkeypatch.setattr(type(chosen), "zero_rows", lambda self, batch: torch.zeros(16, dtype=torch.bool))
    accumulate(policy, chosen, step)
    torch.testing.assert_close(lazy, gradient(policy), rtol=1e-12, atol=1e-15)
    assert skipped == int((~(step.advantage_bt != 0).any(1)).sum())
    assert (skipped >= 4) or name == "reinforce"


def test_two_passes_give_the_gradient_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    grpo, policy = method("grpo"), make_policy()
    step = grpo.prepare(make_batch(policy))
    one_metrics = accumulate(policy, grpo, step)
    one = gradient(policy)
    monkeypatch.setattr(type(grpo), "couples", "batch")
    policy.token_budget = 16
    two_metrics = accumulate(policy, grpo, step)
    torch.testing.assert_close(gradient(policy), one, rtol=1e-10, atol=1e-13)
    assert two_metrics["loss"] == pytest.approx(one_metrics["loss"], rel=1e-10)


@pytest.mark.parametrize(("budget", "once"), [(4096, True), (16, False)])
def test_a_coupled_step_that_fits_one_pass_goes_through_the_model_once(
    budget: int, once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ipo, policy = method("ipo"), make_policy(budget)
    step = ipo.prepare(make_batch(policy).replace(ref_bt=torch.zeros(make_batch(policy).size, dtype=torch.float64)))
    read: list[int] = []
    real = type(policy._engine).read
    monkeypatch.setattr(
        type(policy._engine), "read", lambda engine, tokens: (read.append(len(tokens)), real(engine, tokens))[1]
    )
    accumulate(policy, ipo, step)
    assert gradient(policy).abs().max() > 0
    assert (sum(read) == len(step.inputs)) is once


def test_coupled_objective_equals_its_dense_gradient() -> None:
    """An objective that looks across the group (variance of sequence log-probs) through the two-pass route."""
    from grouprl.algorithms.losses import TokenLoss
    from grouprl.algorithms.objective.objective import Objective

    @dataclasses.dataclass(frozen=True)
    class Spread(Objective):
        kind = "objective"
        couples = "group"
        name = "spread"

        def __call__(self, logp_bt: torch.Tensor, batch: Batch) -> TokenLoss:
            s_b = torch.where(batch.active_bt, logp_bt, 0).sum(1)
            mean_g = torch.zeros(4, dtype=s_b.dtype).index_add(0, batch.group_b, s_b) / 4
            return TokenLoss(((s_b - mean_g[batch.group_b]) ** 2)[:, None] * batch.active_bt, {})

        def words(self) -> str:
            return "spread"

    spread = dataclasses.replace(method("grpo"), objective=Spread())
    policy = make_policy(16)
    step = spread.prepare(make_batch(policy))
    accumulate(policy, spread, step)
    routed = gradient(policy)
    policy.token_budget = 10**6
    spread.loss(policy.evaluate(step.inputs, ["log_prob"], grad=True)["log_prob"], step).value.backward()
    torch.testing.assert_close(routed, gradient(policy), rtol=1e-10, atol=1e-13)
    assert routed.abs().max() > 0


def test_minibatches_keep_groups_whole_and_cover_everything() -> None:
    group_b = torch.tensor([5, 2, 5, 9, 2, 7, 7, 9])
    parts = minibatches(group_b, 3, seed=1)
    assert sorted(torch.cat(parts).tolist()) == list(range(8))
    owners = [set(group_b[rows].tolist()) for rows in parts]
    assert sum(len(o) for o in owners) == 4
    assert [r.tolist() for r in parts] == [r.tolist() for r in minibatches(group_b, 3, seed=1)]
    assert len(minibatches(group_b, 8, seed=0)) == 4


def test_groups_that_do_not_divide_are_dealt_out_with_denominators_of_their_own_step() -> None:
    """Five groups of four in two steps: three groups and two, and each step is the mean of its own rows."""
    policy, grpo = make_policy(), method("grpo")
    prepared = grpo.compute_advantages(make_batch(policy, groups=5))
    steps = list(Learner(policy, torch.optim.SGD(policy.parameters(), lr=0.1), grpo, parts=2).steps(prepared))
    assert [len(step.reward_b) for step in steps] == [12, 8]
    for step in steps:
        lengths_b = step.mask_bt.sum(1, keepdim=True)
        expected = step.mask_bt / lengths_b / len(step.reward_b)
        torch.testing.assert_close(step.weight_bt, expected.to(step.weight_bt.dtype))


def test_a_dead_batch_still_steps_like_zero_gradients() -> None:
    """Skipping dead rows must not skip the optimiser: momentum acts as it would with gradients of zero."""
    found = []
    for lazy in (True, False):
        policy = make_policy()
        optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
        grpo, batch = method("grpo"), make_batch(policy)
        update(policy, optimizer, grpo, grpo.compute_advantages(batch))
        dead = batch.replace(reward_b=torch.ones_like(batch.reward_b))
        if lazy:
            update(policy, optimizer, grpo, grpo.compute_advantages(dead))
        else:
            for p in policy.parameters():
                p.grad = torch.zeros_like(p)
            optimizer.step()
        found.append(torch.cat([p.detach().flatten() for p in policy.parameters()]))
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_a_minibatch_of_which_no_token_counts_takes_no_step(name: str) -> None:
    """Where another agent's turn is, say: momentum and weight decay must not move what learnt nothing."""
    critic = name == "ppo"
    policy, chosen = make_policy(value_head=critic), method(name)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, weight_decay=0.1)
    prepared = chosen.compute_advantages(with_values(policy) if critic else make_batch(policy))
    update(policy, optimizer, chosen, prepared, parts=4)
    before = [p.detach().clone() for p in policy.parameters()]
    resting = prepared.replace(loss_mask_bt=torch.zeros_like(prepared.mask_bt))
    assert update(policy, optimizer, chosen, resting, parts=4) == {"loss": 0, "rows_trained": 0}
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    one_group = prepared.mask_bt & (prepared.group_b == 2)[:, None]
    metrics = update(policy, optimizer, chosen, prepared.replace(loss_mask_bt=one_group), parts=4)
    assert 0 < metrics["rows_trained"] <= 1 / 4  # one minibatch of four
    assert all(int(state["step"]) == 4 + 1 for state in optimizer.state.values())


@pytest.mark.parametrize("couples", ["sequence", "batch"])
def test_a_dead_step_has_no_averages_that_could_dilute_those_of_others(
    couples: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, grpo = make_policy(), method("grpo")
    monkeypatch.setattr(type(grpo), "couples", couples)
    prepared = grpo.compute_advantages(make_batch(policy).replace(reward_b=torch.zeros(16, dtype=torch.float64)))
    metrics = accumulate(policy, grpo, grpo.compute_loss_weights(prepared))
    assert metrics["rows_trained"] == 0
    assert not {"ratio_mean", "kl_old", "clip_fraction"} & metrics.keys()
    alive = accumulate(policy, grpo, grpo.compute_loss_weights(grpo.compute_advantages(make_batch(policy))))
    assert alive["ratio_mean"] > 0.5


def test_the_sampler_is_compared_at_the_first_step_alone() -> None:
    """The policy has moved by the second step: its difference would say nothing of the sampler."""
    policy, grpo = make_policy(), method("grpo")
    learner = Learner(policy, torch.optim.SGD(policy.parameters(), lr=0.1), grpo, parts=2)
    for number, step in enumerate(learner.steps(grpo.compute_advantages(make_batch(policy)))):
        found = learner.take(step)
        assert ("logp_gap_mean" in found) == ("logp_gap_max" in found) == (number == 0)
        learner.told.append(found)
    assert number == 1


def test_the_gap_of_an_update_is_that_of_its_first_step() -> None:
    policy, grpo = make_policy(), method("grpo")
    prepared = grpo.compute_advantages(make_batch(policy))
    state = policy.trainable_state()
    first = update(policy, torch.optim.SGD(policy.parameters(), lr=0.1), grpo, prepared)
    policy.load_trainable_state(state)
    found = update(policy, torch.optim.SGD(policy.parameters(), lr=0.1), grpo, prepared, epochs=3)
    assert first["logp_gap_mean"] > 0
    assert {name: found[name] for name in ("logp_gap_mean", "logp_gap_max")} == pytest.approx(
        {name: first[name] for name in ("logp_gap_mean", "logp_gap_max")}
    )


def test_a_gradient_that_is_not_finite_stops_before_the_step() -> None:
    policy = make_policy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    grpo = method("grpo")
    prepared = grpo.compute_advantages(make_batch(policy))
    prepared = prepared.replace(advantage_bt=prepared.advantage_bt * 1e200)
    before = [p.detach().clone() for p in policy.parameters()]
    with pytest.raises(RunError, match="not finite"):
        update(policy, optimizer, grpo, prepared)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def with_values(policy: CausalPolicy) -> Batch:
    batch = make_batch(policy)
    return batch.replace(value_bt=torch.rand(batch.size, generator=torch.Generator().manual_seed(2)).double())


def test_a_learner_takes_policy_and_critic_apart() -> None:
    """The whole gradient is that of the policy's loss plus that of the critic's."""
    policy, ppo = make_policy(value_head=True), method("ppo")
    learner = Learner(policy, torch.optim.SGD(policy.parameters(), lr=0.0), ppo)
    (step,) = learner.steps(ppo.compute_advantages(with_values(policy)))
    losses, found = [], []
    for pull in (learner.accumulate, learner.without_critic().accumulate, learner.accumulate_values):
        losses.append(pull(step))
        found.append(
            torch.cat(
                [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in policy.parameters()]
            )
        )
        for p in policy.parameters():
            p.grad = None
    torch.testing.assert_close(found[1] + found[2], found[0], rtol=1e-9, atol=1e-13)
    assert min(float(x.norm()) for x in found) > 0
    assert losses[2]["value_loss"] == pytest.approx(losses[0]["value_loss"], rel=1e-10)
    value, logp_bt = learner.evaluate(step)
    assert value == pytest.approx(losses[1]["loss"], rel=1e-10)
    assert not logp_bt.requires_grad


def test_a_learn_part_that_takes_every_step_changes_nothing() -> None:
    class Plain(Update):
        kind = "update"

        def __call__(self, learner: Learner, prepared: Batch):
            for step in learner.steps(prepared):
                yield learner.take(step)

    found = []
    for learn in (None, Plain()):
        policy = make_policy()
        grpo = dataclasses.replace(method("grpo"), update=learn)
        optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
        metrics = update(
            policy, optimizer, grpo, grpo.compute_advantages(make_batch(policy)), parts=2, epochs=2, seed=5
        )
        found.append((torch.cat([p.detach().flatten() for p in policy.parameters()]), metrics))
    assert torch.equal(found[0][0], found[1][0])
    left_out = {"gradient_signal", "gradient_noise"}  # an update part may sample in between: noise is not measured
    assert {name: x for name, x in found[0][1].items() if name not in left_out} == found[1][1]


def test_learning_rate_rises_and_falls() -> None:
    linear = Optim(lr=1.0, warmup_steps=4, schedule="linear", min_lr_ratio=0.1)
    assert [learning_rate(linear, s, 14) for s in (0, 3, 4, 9)] == pytest.approx([0.25, 1.0, 1.0, 0.55])
    cosine = Optim(lr=2.0, schedule="cosine", min_lr_ratio=0.0)
    assert learning_rate(cosine, 5, 10) == pytest.approx(1.0)
    assert learning_rate(Optim(lr=3.0, schedule="constant"), 99, 100) == 3.0


def test_rows_whose_derivatives_cancel_but_for_rounding_are_not_trained() -> None:
    """Whether two equal terms leave exactly 0 hangs on the order of their sums."""
    x = torch.tensor([[0.1 + 0.2 - 0.3, 0.0], [0.0, -1.0], [1e-9, 0.0], [0.0, 0.0]], dtype=torch.float64)
    assert x[0, 0] > 0
    assert sloping(x).tolist() == [False, True, True, False]
    assert sloping(x.float()[:, :, None]).tolist() == [False, True, False, False], "float32 rounds at 1e-7"
    assert sloping(torch.zeros(2, 3)).tolist() == [False, False]
