"""HARPG's update: products with the Hessian of the expected loss, and the momentum that they correct."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from grouprl import method
from grouprl.algorithms.objective.importance import flat
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.update.papers.hessian_aided import HessianAided, curved
from grouprl.algorithms.vectors import vectors_here
from grouprl.core.batch import Batch
from grouprl.policy import ArrayInputs, Build, Mlp
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.training.update import Learner

SPACES = Spaces(observation=Box((2,)), action=Discrete(3))
SEEN = np.array([0.5, -1.0], np.float32)
PAY = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
WALK = "env:grouprl.envs.construction.coverage:CoverageWalk"


@dataclass
class Samples:
    """Rows, all of them valid, that a context makes a batch of."""

    count: int = 3

    def __len__(self) -> int:
        return self.count

    @property
    def valid_b(self) -> np.ndarray:
        return np.zeros(self.count, dtype=bool)


@dataclass
class Context:
    """Luck, memory and samples of a run; where the policy stood when it sampled is kept."""

    policy: Mlp
    prompts: int = 1
    store: dict[str, Any] = field(default_factory=dict)
    sampled_at: list[torch.Tensor] = field(default_factory=list)

    def state_of(self, part: object) -> dict[str, Any]:
        return self.store

    def rng(self, part: object) -> np.random.Generator:
        return np.random.default_rng(7)

    def acting(self, policy: object) -> Any:
        return nullcontext()

    def note(self, name: str, value: float) -> None:
        assert (name, value) == ("completions_probed", 3)

    def take(self, count: int) -> list[int]:
        return list(range(count))

    def sample(self, requests: object, *, count_failures: bool) -> Samples:
        self.sampled_at.append(flat(self.policy.parameters()))
        return Samples()


def chooser() -> Mlp:
    policy = Mlp(Build(SPACES, seed=3, dtype=torch.float64), hidden=(4,))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.linspace(-0.4, 0.5, parameter.numel(), dtype=torch.float64).view_as(parameter))
    return policy


def every_outcome(policy: Mlp, learner: Learner) -> Batch:
    """Each action once, weighted by its probability: sums over it are exact expectations."""
    inputs = ArrayInputs.of([SEEN[None]] * 3, [[0], [1], [2]])
    logp_bt = policy.logp(inputs)
    batch = Batch(
        mask_bt=inputs.present_bt(), group_b=torch.arange(3), reward_b=PAY, old_bt=logp_bt, inputs=inputs,
        turn_bt=torch.zeros(3, 1, dtype=torch.int64),
    )  # fmt: skip
    ready = learner.method.compute_loss_weights(learner.method.compute_advantages(batch))
    return ready.replace(weight_bt=logp_bt.exp())


def learner_of(policy: Mlp, part: HessianAided, lr: float = 0.1) -> Learner:
    optimizer = torch.optim.SGD(policy.parameters(), lr)
    entry = method("harpg").with_parts(update=part)
    return Learner(policy, optimizer, entry, context=Context(policy))  # type: ignore[arg-type]


def space_of(learner: Learner) -> Any:
    return vectors_here([each for _, each in learner.policy.named_parameters()], learner.optimizer, {})


def exact(policy: Mlp, way_p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient of -E[pay], and its Hessian times `way_p`, by differentiating the expectation itself twice."""
    own = policy.parameters()
    seen = ArrayInputs.of([SEEN[None]], [[0]]).seen(policy.device, policy.dtype)
    loss = -(policy.distribution(seen, 1.0).probs[0] * PAY).sum()  # type: ignore[attr-defined]
    slopes = torch.autograd.grad(loss, own, create_graph=True)
    along = torch.cat([s.flatten() for s in slopes]) @ way_p
    curves = torch.autograd.grad(along, own)
    return flat([s.detach() for s in slopes]), flat(curves)


def test_the_product_is_that_of_the_hessian_of_the_expected_loss() -> None:
    """Over all outcomes with their probabilities it is exact; without how these move, ∇²Φ alone, it would not be."""
    policy = chooser()
    learner = learner_of(policy, HessianAided())
    before_p = flat(policy.parameters())
    way_p = torch.linspace(1, -1, len(before_p), dtype=torch.float64)
    step = every_outcome(policy, learner)
    found_p = curved(learner, space_of(learner), step, way_p)  # type: ignore[arg-type]
    slope_p, expected_p = exact(policy, way_p)
    assert torch.allclose(found_p, expected_p, atol=1e-6)
    assert float(expected_p.norm()) > 0.1
    assert torch.equal(flat(policy.parameters()), before_p)
    assert all(parameter.grad is None for parameter in policy.parameters())
    learner.accumulate(step)
    assert torch.allclose(flat([p.grad for p in policy.parameters()]), slope_p, atol=1e-9)  # type: ignore[misc]


def test_along_the_step_its_mean_is_the_difference_of_gradients() -> None:
    """Over a fine grid of q, H(θ_q)(θ - θ_before) adds up to ∇L(θ) - ∇L(θ_before)."""
    policy = chooser()
    learner = learner_of(policy, HessianAided())
    before_p = flat(policy.parameters())
    way_p = 0.5 * torch.linspace(-1, 1, len(before_p), dtype=torch.float64).sign()
    ends, products = [], []
    for q in (0.0, *((np.arange(40) + 0.5) / 40), 1.0):
        policy.load_trainable_state(moved(policy, before_p + q * way_p))
        if q in (0.0, 1.0):
            ends.append(exact(policy, way_p)[0])
        else:
            products.append(curved(learner, space_of(learner), every_outcome(policy, learner), way_p))  # type: ignore[arg-type]
    assert torch.allclose(torch.stack(products).mean(0), ends[1] - ends[0], atol=1e-4)


