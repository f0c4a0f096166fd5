"""Weights of reward components that follow from what they do for the primary one (BARFI)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.advantage.decoupled_components import DecoupledComponents
from grouprl.algorithms.data_part import DataPart
from grouprl.algorithms.objective.importance import clear, gradient, write_gradient
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.json_types import State
from grouprl.core.metric import Metric
from grouprl.core.numbers import NonNegative


@part("update")
class BlendedRewards(DataPart, Update):
    """BARFI: step along g_primary + Σ_k φ_k·g_k, and move φ_k by what that did for the primary return.

    g_k is the gradient of the loss L_k with component k alone as the reward, relative to its group. After the step to
    θ' the next rollout tells how φ_k moved the primary return: by lr·⟨∇L_p(θ'), g_k(θ)⟩. So φ_k ← max(φ_k +
    rate·cos(∇L_p(θ'), g_k(θ)), lowest), whose two gradients are of different rollouts. All φ begin at 1; that of the
    primary component stays there, as only ratios matter. Source: Gupta et al. 2023 (arXiv:2310.19007). *Differs from
    the paper*: the identity stands for the inverse Hessian of the implicit gradient and a single step for the inner
    loop; a cosine for the inner product; no function of state and action is learnt besides, and no discount.
    """

    reads_gradients = True

    metrics: ClassVar = {
        "blend_weight": Metric(
            words="mean weight of the reward's components besides the primary one",
            good="below 1 where they mislead, above 1 where they lead to what the primary one pays",
        ),
        "blend_gain": Metric(
            words="mean cosine of the primary component's gradient and those of the other components, a step earlier",
            good="above 0 where the others help; noise around 0 is normal",
        ),
    }

    primary: str = "accuracy"
    rate: NonNegative = 0.1
    lowest: float = 0.0
    reads = ("rewards.{primary}",)
    says = (
        "step along the gradients of all components of the reward, each weighted by how its earlier gradients served "
        "the component {primary} (rate {rate:g}, weights of {lowest:g} or more)"
    )
    equation = "θ ← θ - lr·(g_p + Σ_k φ_k·g_k),  φ_k ← max(φ_k + {rate:g}·cos(g_p(θ'), g_k(θ)), {lowest:g})"
    idle_at = ("rate", 0, "{name} keeps all weights at 1: rate is 0")

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the step of the rollout; yield its metrics."""
        own = [parameter for _, parameter in learner.policy.named_parameters()]
        store = learner.context.state_of(self)
        for step in learner.steps(prepared):
            metrics, slopes = self.slopes(learner, step)
            gains = self.learn(store, slopes[self.primary])
            blend = {name: self.weight(store, name) for name in slopes}
            store.update({f"gradient/{name}": slope_p for name, slope_p in slopes.items() if name != self.primary})
            write_gradient(own, torch.stack([blend[name] * slope_p for name, slope_p in slopes.items()]).sum(0))
            yield {**metrics, **_means(blend, gains, self.primary), "grad_norm": learner.apply()}

    def slopes(self, learner: UpdateSteps, step: Batch) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Return the metrics of the primary component's loss, and [P] the gradient of each component's loss."""
        step.need(f"rewards.{self.primary}", self.name)
        own = [parameter for _, parameter in learner.policy.named_parameters()]
        names = [name for name in step.rewards if name != self.primary and not name.startswith("#")]
        found, metrics = {}, {}
        for name in (*names, self.primary):
            clear(learner.policy)
            metrics = learner.accumulate(step.replace(advantage_bt=component_advantage(step, name)))
            found[name] = gradient(own)
        return metrics, found

    def learn(self, store: State, slope_p: Tensor) -> dict[str, float]:
        """Move the weights by how well the gradients of the previous step agree with the present primary one; return
        the cosines.
        """
        gains = {}
        for key in [key for key in store if key.startswith("gradient/")]:
            name = key.removeprefix("gradient/")
            gains[name] = cosine(slope_p, store[key])
            store[f"weight/{name}"] = max(self.weight(store, name) + self.rate * gains[name], self.lowest)
        return gains

    def weight(self, store: State, name: str) -> float:
        """Return the present weight of a component."""
        return float(store.get(f"weight/{name}", 1.0))

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse several steps per rollout, and sampling ahead."""
        several = (
            f"{self.name} judges each step by the next rollout, and the run takes {run.updates_per_rollout} steps with "
            "one. Set batch.minibatches and batch.epochs to 1"
        )
        late = f"{self.name} needs completions of the weights as they are. Set run.async_steps to 0"
        return [*[several] * (run.updates_per_rollout > 1), *[late] * (run.async_steps > 0)]


def component_advantage(batch: Batch, name: str) -> Tensor:
    """Return [B,T] the advantages of one component alone: its values less their mean in the group."""
    advantage_bt: Tensor = DecoupledComponents(weights={name: 1.0}, scale="none")(batch)
    return advantage_bt


def cosine(one_p: Tensor, other_p: Tensor) -> float:
    """Return the cosine of two vectors; 0 if one of them is 0."""
    one_p, other_p = one_p.double(), other_p.to(one_p.device).double()
    norm = float(one_p.norm() * other_p.norm())
    return float(one_p @ other_p) / norm if norm > 0 else 0.0


def _means(blend: Mapping[str, float], gains: Mapping[str, float], primary: str) -> dict[str, float]:
    others = [weight for name, weight in blend.items() if name != primary]
    found = {"blend_weight": sum(others) / len(others)} if others else {}
    return found | ({"blend_gain": sum(gains.values()) / len(gains)} if gains else {})
