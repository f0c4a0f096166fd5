"""From a prepared batch to optimiser steps.

A rollout is cut into optimiser steps by whole groups; loss weights of a step come from all its rows; micro-batches only
bound memory. Rows whose gradient is exactly zero are not passed through the model; they change nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from grouprl.algorithms.method import Method
from grouprl.algorithms.stage_checks import each_of
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError, RunError
from grouprl.core.spans import span, spanned
from grouprl.protocols import Policy, PolicyInputs, PolicyOutput, SpreadPolicy

if TYPE_CHECKING:
    from grouprl.algorithms.data_part import RunContext
    from grouprl.algorithms.update.update import UpdateSteps

GAPS = ("logp_gap_mean", "logp_gap_max")
"""Sampler against trainer: only comparable before the first optimiser step after a rollout."""


def minibatches(group_b: Tensor, parts: int, seed: int) -> list[Tensor]:
    """Cut the rows into `parts` sets of whole groups, in an order sampled from `seed`; fewer where groups are too
    few."""
    groups = torch.unique(group_b).numpy()
    order = np.random.default_rng(seed).permutation(groups)
    chunks = [chunk for chunk in np.array_split(order, parts) if len(chunk)]
    return [torch.isin(group_b, torch.from_numpy(chunk)).nonzero()[:, 0] for chunk in chunks]


@dataclass(frozen=True)
class Learner:
    """With this an `update` part turns a prepared rollout into optimiser steps.

    `parts` optimiser steps share one pass over the rollout, `epochs` passes are made. With `old_of_update` a rollout
    is one optimiser step, and its log-probs are the old ones, which the rollout comes without.
    """

    policy: Policy
    optimizer: torch.optim.Optimizer
    method: Method
    parts: int = 1
    epochs: int = 1
    seed: int = 0
    grad_clip: float = 1.0
    context: RunContext | None = None
    old_of_update: bool = False

    def steps(self, prepared: Batch) -> Iterator[Batch]:
        """Yield the batch of each optimiser step with its loss weights, epoch by epoch."""
        for epoch in range(self.epochs):
            for rows in minibatches(prepared.group_b, self.parts, seed=self.seed * 1009 + epoch):
                yield _columns(self.method.compute_loss_weights(prepared.rows(rows)))

    def accumulate(self, step: Batch) -> dict[str, float]:
        """Add the gradient of one optimiser step with loss weights to the parameters' `.grad`; return the metrics."""
        return accumulate(self.policy, self.method, step, old_of_update=self.old_of_update)

    def accumulate_values(self, step: Batch) -> dict[str, float]:
        """Add the gradient of the critic's loss of one step alone; returns its metrics."""
        value_bt = self.policy.logp(step.inputs, values=True).value_bt
        assert value_bt is not None, "a method with a critic needs a policy that gives values"
        value_bt.requires_grad_()
        loss = self.method.value_loss(value_bt, step)
        (grad_bt,) = torch.autograd.grad(loss.value, value_bt)
        self.policy.backward(step.inputs, torch.zeros_like(grad_bt), None, grad_bt)
        return {name: float(x) for name, x in loss.metrics.items()}

    @torch.no_grad()
    def evaluate(self, step: Batch) -> tuple[float, Tensor]:
        """Policy loss of one step, regularisers included, and its log-probs [B,T], without a graph."""
        out = _score(self.policy, self.method, step, grad=False)
        return float(self.method.loss(out.logp_bt, step, out.entropy_bt, out.cross_bt).value), out.logp_bt

    def without_critic(self) -> Learner:
        """Return the learner of the policy's loss alone."""
        return replace(self, method=self.method.with_parts(critic=None))

    @spanned("optimiser")
    def apply(self) -> float:
        """Clip the gradient, take the optimiser's step, zero the gradient; returns the norm before clipping.

        Raises RunError when the gradient is not finite (no step is taken then).
        """
        norm = _clipped_norm(self.policy, self.grad_clip)
        _let_idle_rest(self.policy)
        self.optimizer.step()
        self.optimizer.zero_grad()  # not to zeros: while the first pass is read there are no gradients to hold
        return norm

    def take(self, step: Batch) -> dict[str, float]:
        """Take one whole optimiser step; returns its metrics. Without a live token none is taken (nor by momentum)."""
        if not bool(step.active_bt.any()):
            return {"loss": 0.0, "rows_trained": 0.0}
        return {**self.accumulate(step), "grad_norm": self.apply()}


