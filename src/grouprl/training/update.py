"""From a prepared batch to optimiser steps.

A rollout is cut into optimiser steps by whole groups; loss weights of a step come from all its rows. How a step goes
through the policy is in `grouprl.training.steps`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from grouprl.algorithms.losses import AXES, shares
from grouprl.algorithms.method import Loss, Method
from grouprl.algorithms.stage_checks import each_of
from grouprl.core.batch import Batch
from grouprl.core.outputs import ENTROPY, LOG_PROB, VALUE
from grouprl.core.spans import spanned
from grouprl.monitor.glossary import lookup
from grouprl.protocols import Trainable
from grouprl.training.measures.gradient_watch import GradientWatch, positive_share
from grouprl.training.measures.step_record import StepRecord
from grouprl.training.steps import OutputLoss, Owners, accumulate, apply_gradient, columns, outputs_of

if TYPE_CHECKING:
    from grouprl.algorithms.data_part import RunContext
    from grouprl.algorithms.update.update import UpdateSteps


def minibatches(group_b: Tensor, parts: int, seed: int) -> list[Tensor]:
    """Divide the rows into `parts` sets of whole groups, in random order by `seed`; fewer if groups are too few.

    If their number does not divide evenly, the first sets have one group more.
    """
    groups = torch.unique(group_b).numpy()
    order = np.random.default_rng(seed).permutation(groups)
    chunks = [chunk for chunk in np.array_split(order, parts) if len(chunk)]
    return [torch.isin(group_b, torch.from_numpy(chunk)).nonzero()[:, 0] for chunk in chunks]


@dataclass(frozen=True)
class Learner:
    """The learner with which an `update` part turns a prepared rollout into optimiser steps.

    Each of `epochs` passes over the rollout has `parts` optimiser steps. With `old_of_update` the rollout has no old
    log-probs; it is used for one optimiser step, whose own log-probs are the old ones.
    """

    policy: Trainable
    optimizer: torch.optim.Optimizer
    method: Method
    parts: int = 1
    epochs: int = 1
    seed: int = 0
    grad_clip: float = 1.0
    context: RunContext | None = None
    old_of_update: bool = False
    watch: GradientWatch | None = None
    """Looks at the gradients of the steps that `take` makes."""
    record: StepRecord | None = None
    """Keeps what the steps see of each row."""
    told: list[dict[str, float]] = field(default_factory=list)
    """The metrics of the steps so far. The first step alone compares the trainer with the sampler, from which later
    ones are expected to differ."""

    @cached_property
    def owners(self) -> Owners:
        """The policy's parameters by owner."""
        return self.policy.owners()

    def steps(self, prepared: Batch) -> Iterator[Batch]:
        """Yield the batch of each optimiser step with its loss weights, epoch by epoch."""
        for epoch in range(self.epochs):
            for rows in minibatches(prepared.group_b, self.parts, seed=self.seed * 1009 + epoch):
                yield columns(self.method.compute_loss_weights(prepared.rows(rows)))

    def accumulate(self, step: Batch) -> dict[str, float]:
        """Add the gradient of one optimiser step with loss weights to the parameters' `.grad`; return the metrics."""
        mixed = self.method.sampling is not None and self.method.sampling.mixes
        loss = MethodLoss(self.method, self.old_of_update, self.record, compared=not self.told and not mixed)
        return _closed(accumulate(self.policy, loss, step, self.owners))

    def accumulate_values(self, step: Batch) -> dict[str, float]:
        """Add the gradient of the critic's loss of one step alone; returns its metrics."""
        found = accumulate(self.policy, ValuesAlone(self.method), step, self.owners)
        return {name: x for name, x in found.items() if name not in ("loss", "rows_trained")}

    @torch.no_grad()
    def evaluate(self, step: Batch) -> tuple[float, Tensor]:
        """Return the policy loss of one step, regularisers included, and its log-probs [B,T], without a graph."""
        loss = MethodLoss(self.method.with_parts(critic=None))
        found = outputs_of(self.policy, loss.outputs, step)
        return float(loss(found, step).value), found[LOG_PROB]

    def without_critic(self) -> Learner:
        """Return the same learner without the critic's loss."""
        return replace(self, method=self.method.with_parts(critic=None))

    def apply(self) -> float:
        """Clip the gradient, take the optimiser's step, zero the gradient; returns the norm before clipping.

        Raises RunError when the gradient is not finite (no step is taken then).
        """
        return apply_gradient(self.policy, self.optimizer, self.grad_clip, self.owners)

    def take(self, step: Batch) -> dict[str, float]:
        """Take one whole optimiser step; returns its metrics. Without an active token no step is taken."""
        found = {"loss": 0.0, "rows_trained": 0.0}
        active = bool(step.active_bt.any())
        if active:
            # Where log-probs are balanced against rewards, the sign of an advantage is not a direction.
            found = self.accumulate(step) | ({} if self.method.objective.proportional else positive_share(step))
        if self.watch is not None:
            self.watch.add(self.policy, step)
        if self.record is not None and active:
            self.record.measure(self.policy, step)
        return {**found, "grad_norm": self.apply()} if active else found


