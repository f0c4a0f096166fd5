"""FixPO's update: a penalty on the KL of whole distributions, its weight, and steps until no state is outside."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

import grouprl
from grouprl import InputError, method
from grouprl.algorithms.objective.importance import Importance
from grouprl.algorithms.update.papers.fix_up import FixUp, Tether
from grouprl.core.batch import Batch
from grouprl.policy import ArrayInputs, Build, Mlp
from grouprl.policy.vectors.array_distributions import MultiCategorical, divergence
from grouprl.policy.vectors.bounded_distributions import MixtureOfNormals, SquashedNormal
from grouprl.protocols import Box, ComparablePolicy, Discrete, Spaces
from grouprl.training.update import update
from part_context import PartContext

UNBOUNDED = method("ppo_control", size=4).with_parts(objective=Importance())
SPACES = Spaces(observation=Box((3,)), action=Discrete(4))


def rollout(count: int = 12) -> tuple[Mlp, Batch]:
    torch.manual_seed(0)
    policy = Mlp(Build(SPACES, seed=1, values=True, dtype=torch.float64), hidden=(8,))
    inputs = ArrayInputs.of(list(torch.randn(count, 1, 3).numpy()), [[n % 4] for n in range(count)])
    found = policy.evaluate(inputs, ("log_prob", "value"))
    batch = Batch(
        mask_bt=inputs.present_bt(),
        group_b=torch.arange(count),
        reward_b=torch.arange(count, dtype=torch.float64) % 4,
        old_bt=found["log_prob"],
        value_bt=found["value"],
        turn_bt=torch.zeros(count, 1, dtype=torch.int64),
        turn_reward_bs=torch.arange(count, dtype=torch.float64)[:, None] % 4,
        inputs=inputs,
    )
    return policy, batch


def stepped(entry: Any, lr: float = 0.5, epochs: int = 3) -> tuple[Mlp, Mlp, Batch, dict[str, float], PartContext]:
    policy, batch = rollout()
    before, context = policy.copied(trainable=False), PartContext()
    optimizer = torch.optim.SGD(policy.parameters(), lr)
    prepared = entry.compute_advantages(batch)
    found = update(policy, optimizer, entry, prepared, epochs=epochs, grad_clip=0.0, context=context)  # type: ignore[arg-type]
    return policy, before, batch, found, context


def weights(policy: Mlp) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in policy.parameters()])


def test_the_kl_of_two_categoricals_and_its_gradient() -> None:
    """Old (½, ½), new (¼, ¾): ½·log 2 + ½·log ⅔ = 0.1438; its slope by the new logits is new - old."""
    logit_na = torch.tensor([[0.0, math.log(3)]], dtype=torch.float64, requires_grad=True)
    before = Categorical(logits=torch.zeros(1, 2, dtype=torch.float64))
    kl_n = divergence(before, Categorical(logits=logit_na))
    assert float(kl_n.detach()) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    kl_n.sum().backward()
    assert torch.allclose(logit_na.grad, torch.tensor([[-0.25, 0.25]], dtype=torch.float64))  # type: ignore[arg-type]


def test_the_kl_of_normals_squashed_or_not_and_of_several_numbers() -> None:
    """N(0, 1) to N(1, 2): log 2 + (1 + 1)/8 - ½ in each of two dimensions; squashing leaves it; categoricals add up."""
    zero, one, two = (torch.full((1, 2), x) for x in (0.0, 1.0, 2.0))
    expected = 2 * (math.log(2) + 2 / 8 - 0.5)
    normals = [Independent(Normal(mean, std), 1) for mean, std in ((zero, one), (one, two))]
    assert float(divergence(*normals)) == pytest.approx(expected)
    low, high = -torch.ones(2), torch.ones(2)
    squashed = [SquashedNormal(mean, std, low, high) for mean, std in ((zero, one), (one, two))]
    assert float(divergence(*squashed)) == pytest.approx(expected)
    half, quarter = torch.zeros(1, 2), torch.tensor([[0.0, math.log(3)]])
    both = divergence(MultiCategorical([half, half]), MultiCategorical([quarter, half]))
    assert float(both) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    mixed = MixtureOfNormals(zero, torch.zeros(1, 2, 1), torch.ones(2, 1))
    with pytest.raises(InputError, match="no closed form"):
        divergence(mixed, mixed)


def test_a_policy_compares_itself_with_a_copy_and_illegal_actions_count_nothing() -> None:
    policy, batch = rollout()
    inputs: Any = batch.inputs
    other = policy.copied()
    assert isinstance(policy, ComparablePolicy)
    assert torch.equal(policy.kl_from(other, inputs), torch.zeros(12, 1, dtype=torch.float64))
    with torch.no_grad():
        policy.parameters()[-1 if policy.critic is None else 3].add_(torch.tensor([1.0, 0, 0, 0]).double())
    legal = ArrayInputs.of(
        list(inputs.observation_bt.numpy()), [[1]] * 12, legal_bta=[[[False, True, True, True]]] * 12
    )
    assert bool((policy.kl_from(other, inputs) > 0).all())
    assert torch.allclose(policy.kl_from(other, legal), torch.zeros(12, 1, dtype=torch.float64), atol=1e-12)


def test_the_gradient_of_the_penalty_is_that_of_finite_differences() -> None:
    policy, batch = rollout()
    other, inputs = policy.copied(trainable=False), batch.inputs
    weight = policy.parameters()[0]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(3)
    policy.kl_from(other, inputs, grad=True).mean().backward()  # type: ignore[arg-type]
    slope = float(weight.grad[0, 0])  # type: ignore[index]
    found = []
    for by in (1e-6, -1e-6):
        with torch.no_grad():
            weight[0, 0] += by
            found.append(float(policy.kl_from(other, inputs).mean()))  # type: ignore[arg-type]
            weight[0, 0] -= by
    assert slope == pytest.approx((found[0] - found[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.05, 0.2])
def test_no_state_is_outside_at_the_end_while_the_first_phase_alone_leaves_some_there(epsilon: float) -> None:
    settings = {"size": 4, "epsilon": epsilon, "start": 0.1, "beta_lr": 0.1, "entropy_coef": 0.0}
    policy, before, batch, found, _ = stepped(method("fixpo", **settings))
    kl_bt = policy.kl_from(before, batch.inputs)  # type: ignore[arg-type]
    assert 0 < float(kl_bt.max()) <= epsilon
    assert (found["kl_worst"], found["fix_undone"]) == (pytest.approx(float(kl_bt.max())), 0.0)
    assert found["fix_steps"] > 0
    moved, before, batch, _, _ = stepped(UNBOUNDED)
    assert float(moved.kl_from(before, batch.inputs).max()) > epsilon  # type: ignore[arg-type]


def test_without_a_penalty_and_a_bound_it_is_the_update_on_shuffled_actions() -> None:
    settings = {"size": 4, "entropy_coef": 0.0}
    free, *_ = stepped(method("fixpo", epsilon=1e9, start=0.0, **settings))
    plain, *_ = stepped(UNBOUNDED)
    assert torch.equal(weights(free), weights(plain))


def test_an_update_that_stays_outside_is_undone() -> None:
    settings = {"size": 4, "epsilon": 1e-9, "start": 1.0, "sweeps": 1}
    policy, before, batch, found, _ = stepped(method("fixpo", **settings))
    assert (found["fix_undone"], found["kl_worst"]) == (1.0, 0.0)
    assert torch.equal(policy.kl_from(before, batch.inputs), torch.zeros(12, 1, dtype=torch.float64))  # type: ignore[arg-type]


def test_the_weight_of_the_penalty_follows_the_worst_state_and_is_remembered() -> None:
    """The first step of Adam is its rate: β rises by 0.01 for a KL of 0.2 (2·0.2 > 0.2), falls for one of 0.05."""
    policy, _ = rollout()
    part, context = FixUp(epsilon=0.2, start=1.0), PartContext()
    for worst, expected in ((0.2, 1.01), (0.05, 0.99)):
        tether = Tether(part, Learner(context), policy)  # type: ignore[arg-type]
        tether.follow(worst)
        assert tether.weight == pytest.approx(expected)
    tether.follow(0.05)
    tether.remember()
    again = Tether(part, Learner(context), policy)  # type: ignore[arg-type]
    assert again.weight == pytest.approx(0.98, abs=1e-4)
    for _ in range(200):
        again.follow(0.0)
    assert again.weight == 0.0


def test_the_moments_of_the_weight_are_remembered_too() -> None:
    policy, _ = rollout()
    part, apart, whole = FixUp(epsilon=0.2, start=1.0), Learner(PartContext()), Learner(PartContext())
    without_break = Tether(part, whole, policy)  # type: ignore[arg-type]
    for worst in (0.9, 0.12, 0.05):
        without_break.follow(worst)
        with_breaks = Tether(part, apart, policy)  # type: ignore[arg-type]
        with_breaks.follow(worst)
        with_breaks.remember()
        assert with_breaks.weight == without_break.weight


@dataclass
class Learner:
    """A learner of which the penalty reads the memory alone."""

    context: PartContext


def test_a_text_policy_is_told_what_can_be_compared() -> None:
    with pytest.raises(InputError, match="bounds the KL of whole distributions"):
        next(iter(FixUp()(Plain(), small_batch())))  # type: ignore[arg-type]


class Plain:
    """A learner whose policy compares no distributions."""

    policy = object()


def small_batch() -> Batch:
    return rollout()[1]


def test_a_run_holds_the_bound_in_every_step(tmp_path: Any) -> None:
    grouprl.train(
        {
            "task": {"name": "control:CartPole-v1", "horizon": 16},
            "model": {"name": "mlp", "settings": {"hidden": [16]}},
            "method": {"name": "fixpo", "size": 16, "epsilon": 0.02},
            "steps": 4,
            "batch": {"prompts": 4, "group_size": 1, "epochs": 4},
            "optim": {"lr": 0.02},
            "eval": {"every": 0, "prompts": 2, "final_prompts": 2},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "train"]
    assert all(0 < row["kl_worst"] <= 0.02 for row in rows)
    assert sum(row["fix_steps"] for row in rows) > 0
