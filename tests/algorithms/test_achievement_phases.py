"""PPO-AD: what comes next, what is the same, and the phases in which an encoder learns both."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl import InputError, method
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.achievement_phases import AchievementPhases, Phase, contrast
from grouprl.algorithms.update.papers.achievement_steps import (
    Unlockings,
    last_of_rows,
    matched,
    next_unlocks,
    paid_by_action,
    shuffled_in_rows,
    steps_of,
    trajectories,
    transport,
)
from grouprl.core.batch import Batch
from grouprl.policy import Achievements, ArrayInputs, Build, Mlp
from grouprl.protocols import Box, DictSpace, Discrete, Spaces
from grouprl.records.unlocking import FROM, NOW, TO
from grouprl.training.update import Learner, update
from part_context import ClockedContext

OWN = Box((3,))
SPACES = Spaces(DictSpace(dict.fromkeys((NOW, FROM, TO), OWN)), Discrete(2))
LENGTHS = (4, 3, 5)
PAID = ([0, 1, 0, 1], [0, 0, 0], [1, 0, 1, 0, 0])
RUN: dict[str, Any] = {
    "task": {"name": "env:grouprl.envs.construction.workshop:Workshop", "turns": 20},
    "model": {"name": "achievements", "settings": {"hidden": [16]}},
    "batch": {"prompts": 4, "group_size": 1, "epochs": 2},
    "optim": {"lr": 0.01},
    "steps": 4,
    "warmup": {"steps": 0},
    "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
}


def policy_of() -> Achievements:
    return Achievements(Build(SPACES, seed=1, values=True, dtype=torch.float64), hidden=(8, 6))


def rows() -> ArrayInputs:
    luck = np.random.default_rng(0)

    def seen(*shape: int) -> dict[str, np.ndarray]:
        return {name: luck.standard_normal((*shape, 3)).astype(np.float32) for name in (NOW, FROM, TO)}

    acts = [luck.integers(0, 2, n) for n in LENGTHS]
    return ArrayInputs.of([seen(n) for n in LENGTHS], acts, final_b=[seen() for _ in LENGTHS])


def padded(values: Any) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=torch.float64) for row in values], True)


def rollout(policy: Achievements | Mlp) -> Batch:
    inputs = rows()
    found = policy.evaluate(inputs, ("log_prob", "value"))
    place_bt = torch.arange(5).expand(3, 5)
    return Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.arange(3),
        reward_b=torch.tensor([2.0, 0.0, 2.0], dtype=torch.float64),
        old_bt=found["log_prob"],
        value_bt=found["value"],
        turn_bt=torch.where(inputs.present_bt(), place_bt, -1),
        turn_reward_bs=padded(PAID),
        inputs=inputs,
    )


def unlocking(targets: torch.Tensor | None = None) -> Unlockings:
    paid_n = torch.cat([torch.tensor(row, dtype=torch.float64) for row in PAID])
    return trajectories(rows(), paid_n, torch.arange(12.0) if targets is None else targets, 0.1)


def weights(policy: Achievements) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in policy.parameters()])


def stepped(
    name: str, step: int = 0, context: ClockedContext | None = None, **settings: Any
) -> tuple[Achievements, Any]:
    policy, entry = policy_of(), method(name, size=4, **settings)
    optimizer = torch.optim.SGD(policy.parameters(), 0.1)
    prepared, context = entry.compute_advantages(rollout(policy)), context or ClockedContext()
    context.step = step
    return policy, update(policy, optimizer, entry, prepared, epochs=2, context=context)  # type: ignore[arg-type]


def test_rows_that_unlock_something_are_kept_with_what_follows_each_action() -> None:
    found, inputs = unlocking(), rows()
    assert found.row_n.tolist() == [0] * 4 + [1] * 5
    assert found.unlocked_n.tolist() == [False, True, False, True, True, False, True, False, False]
    assert found.target_n.tolist() == [0, 1, 2, 3, 7, 8, 9, 10, 11]
    now_bt: Any = inputs.observation_bt[NOW]  # type: ignore[index]
    final_b: Any = inputs.final_b[NOW]  # type: ignore[index]
    assert torch.equal(found.before, torch.cat([now_bt[0, :4], now_bt[2]]))  # type: ignore[arg-type]
    expected = torch.cat([now_bt[0, 1:4], final_b[:1], now_bt[2, 1:], final_b[2:]])
    assert torch.equal(found.after, expected)  # type: ignore[arg-type]
    assert len(found.inputs) == 9


def test_what_is_paid_no_more_than_the_limit_unlocks_nothing() -> None:
    paid_n = torch.tensor([0.0, 0.1, 0, 1, *[0.1] * 3, 0.1, 0, 0, 0, 0], dtype=torch.float64)
    found = trajectories(rows(), paid_n, torch.arange(12.0), 0.1)
    assert found.row_n.tolist() == [0] * 4, "other rows are not kept"
    assert found.unlocked_n.tolist() == [False, False, False, True]


def test_the_next_achievement_of_each_action_by_hand() -> None:
    found = unlocking()
    next_n, known_n = next_unlocks(found.row_n, found.unlocked_n)
    assert next_n.tolist() == [1, 1, 3, 3, 4, 6, 6, 8, 8]
    assert known_n.tolist() == [True] * 7 + [False] * 2
    assert last_of_rows(found.row_n).nonzero()[:, 0].tolist() == [3, 8]
    before, after = steps_of(found, next_n, known_n)
    assert torch.equal(before, found.before[next_n])  # type: ignore[index, arg-type]
    assert not after[7:].any()  # type: ignore[union-attr, index]
    assert torch.equal(after[:7], found.after[next_n[:7]])  # type: ignore[index]


def test_what_was_paid_for_each_action_is_the_reward_of_its_turn() -> None:
    assert torch.equal(paid_by_action(rollout(policy_of()), "test"), padded(PAID))


def test_actions_are_shuffled_within_their_rows() -> None:
    row_n = torch.tensor([0] * 4 + [1] * 5)
    mixed = [shuffled_in_rows(row_n, np.random.default_rng(seed)) for seed in range(5)]
    assert all(torch.equal(row_n[x], row_n) and sorted(x.tolist()) == list(range(9)) for x in mixed)
    assert len({tuple(x.tolist()) for x in mixed}) > 1


def test_the_plan_of_one_source_and_two_targets_by_hand() -> None:
    """The mass 1 of one source is split by softmax(-cost/reg), as no target is full: exp(-0.2/0.2) to 1."""
    cost = torch.tensor([[[0.0, 0.2]]], dtype=torch.float64)
    plan = transport(cost, torch.ones(1, 1, 2, dtype=torch.bool), 0.2, 50)
    share = 1 / (1 + math.exp(-1))
    assert plan[0, 0].tolist() == pytest.approx([share, 1 - share], abs=1e-9)


def test_the_plan_of_two_by_two_by_hand() -> None:
    """Full rows and columns leave one number p: p²/(1-p)² = exp(-(0.1 + 0.3 - 0.4 - 0.2)/reg)."""
    cost = torch.tensor([[[0.1, 0.4], [0.2, 0.3]]], dtype=torch.float64)
    plan = transport(cost, torch.ones(1, 2, 2, dtype=torch.bool), 0.1, 400)[0]
    odds = math.exp(0.5 * 0.2 / 0.1)
    assert plan.flatten().tolist() == pytest.approx(
        [odds / (1 + odds), 1 / (1 + odds), 1 / (1 + odds), odds / (1 + odds)]
    )


def test_a_plan_moves_all_that_can_be_moved_and_nothing_of_what_is_not_there() -> None:
    luck = torch.Generator().manual_seed(0)
    cost = torch.rand(4, 3, 5, generator=luck, dtype=torch.float64)
    there = torch.ones(4, 3, 5, dtype=torch.bool)
    there[1, :, 2:] = False
    plan = transport(cost, there, 0.05, 200)
    assert plan.sum((1, 2)).tolist() == pytest.approx([3, 2, 3, 3])
    assert float(plan.sum(1).max()) <= 1 + 1e-3
    assert float(plan.sum(2).max()) <= 1 + 1e-3
    assert not plan[1, :, 2:].any()
    alone = transport(cost[1:2, :, :2], there[1:2, :, :2], 0.05, 200)
    assert torch.allclose(plan[1, :, :2], alone[0]), "padding moves nothing"


def of_orders(*orders: list[int], noise: float = 0.0) -> tuple[Unlockings, torch.Tensor, torch.Tensor]:
    """Trajectories whose every action unlocks, φ of kind k being a unit vector, and the kind of each action."""
    kind_n = torch.tensor([kind for order in orders for kind in order])
    row_n = torch.tensor([row for row, order in enumerate(orders) for _ in order])
    phi_nh = torch.eye(8, dtype=torch.float64)[kind_n]
    phi_nh = phi_nh + noise * torch.randn(phi_nh.shape, generator=torch.Generator().manual_seed(0))
    nothing: Any = None
    found = Unlockings(nothing, nothing, nothing, row_n, torch.ones(len(row_n), dtype=torch.bool), row_n)
    return found, torch.nn.functional.normalize(phi_nh, dim=-1), kind_n


def test_the_same_achievements_in_another_order_are_found() -> None:
    found, phi_nh, kind_n = of_orders([0, 1, 2, 3, 4], [3, 0, 4, 2, 1], noise=0.05)
    pairs = matched(found, phi_nh, 16, 0.05, 100, np.random.default_rng(0))
    assert sorted(zip(pairs.source_p.tolist(), pairs.same_p.tolist(), strict=True)) == [
        *((0, 6), (1, 9), (2, 8), (3, 5), (4, 7)),
        *((5, 3), (6, 0), (7, 4), (8, 2), (9, 1)),
    ]
    assert torch.equal(kind_n[pairs.source_p], kind_n[pairs.same_p])
    assert torch.equal(found.row_n[pairs.other_p], found.row_n[pairs.same_p])


def test_trajectories_of_different_lengths_pair_what_both_have() -> None:
    found, phi_nh, kind_n = of_orders([0, 1, 2], [2, 0, 1, 5, 3], [1])
    pairs = matched(found, phi_nh, 16, 0.05, 100, np.random.default_rng(0))
    assert torch.equal(kind_n[pairs.source_p], kind_n[pairs.same_p])
    assert len(pairs.source_p) == 2 * (3 + 1 + 1)
    few = matched(found, phi_nh, 1, 0.05, 100, np.random.default_rng(0))
    assert len(few.source_p) < len(pairs.source_p)


def test_equal_costs_pair_nothing_and_one_trajectory_neither() -> None:
    """Two of the same kind share the plan, 0.5 each, which is not more than half."""
    found, phi_nh, _ = of_orders([0], [0, 0])
    assert len(matched(found, phi_nh, 16, 0.05, 100, np.random.default_rng(0)).source_p) == 0
    found, phi_nh, _ = of_orders([0, 1, 2])
    assert len(matched(found, phi_nh, 16, 0.05, 100, np.random.default_rng(0)).source_p) == 0


def test_the_contrast_by_hand() -> None:
    """Cosines 1 and 0.5 at τ 0.5: log(1 + e^-1); equal ones: log 2, a guess."""
    anchor, near = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[1.0, 0.0]]).double()
    far = torch.tensor([[0.5, math.sqrt(0.75)]]).double()
    assert float(contrast(anchor, near, far, 0.5)) == pytest.approx(math.log1p(math.exp(-1)))
    assert float(contrast(anchor, near, near, 0.5)) == pytest.approx(math.log(2))


def phase(policy: Achievements, found: Unlockings | None = None, adam: float = 0.0, **settings: Any) -> Phase:
    own = policy.parameters()
    optimizer = torch.optim.Adam(own, adam) if adam else torch.optim.SGD(own, 0.1)
    learner = Learner(policy, optimizer, method("ppo_ad"), grad_clip=0.0, context=ClockedContext())  # type: ignore[arg-type]
    return Phase(AchievementPhases(**settings), learner, found or unlocking())  # type: ignore[arg-type]


def test_an_untrained_policy_guesses() -> None:
    """h hardly depends on the moment at first: log 2 to within 0.3, over several encoders."""
    losses = []
    for seed in range(8):
        policy = Achievements(Build(SPACES, seed=seed, values=True, dtype=torch.float64), hidden=(64,))
        losses += [float(term.loss.detach()) for term in phase(policy, temperature=1.0).foresights()]
    assert np.mean(losses) == pytest.approx(math.log(2), abs=0.1)


@pytest.mark.parametrize(
    ("kind", "weight"), [("matches", "encoder.0.weight"), ("foresights", "foresight.next.0.weight")]
)
def test_the_gradient_of_a_phase_is_that_of_finite_differences(kind: str, weight: str) -> None:
    """What the anchor or the positive is held at stays as it was: gradients go through one side alone."""
    policy = policy_of()
    made = phase(policy)
    parameter = dict(policy.named_parameters())[weight]
    found, part = made.found, made.part
    next_n, known_n = next_unlocks(found.row_n, found.unlocked_n)
    other_n = shuffled_in_rows(found.row_n, np.random.default_rng(3))
    at = torch.tensor([1, 3])
    with torch.no_grad():
        next_nh = policy.represent(*steps_of(found, next_n, known_n))
        near, far = (policy.represent(*steps_of(found, torch.tensor(x))) for x in ([4, 6], [6, 4]))

    def loss() -> torch.Tensor:
        if kind == "matches":
            return part.contrast(policy.represent(*steps_of(found, at)), near, far)
        here, there = policy.foresee(found.inputs), policy.foresee(found.inputs.rows(other_n.tolist()))  # type: ignore[arg-type]
        return part.contrast(next_nh, here, there)

    loss().backward()
    slope, sides = float(parameter.grad[0, 0]), []  # type: ignore[index]
    for by in (1e-6, -1e-6):
        with torch.no_grad():
            parameter[0, 0] += by
            sides.append(float(loss()))
            parameter[0, 0] -= by
    assert slope == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-5, abs=1e-9)
    assert slope != 0


def test_a_step_is_the_loss_and_what_holds_the_policy() -> None:
    """One step of SGD: the gradient of loss + c_π·KL + c_V·(V - G)², each on the term's own actions."""
    policy = policy_of()
    made = phase(policy, kl_coef=0.5, value_coef=2.0)
    with torch.no_grad():
        policy.module["mean"][0].weight[0].add_(0.3)  # type: ignore[index]
    before = weights(policy)
    term = next(iter(made.foresights()))
    kl = policy.kl_to(made.before, term.inputs).mean()  # type: ignore[arg-type]
    value_n = policy.evaluate(term.inputs, ("value",), grad=True)["value"][:, 0]  # type: ignore[arg-type]
    total = term.loss + 0.5 * kl + 2 * (value_n - term.target_n).square().mean()
    slopes = torch.autograd.grad(total, policy.parameters(), allow_unused=True, retain_graph=True)
    slope = torch.cat(
        [
            (torch.zeros_like(p) if s is None else s).reshape(-1)
            for s, p in zip(slopes, policy.parameters(), strict=True)
        ]
    )
    found = made.take(term)
    assert torch.allclose(before - weights(policy), 0.1 * slope)
    assert found["phase_kl"] == pytest.approx(float(kl.detach()))
    assert float(kl.detach()) > 1e-4, "all logits were moved alike"