@spanned("update: other")
def update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    method: Method,
    prepared: Batch,
    *,
    parts: int = 1,
    epochs: int = 1,
    seed: int = 0,
    grad_clip: float = 1.0,
    context: RunContext | None = None,
    old_of_update: bool = False,
) -> dict[str, float]:
    """Train on one prepared rollout: `epochs` passes of `parts` optimiser steps; returns metrics averaged over them.

    `context` is the run's (`grouprl.algorithms.data_part.RunContext`), for an `update` part that samples between two
    steps. `old_of_update`: the rollout is one optimiser step and comes without old log-probs, which are its own.

    Raises RunError when a gradient is not finite (no step is taken then).
    """
    learner = Learner(policy, optimizer, method, parts, epochs, seed, grad_clip, context, old_of_update)
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    plain = (learner.take(step) for step in learner.steps(prepared))
    own = method.update
    for number, record in enumerate(
        plain if own is None else each_of(own, own, cast("UpdateSteps", learner), prepared)
    ):
        for name, value in record.items():
            if name in GAPS and number:  # later steps have moved away from the sampler on purpose
                continue
            sums[name] += value
            counts[name] += 1
    return {name: value / counts[name] for name, value in sums.items()}


def accumulate(policy: Policy, method: Method, step: Batch, *, old_of_update: bool = False) -> dict[str, float]:
    """Add the gradient of one optimiser step with loss weights to the parameters' `.grad`; return the metrics.

    With `old_of_update` the old log-probs are those that the step computes, without gradient.
    """
    run = _two_passes if method.couples != "sequence" else _one_pass
    metrics = run(policy, method, step, old_of_update)
    for parameter in [] if isinstance(policy, SpreadPolicy) else policy.parameters():
        if parameter.grad is None:  # an optimiser would leave it out, weight decay and momentum too
            parameter.grad = torch.zeros_like(parameter)
    return metrics


def _one_pass(policy: Policy, method: Method, step: Batch, old_of_update: bool) -> dict[str, float]:
    """Forward and backward micro-batch by micro-batch: each row's loss depends on that row alone."""
    alive_b = ~method.zero_rows(step)
    sums: dict[str, float] = defaultdict(float)
    run = partial(_pass, old_of_update=old_of_update)
    for found in _each_pass(run, policy, method, step, alive_b.nonzero()[:, 0].tolist()):
        _add(sums, found)
    return _closed(sums) | {"rows_trained": float(alive_b.to(torch.float64).mean())}


def _each_pass(
    run: Callable[[Policy, Method, Batch], dict[str, float]],
    policy: Policy,
    method: Method,
    step: Batch,
    rows: list[int],
) -> Iterator[Mapping[str, float]]:
    """Go through `rows` of a step pass by pass, here or wherever the policy lies; yield what was found of each."""

    def piece(own: list[int]) -> Batch:
        return _columns(step.rows(torch.tensor(own)))

    if isinstance(policy, SpreadPolicy):
        yield from policy.run_passes(run, method, _inputs(step), rows, piece, **_wanted(method))
        return
    for own in policy.passes(_inputs(step), rows):
        yield run(policy, method, piece(own))


def _pass(policy: Policy, method: Method, part: Batch, *, old_of_update: bool) -> dict[str, float]:
    """Go forward and backward once; return sums."""
    out = _score(policy, method, part, grad=True)
    part = part.replace(old_bt=out.logp_bt.detach()) if old_of_update else part
    total, metrics = _losses(method, out, part)
    with span("backward"):
        total.backward()
    found = {**metrics, "loss": total.detach(), **_gap(out.logp_bt, part, signed=old_of_update)}
    return {name: float(value) for name, value in found.items()}


def _two_passes(policy: Policy, method: Method, step: Batch, old_of_update: bool) -> dict[str, float]:
    """Log-probs without graph, the loss on them as leaves, then the cotangents back through the model."""
    step = _columns(step)
    out = _score(policy, method, step, grad=False)
    step = step.replace(old_bt=out.logp_bt.detach()) if old_of_update else step
    outputs = (out.logp_bt, out.entropy_bt, out.value_bt, out.cross_bt)
    leaves = [None if x is None else x.detach().requires_grad_() for x in outputs]
    logp_bt, *others = leaves
    assert logp_bt is not None
    total, metrics = _losses(method, PolicyOutput(logp_bt, *others), step)
    wanted = [x for x in leaves if x is not None]
    found = iter(torch.autograd.grad(total, wanted, allow_unused=True))
    cotangents = [None if x is None else next(found) for x in leaves]
    logp_cotangent = cotangents[0] if cotangents[0] is not None else torch.zeros_like(out.logp_bt)
    cross = {} if method.cross is None else {"grad_cross_bt": cotangents[3], "cross": method.cross}
    policy.backward(step.inputs, logp_cotangent, *cotangents[1:3], **cross)  # type: ignore[arg-type]
    sums: dict[str, float] = defaultdict(float)
    pulled = [logp_cotangent, *(x for x in cotangents[1:] if x is not None)]
    alive_b = torch.stack([(x != 0).any(1) for x in pulled]).any(0).to(torch.float64)
    _add(sums, {**metrics, "loss": total.detach(), **_gap(out.logp_bt, step, signed=old_of_update)})
    return _closed(sums) | {"rows_trained": float(alive_b.mean())}