def moved(policy: Mlp, at_p: torch.Tensor) -> dict[str, torch.Tensor]:
    sizes = [p.numel() for p in policy.parameters()]
    pieces = zip(policy.named_parameters(), at_p.split(sizes), strict=True)
    return {name: piece.view_as(parameter) for (name, parameter), piece in pieces}


def test_two_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """η = 1, then ⅔: d = ⅓·(g_0 + v) + ⅔·g_1, and the step has the length 0.1·⅔ along it."""
    policy = chooser()
    part = HessianAided(decay=1.0)
    learner, drift_p = learner_of(policy, part), torch.zeros(len(flat(policy.parameters())), dtype=torch.float64)
    drift_p[0] = 0.3
    monkeypatch.setattr(HessianAided, "drift", lambda *arguments: drift_p)
    gradients, points = [], [flat(policy.parameters())]
    for _ in range(2):
        step = every_outcome(policy, learner)
        gradients.append(uniform_gradient(policy))
        list(part(learner, step))  # type: ignore[arg-type]
        points.append(flat(policy.parameters()))
    assert torch.allclose(points[0] - points[1], 0.1 * gradients[0] / gradients[0].norm(), atol=1e-9)
    d_p = (gradients[0] + drift_p) / 3 + 2 * gradients[1] / 3
    assert torch.allclose(learner.context.store["momentum"], d_p, atol=1e-9)  # type: ignore[union-attr]
    assert torch.allclose(points[1] - points[2], 0.1 * 2 / 3 * d_p / d_p.norm(), atol=1e-9)


def uniform_gradient(policy: Mlp) -> torch.Tensor:
    """The gradient of REINFORCE on the three rows, each of weight ⅓."""
    inputs = ArrayInputs.of([SEEN[None]] * 3, [[0], [1], [2]])
    logp_bt = policy.evaluate(inputs, ("log_prob",), grad=True)["log_prob"]
    return flat(torch.autograd.grad(-(logp_bt[:, 0] * PAY).mean(), policy.parameters()))


def test_completions_are_sampled_between_the_two_last_weights_and_the_weights_come_back() -> None:
    policy = chooser()
    part = HessianAided()
    learner = learner_of(policy, part)
    at_p = flat(policy.parameters())
    way_p = torch.ones_like(at_p)
    found_p = part.drift(learner, space_of(learner), at_p, way_p)  # type: ignore[arg-type]
    context: Any = learner.context
    q = float(np.random.default_rng(7).random())
    assert torch.allclose(context.sampled_at[0], at_p - q * way_p)
    assert torch.equal(flat(policy.parameters()), at_p)
    assert not found_p.any(), "none of its completions is valid"


def test_power_0_is_reinforce_with_steps_of_a_set_length_and_samples_nothing_more() -> None:
    policy = chooser()
    part = HessianAided(power=0.0, decay=0.0)
    learner = learner_of(policy, part)
    context: Any = learner.context
    for _ in range(3):
        before_p, slope_p = flat(policy.parameters()), uniform_gradient(policy)
        list(part(learner, every_outcome(policy, learner)))  # type: ignore[arg-type]
        assert torch.allclose(before_p - flat(policy.parameters()), 0.1 * slope_p / slope_p.norm(), atol=1e-9)
    assert context.sampled_at == []


def test_unnormalised_steps_follow_the_momentum_and_zero_stays_zero() -> None:
    d_p = torch.tensor([3.0, 4.0])
    assert HessianAided(normalised=False).direction(d_p).tolist() == [3, 4]
    assert HessianAided().direction(d_p).tolist() == pytest.approx([0.6, 0.8])
    assert HessianAided().direction(0 * d_p).tolist() == [0, 0]
    assert HessianAided().share(0) == 1.0
    assert HessianAided(power=0.5).share(2) == pytest.approx(0.5**0.5)


def test_what_it_cannot_do_is_refused() -> None:
    part = HessianAided()
    assert part.refuse(RunFacts()) == []
    assert "takes 4" in part.refuse(RunFacts(updates_per_rollout=4))[0]
    assert "async_steps" in part.refuse(RunFacts(async_steps=1))[0]
    assert "stored" in part.refuse(RunFacts(stored=True))[0]
    assert any("corrects nothing" in line for line in HessianAided(power=0).idle(RunFacts()))
    assert part.extra_samples(RunFacts(prompts=2, group_size=4)).startswith("8 further")


def test_a_run_samples_a_second_rollout_in_every_step_but_the_first(tmp_path: Any) -> None:
    grouprl.train(
        {
            "task": {"name": WALK, "turns": 10},
            "model": {"name": "mlp", "settings": {"hidden": [4]}},
            "method": {"name": "harpg", "baseline": "group"},
            "steps": 3,
            "batch": {"prompts": 1, "group_size": 8, "minibatches": 1},
            "optim": {"lr": 0.1, "schedule": "constant"},
            "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
            "run": {"folder": str(tmp_path / "run"), "threads": 1},
        }
    )
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["phase"] == "train"]
    assert all(row["grad_norm"] > 0 for row in rows)
    probed = [row.get("completions_probed", 0) for row in rows]
    assert probed == [0, 8, 8]