def test_phases_teach_what_comes_next() -> None:
    made = phase(policy_of(), passes=60, value_coef=0.0)
    found = list(made.steps())
    series = [step["next_loss"] for step in found if "next_loss" in step]
    assert np.mean(series[-10:]) < np.mean(series[:10]) - 0.2
    assert max(step["phase_kl"] for step in found) < 0.1


def test_phases_teach_what_is_the_same() -> None:
    """Steps of three kinds, in six orders, that are hard to see beside noise in what does not matter."""
    luck = torch.Generator().manual_seed(0)
    kind_n = torch.cat([torch.randperm(3, generator=luck) for _ in range(6)])
    before = torch.randn(18, 6, generator=luck)
    change = torch.cat([torch.eye(3)[kind_n], 0.5 * torch.randn(18, 3, generator=luck)], 1)
    row_n, there_n = torch.arange(18) // 3, torch.ones(18, dtype=torch.bool)
    inputs = ArrayInputs.apart(before, torch.zeros(18, dtype=torch.int64))
    found = Unlockings(inputs, before, before + change, row_n, there_n, torch.zeros(18))
    policy = Achievements(Build(Spaces(Box((6,)), Discrete(2)), seed=1, values=True), hidden=(16,))

    def right() -> float:
        pairs = matched(found, policy.represent(before, before + change), 16, 0.05, 100, np.random.default_rng(0))
        return float((kind_n[pairs.source_p] == kind_n[pairs.same_p]).double().mean())

    first = right()
    steps = list(phase(policy, found, adam=0.01, passes=100, value_coef=0.0).steps())
    series = [step["match_loss"] for step in steps if "match_loss" in step]
    assert np.mean(series[-10:]) < np.mean(series[:10]) - 0.05
    assert right() >= first, "as many pairs are of one kind as before, or more"