@spanned("update: other")
def update(
    policy: Trainable,
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
    record: StepRecord | None = None,
) -> dict[str, float]:
    """Train on one prepared rollout: `epochs` passes of `parts` optimiser steps; returns metrics averaged over them.

    `context` is the run's (`grouprl.algorithms.data_part.RunContext`), for an `update` part that samples between two
    steps. `old_of_update`: the rollout has no old log-probs and is used for one optimiser step, whose own are taken.
    `record` keeps what the steps see of a rollout whose rows are numbered.

    Raises RunError when a gradient is not finite (no step is taken then).
    """
    own = method.update
    watch = GradientWatch(parts) if own is None else None
    learner = Learner(policy, optimizer, method, parts, epochs, seed, grad_clip, context, old_of_update, watch, record)
    plain = (learner.take(step) for step in learner.steps(prepared))
    for found in plain if own is None else each_of(own, own, cast("UpdateSteps", learner), prepared):
        learner.told.append(found)
    return _averaged(learner.told) | (watch.metrics() if watch is not None else {})


@dataclass(frozen=True)
class MethodLoss(OutputLoss):
    """The loss of a method, its critic's included, on a policy's outputs.

    With `old_of_update` the old log-probs are those that the step computes, without gradient.
    """

    method: Method
    old_of_update: bool = False
    record: StepRecord | None = None
    compared: bool = True
    """Whether the sampler's log-probs are compared with those that the step computes."""

    def with_record(self, record: StepRecord | None) -> MethodLoss:
        """Return the loss with another record."""
        return replace(self, record=record)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs that the method reads."""
        return self.method.outputs

    @property
    def couples(self) -> str:  # type: ignore[override]
        """The rows that the loss must see together: 'sequence', 'group' or 'batch'."""
        return self.method.couples

    def live_rows(self, step: Batch) -> Tensor:
        """Return the rows whose gradient may be non-zero, [B] bool."""
        return ~self.method.zero_rows(step)

    def __call__(self, found: Mapping[str, Tensor], batch: Batch) -> Loss:
        """Return the loss and metrics of some rows of a step with loss weights."""
        logp_bt = found.get(LOG_PROB)
        if logp_bt is not None and self.old_of_update:
            batch = batch.replace(old_bt=logp_bt.detach())
        gap_bt = _gap(logp_bt, batch) if self.compared else None
        if self.record is not None:
            self.record.watch(found, batch, gap_bt)
        named = {name: x for name, x in found.items() if name not in (LOG_PROB, ENTROPY, VALUE)}
        loss = self.method.loss(logp_bt, batch, found.get(ENTROPY), outputs=named)
        total, metrics = loss.value, dict(loss.metrics)
        if self.method.critic is not None:
            value_loss = self.method.value_loss(found[VALUE], batch)
            total, metrics = total + value_loss.value, metrics | dict(value_loss.metrics)
        metrics |= {f"_share/{level}": share.sum() for level, share in shares(batch).items()}
        told = {} if gap_bt is None else _of_gap(gap_bt[_sampled(batch)], signed=self.old_of_update)
        return Loss(total, metrics | told)


@dataclass(frozen=True)
class ValuesAlone(OutputLoss):
    """The loss of a method's critic alone."""

    method: Method
    outputs = (VALUE,)
    couples = "batch"

    def __call__(self, found: Mapping[str, Tensor], batch: Batch) -> Loss:
        """Return the loss and metrics of a step with loss weights."""
        return self.method.value_loss(found[VALUE], batch)


def _sampled(batch: Batch) -> Tensor:
    """Return which tokens were sampled, [B,T] bool.

    Rows from other sources (stored, or with advice or a hint) are left out: their log-probs are expected to differ.
    """
    return batch.mask_bt & batch.from_source("sampled", "review")[:, None]


def _gap(logp_bt: Tensor | None, batch: Batch) -> Tensor | None:
    """Return by how much the sampler's log-probs exceed the trainer's, [B,T], 0 for tokens that were not sampled; None
    where there is nothing to compare.
    """
    sampled_bt = _sampled(batch)
    if logp_bt is None or batch.behavior_bt is None or not sampled_bt.any():
        return None
    return (batch.behavior_bt - logp_bt.detach()).where(sampled_bt, 0)


def _of_gap(over: Tensor, *, signed: bool) -> dict[str, Tensor]:
    """Return the sums of the gap between log-probs of the sampled tokens.

    With `signed`, also return that of the differences themselves, if no other part compares old log-probs.
    """
    gap = over.abs()
    found = {"_gap_sum": gap.sum(), "_gap_count": torch.tensor(float(len(gap))), "_gap_max": gap.max()}
    return found | ({"_gap_signed": over.sum()} if signed else {})


def _averaged(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the steps that have it."""
    sums: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for found in told:
        for name, value in found.items():
            sums[name] += value
            counts[name] += 1
    return {name: value / counts[name] for name, value in sums.items()}


def _closed(sums: dict[str, float]) -> dict[str, float]:
    """Turn sums into metrics: losses are sums, everything else is a mean at its level (absent if nothing counts)."""
    sums = dict(sums)
    rows, share = sums.pop("rows_trained"), {level: sums.pop(f"_share/{level}", None) for level in AXES}
    if share["pair"] is None:  # metrics of pairs come with a loss of rows: see `level_of`
        share["pair"] = share["row"]
    count, gap_sum, gap_max = (sums.pop(f"_gap_{x}", 0.0) for x in ("count", "sum", "max"))
    over = sums.pop("_gap_signed", None)
    metrics = {name: x for name, x in sums.items() if name.endswith("loss")}
    others = {name: (x, share[lookup(name).level]) for name, x in sums.items() if name not in metrics}
    metrics |= {name: x / whole for name, (x, whole) in others.items() if whole}
    if count:
        metrics["logp_gap_mean"], metrics["logp_gap_max"] = gap_sum / count, gap_max
        metrics |= {} if over is None else {"kl_behavior": over / count}
    return metrics | {"rows_trained": rows}
