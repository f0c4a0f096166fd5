"""Objectives of one length: gradients by hand, the plain step without them, and steps without a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import grouprl
from grouprl.algorithms.update.papers.balanced_terms import BalancedTerms
from grouprl.core.batch import Batch
from grouprl.policy import ArrayInputs, Build, DecisionTransformer
from grouprl.protocols import Box, DictSpace, Discrete, Spaces
from grouprl.training.update import Learner
from small import small

SPACES = Spaces(DictSpace({"seen": Box((2,)), "to_go": Box((1,)), "before": Discrete(4)}), Discrete(3))
LENGTHS = (3, 2)


def policy_of() -> DecisionTransformer:
    return DecisionTransformer(Build(SPACES, dtype=torch.float64), window=2, width=4)


MASKED = torch.tensor([[False, True, True], [True, False, False]])
"""Of five actions three count in the loss."""


def batch_of() -> Batch:
    luck = np.random.default_rng(1)
    seen = [
        {"seen": luck.normal(size=(n, 2)), "to_go": luck.normal(size=(n, 1)), "before": luck.integers(0, 4, n)}
        for n in LENGTHS
    ]
    inputs = ArrayInputs.of(seen, [luck.integers(0, 3, n) for n in LENGTHS])
    return small([1.0, 0.0], list(LENGTHS)).replace(inputs=inputs)


class Still:
    """A learner that keeps the gradient of the step that it takes."""

    def __init__(self, policy: DecisionTransformer, method: Any) -> None:
        self.learner = Learner(policy, torch.optim.SGD(policy.parameters(), 0.0), method, grad_clip=0.0)
        self.policy, self.method, self.kept = policy, method, dict[str, Tensor]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.learner, name)

    def apply(self) -> float:
        self.kept = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in self.policy.named_parameters()}
        return 0.0


def stepped(policy: DecisionTransformer, batch: Batch, **settings: float) -> tuple[dict[str, Tensor], dict[str, float]]:
    method = grouprl.method("mo_dt", **settings)
    learner = Still(policy, method)
    prepared = method.compute_advantages(batch)
    (metrics,) = BalancedTerms()(learner, prepared)  # type: ignore[arg-type]
    return learner.kept, metrics


def slopes(policy: DecisionTransformer, batch: Batch) -> list[dict[str, Tensor]]:
    """The gradients of the mean of -log π, of the error of observations and of that of returns, by autograd."""
    found = []
    for name, sign in (("log_prob", -1.0), ("observation_error", 1.0), ("to_go_error", 1.0)):
        value_bt = policy.evaluate(batch.inputs, (name,), grad=True)[name]  # type: ignore[arg-type]
        names, weights = zip(*policy.named_parameters(), strict=True)
        grads = torch.autograd.grad(sign * value_bt[batch.active_bt].mean(), weights, allow_unused=True)
        pairs = zip(names, weights, grads, strict=True)
        found.append({n: torch.zeros_like(w) if g is None else g for n, w, g in pairs})
    return found


def length(slope: dict[str, Tensor]) -> float:
    shared = [g.square().sum() for name, g in slope.items() if not name.startswith("foresight.")]
    return float(torch.stack(shared).sum().sqrt())


@pytest.mark.parametrize("batch", [batch_of(), batch_of().replace(loss_mask_bt=MASKED)], ids=["all", "masked"])
def test_each_objective_pulls_by_its_weight(batch: Batch) -> None:
    policy = policy_of()
    acts, sees, earns = slopes(policy, batch)
    found, metrics = stepped(policy, batch, observation=0.5, to_go=2.0)
    scales = [length(acts) / length(sees), length(acts) / length(earns)]
    for name, g in found.items():
        torch.testing.assert_close(g, acts[name] + 0.5 * scales[0] * sees[name] + 2.0 * scales[1] * earns[name])
    assert metrics["foresight_scale"] == pytest.approx(sum(scales) / 2)
    assert metrics["observation_error"] > 0
    assert metrics["to_go_error"] > 0


def test_without_weights_the_step_is_that_of_cloning_bit_by_bit() -> None:
    policy = policy_of()
    found, metrics = stepped(policy, batch_of(), observation=0.0, to_go=0.0)
    assert "foresight_scale" not in metrics
    cloning = grouprl.method("sft")
    plain = Still(policy, cloning)
    for _, parameter in policy.named_parameters():
        parameter.grad = None
    plain.accumulate(next(iter(plain.steps(cloning.compute_advantages(batch_of())))))
    plain.apply()
    assert all(torch.equal(found[name], plain.kept[name]) for name in found)


def test_an_objective_beside_an_action_without_gradient_keeps_its_own() -> None:
    """One action alone is certain: its log-prob has no gradient, and there is no length to take."""
    one = Spaces(DictSpace({**SPACES.observation.spaces, "before": Discrete(2)}), Discrete(1))  # type: ignore[union-attr]
    policy = DecisionTransformer(Build(one, dtype=torch.float64), window=2, width=4)
    method, batch = grouprl.method("mo_dt", to_go=0.0), batch_of()
    seen = {**batch.inputs.observation_bt, "before": torch.zeros(2, 3, dtype=torch.int64)}  # type: ignore[union-attr]
    inputs = ArrayInputs(seen, torch.zeros(2, 3, dtype=torch.int64), torch.tensor(LENGTHS))
    learner = Still(policy, method)
    (metrics,) = BalancedTerms()(learner, method.compute_advantages(batch.replace(inputs=inputs)))  # type: ignore[arg-type]
    assert metrics["foresight_scale"] == 1.0
    error_bt = policy.evaluate(inputs, ("observation_error",), grad=True)["observation_error"]
    (expected,) = torch.autograd.grad(error_bt.sum() / sum(LENGTHS), [policy.module["memory"].place])  # type: ignore[index]
    torch.testing.assert_close(learner.kept["memory.place"], expected)