def _columns(batch: Batch) -> Batch:
    """Cut the batch to the columns its rows use, as the policy will return them."""
    return batch.trim(_inputs(batch).width)


def _inputs(batch: Batch) -> PolicyInputs:
    if not isinstance(batch.inputs, PolicyInputs):
        raise InputError(
            f"batch.inputs is {type(batch.inputs).__name__}",
            "a batch to update on holds the inputs that its policy scores (grouprl.protocols.PolicyInputs)",
            "Pass inputs=…, for instance grouprl.policy.Tokens",
        )
    return batch.inputs


@spanned("forward")
def _score(policy: Policy, method: Method, batch: Batch, *, grad: bool) -> PolicyOutput:
    return _beside(policy.logp(batch.inputs, grad=grad, **_wanted(method)), batch)


def _wanted(method: Method) -> dict[str, Any]:
    """What a method reads of a policy beside log-probs."""
    cross = {} if method.cross is None else {"cross": method.cross}
    return {"entropy": method.needs_entropy, "values": method.critic is not None, **cross}


def _beside(out: PolicyOutput, batch: Batch) -> PolicyOutput:
    """The policy's outputs where the batch lies: a batch stays on the CPU, whatever device the policy runs on."""
    place, others = batch.mask_bt.device, (out.entropy_bt, out.value_bt, out.cross_bt)
    return PolicyOutput(out.logp_bt.to(place), *(None if x is None else x.to(place) for x in others))


@spanned("loss")
def _losses(method: Method, out: PolicyOutput, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    loss = method.loss(out.logp_bt, batch, out.entropy_bt, out.cross_bt)
    total, metrics = loss.value, dict(loss.metrics)
    if method.critic is not None:
        assert out.value_bt is not None
        value_loss = method.value_loss(out.value_bt, batch)
        total, metrics = total + value_loss.value, metrics | dict(value_loss.metrics)
    return total, metrics


def _gap(logp_bt: Tensor, batch: Batch, *, signed: bool) -> dict[str, Tensor]:
    """How far the trainer's log-probs are from the sampler's; meaningful on the first step after a rollout.

    With `signed` also the sum of the sampler's over them, where nobody else compares the old ones.

    Rows that were sampled in another way (stored, with advice or a hint) differ for good reason.
    """
    share = {"_share": batch.need("share_bt", "metrics").sum()}
    sampled_bt = batch.mask_bt & batch.from_source("sampled", "review")[:, None]
    if batch.behavior_bt is None or not sampled_bt.any():
        return share
    over = (batch.behavior_bt - logp_bt.detach())[sampled_bt]
    gap = over.abs()
    found = {"_gap_sum": gap.sum(), "_gap_count": torch.tensor(float(len(gap))), "_gap_max": gap.max()}
    return share | found | ({"_gap_signed": over.sum()} if signed else {})


def _add(sums: dict[str, float], metrics: Mapping[str, Tensor | float]) -> None:
    for name, value in metrics.items():
        number = float(value)
        sums[name] = max(sums[name], number) if name == "_gap_max" else sums[name] + number


def _closed(sums: dict[str, float]) -> dict[str, float]:
    """Turn sums into metrics: losses are sums, everything else an average over the live tokens (absent without any)."""
    share = sums.pop("_share", 0.0)
    count, gap_sum, gap_max = (sums.pop(f"_gap_{x}", 0.0) for x in ("count", "sum", "max"))
    over = sums.pop("_gap_signed", None)
    averages = {name: x / share for name, x in sums.items() if not name.endswith("loss")} if share else {}
    metrics = {name: x for name, x in sums.items() if name.endswith("loss")} | averages
    if count:
        metrics["logp_gap_mean"], metrics["logp_gap_max"] = gap_sum / count, gap_max
        metrics |= {} if over is None else {"kl_behavior": over / count}
    return metrics


def _let_idle_rest(policy: Policy) -> None:
    """Drop the gradients of owners whose gradient is exactly zero, where there are several: they take no step."""
    owners = policy.owners()
    for owned in owners if len(owners) > 1 else []:
        if not any(bool(p.grad.any()) for p in owned if p.grad is not None):
            for parameter in owned:
                parameter.grad = None


def _clipped_norm(policy: Policy, grad_clip: float) -> float:
    """Norm of the gradient before clipping to `grad_clip` (0: not clipped)."""
    limit = grad_clip if grad_clip > 0 else math.inf
    if isinstance(policy, SpreadPolicy):
        norm = policy.clip(limit)
    else:
        norm = math.hypot(*(float(torch.nn.utils.clip_grad_norm_(owned, limit)) for owned in policy.owners()))
    if not math.isfinite(norm):
        raise RunError(
            f"the gradient is not finite (norm {norm}); no step was taken. Lower optim.lr, look at the last rollouts "
            "for absurd rewards, or set optim.grad_clip"
        )
    return norm