def test_without_a_phase_it_is_ppo_bit_by_bit() -> None:
    plain, _ = stepped("ppo_control")
    late, found = stepped("ppo_ad", every=200)
    assert torch.equal(weights(plain), weights(late))
    assert "next_loss" not in found
    due, found = stepped("ppo_ad", every=1)
    assert not torch.equal(weights(plain), weights(due))
    assert found["next_loss"] > 0


def test_a_phase_comes_after_every_so_many_rollouts_on_all_of_them() -> None:
    context = ClockedContext(steps=5)
    notes = []
    for step in range(5):
        _, found = stepped("ppo_ad", step, context, every=2, passes=1)
        notes.append(("next_loss" in found, len(context.store.get("rollouts", []))))
    assert notes == [(False, 1), (True, 0), (False, 1), (True, 0), (False, 1)], "the fifth waits for more steps"


def test_stored_rollouts_are_the_trajectories_of_all() -> None:
    policy = policy_of()
    entry = method("ppo_ad", size=4, every=2)
    prepared = entry.compute_advantages(rollout(policy))
    learner = Learner(policy, None, entry, context=ClockedContext())  # type: ignore[arg-type]
    part: Any = entry.update
    kept = [part.kept(learner, prepared) for _ in range(2)]
    found = part.stored(kept)
    assert found.row_n.tolist() == [0] * 4 + [1] * 5 + [2] * 4 + [3] * 5
    assert torch.equal(found.target_n[:4], prepared.return_bt[0, :4])
    assert torch.equal(found.before[:9], found.before[9:])


