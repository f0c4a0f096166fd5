"""Gradients of several objectives at one length: what is foreseen beside what is done (MO-DT)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.objective.importance import clear
from grouprl.algorithms.part import part
from grouprl.algorithms.regularize.papers.foresight import Foresight
from grouprl.algorithms.update.update import Update, UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.metric import Metric
from grouprl.core.outputs import FORESIGHT
from grouprl.protocols import Policy


@part("update")
class BalancedTerms(Update):
    """Step along g_a + Σ_k w_k·(|g_a|/|g_k|)·g_k: each objective pulls by its weight, whatever its unit (MO-DT).

    g_a is the gradient of the policy's loss, g_k that of an error of foresight without its weight w_k; lengths are
    those in the parameters that both share, the heads of foresight (`foresight.…`) left out. Where a gradient is 0
    there, the objective is left as it is. Needs `next_observation` or `next_to_go`. Source: Ghanem et al. 2023
    (arXiv:2308.16379), of which only the abstract was read: how it weighs gradients is not known to us, and equal
    lengths are ours.
    """

    reads_gradients = True
    metrics: ClassVar = {
        "foresight_scale": Metric(
            words="mean factor on gradients of foresight that makes them as long as that of the policy's loss",
            good="any; far from 1 where errors have units of their own",
        ),
    }
    says = "scale the gradient of each error of foresight to the length of the policy's own before adding it"
    equation = "g_a + Σ_k w_k·(|g_a|/|g_k|)·g_k"

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps; yield the metrics of each."""
        terms = [term for term in foresights(learner) if term.coef]
        for step in learner.steps(prepared):
            if bool(step.active_bt.any()):
                clear(learner.policy)
                metrics = learner.accumulate(step)
                scales = balance(learner.policy, terms, step)
                found = {"foresight_scale": sum(scales) / len(scales)} if scales else {}
                yield {**metrics, **found, "grad_norm": learner.apply()}


def foresights(learner: UpdateSteps) -> list[Foresight]:
    """Return the method's errors of foresight."""
    return [term for term in learner.method.regularize if isinstance(term, Foresight)]


def balance(policy: Policy, terms: Sequence[Foresight], step: Batch) -> list[float]:
    """Replace each w_k·g_k in the policy's gradients by w_k·(|g_a|/|g_k|)·g_k; return the factors of the lengths."""
    named = list(policy.named_parameters())
    shared = [number for number, (name, _) in enumerate(named) if not name.startswith(f"{FORESIGHT}.")]
    whole = _gradients(policy)
    pulls = [_pull(policy, term, step) for term in terms]
    acting = [
        g - sum((t.coef * pull[n] for t, pull in zip(terms, pulls, strict=True)), torch.zeros_like(g))
        for n, g in enumerate(whole)
    ]
    scales = [_scale(_length(acting, shared), _length(pull, shared)) for pull in pulls]
    for n, (_, parameter) in enumerate(named):
        more = [(scale - 1) * t.coef * pull[n] for scale, t, pull in zip(scales, terms, pulls, strict=True)]
        parameter.grad = sum(more, whole[n])
    return scales


def _pull(policy: Policy, term: Foresight, step: Batch) -> list[Tensor]:
    """Return the gradient of a term without its weight, one tensor for each parameter."""
    (output,) = term.asks
    clear(policy)
    policy.backward(step.inputs, {output: term.weights(step)})  # 0 outside the loss mask
    return _gradients(policy)


def _gradients(policy: Policy) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for _, p in policy.named_parameters()]


def _length(gradients: Sequence[Tensor], shared: Sequence[int]) -> float:
    return float(sum(gradients[n].double().square().sum() for n in shared)) ** 0.5


def _scale(acting: float, foreseeing: float) -> float:
    return acting / foreseeing if acting > 0 and foreseeing > 0 else 1.0