def test_rollouts_that_unlock_nothing_have_no_phase() -> None:
    policy, plain = policy_of(), policy_of()
    for name, each in (("ppo_ad", policy), ("ppo_control", plain)):
        entry = method(name, size=4, **({"every": 1} if name == "ppo_ad" else {}))
        nothing = rollout(each).replace(turn_reward_bs=torch.zeros(3, 5, dtype=torch.float64))
        prepared = entry.compute_advantages(nothing)
        update(each, torch.optim.SGD(each.parameters(), 0.1), entry, prepared, context=ClockedContext())  # type: ignore[arg-type]
    assert torch.equal(weights(policy), weights(plain))


def test_other_policies_are_refused() -> None:
    policy = Mlp(Build(SPACES, values=True, dtype=torch.float64), hidden=(4,))
    entry = method("ppo_ad", size=4, every=1)
    prepared = entry.compute_advantages(rollout(policy))
    with pytest.raises(InputError, match="model: achievements"):
        update(policy, torch.optim.SGD(policy.parameters(), 0.1), entry, prepared, context=ClockedContext())  # type: ignore[arg-type]


def test_a_run_too_short_for_a_phase_is_told_so() -> None:
    assert "has no phase" in AchievementPhases(every=8).idle(RunFacts(steps=7))[0]
    assert AchievementPhases(every=8).idle(RunFacts(steps=8)) == []
    assert "after every 8 rollouts make 6 passes" in AchievementPhases().words()


def test_a_run_has_its_phases(tmp_path: Any) -> None:
    folder = tmp_path / "run"
    grouprl.train(
        RUN | {"method": {"name": "ppo_ad", "every": 2, "passes": 1}, "run": {"folder": str(folder), "threads": 1}}
    )
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    phases = ["next_loss" in row for row in rows if row["phase"] == "train"]
    assert phases == [False, True, False, True]
