"""Numbers of tokens and rows that optimiser steps see, for stored rollouts (`run.record_updates`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from grouprl.core.batch import Batch
from grouprl.core.outputs import LOG_PROB
from grouprl.protocols import Trainable, distributed
from grouprl.training.measures.gap_record import GapRecord
from grouprl.training.measures.step_record import ROW
from grouprl.training.steps import columns, inputs_of


class UpdateRecord:
    """Numbers of the tokens of a rollout [B,T], each from the first optimiser step in which the row had a gradient.

    `ratio_bt` is π/π_old there, `weight_bt` the token's weight in the loss, and `push_bt` minus the derivative of the
    whole loss by its log-prob: what the method asks for, clips and gates included. NaN where there is none.
    """

    def __init__(self, prepared: Batch, *, gradients: bool = False) -> None:
        """Prepare; with `gradients`, measure the share of each row in the gradient, too (see `gradient_shares`)."""
        empty_bt = torch.full(tuple(prepared.mask_bt.shape), torch.nan, dtype=prepared.dtype)
        self.ratio_bt, self.weight_bt, self.push_bt = (empty_bt.clone() for _ in range(3))
        self.share_b = torch.full((len(empty_bt),), torch.nan, dtype=torch.float64)
        self.gradients, self.steps, self.gaps = gradients, 0, GapRecord(len(empty_bt))

    def watch(self, outputs: Mapping[str, Tensor], batch: Batch, gap_bt: Tensor | None = None) -> None:
        """Note gaps, ratios and weights of some rows of a step, and the derivatives once they are known."""
        self.gaps.watch(outputs, batch, gap_bt)
        logp_bt = outputs.get(LOG_PROB)
        if logp_bt is None or not logp_bt.requires_grad:
            return
        rows, width = batch.keys[ROW], logp_bt.shape[1]
        new_b = self.push_bt[rows].isnan().all(1)
        old_bt = batch.old_bt if batch.old_bt is not None else logp_bt.detach()
        seen = {"ratio_bt": (logp_bt.detach() - old_bt).exp(), "weight_bt": batch.weight_bt}
        for name, value_bt in seen.items():
            if value_bt is not None:
                getattr(self, name)[rows[new_b], :width] = value_bt[new_b].where(batch.mask_bt[new_b], torch.nan)
        logp_bt.register_hook(partial(self._pushed, rows, new_b, batch.mask_bt))

    def _pushed(self, rows: Tensor, new_b: Tensor, mask_bt: Tensor, gradient_bt: Tensor) -> None:
        found_bt = (-gradient_bt.detach()).where(mask_bt, torch.nan)[new_b]
        self.push_bt[rows[new_b], : found_bt.shape[1]] = found_bt.to(self.push_bt)

    def measure(self, policy: Trainable, step: Batch) -> None:
        """Measure the share of each row in the gradient of a step that is accumulated and not yet applied."""
        rows = step.keys[ROW]
        if not self.gradients or not self.share_b[rows].isnan().all():
            return
        push_bt = self.push_bt[rows, : step.mask_bt.shape[1]].nan_to_num()
        self.share_b[rows] = gradient_shares(policy, step, push_bt)
        self.steps += bool(self.share_b[rows].any())

    def of(self, part: Batch) -> Self:
        """Return an empty record of some rows of a step."""
        return type(self)(part, gradients=self.gradients)

    def take(self, rows: Tensor, seen: Self) -> None:
        """Note what a pass has seen of the rows with these numbers, unless an earlier one has."""
        new_b, width = self.push_bt[rows].isnan().all(1), seen.push_bt.shape[1]
        for name in ("ratio_bt", "weight_bt", "push_bt"):
            getattr(self, name)[rows[new_b], :width] = getattr(seen, name)[new_b]
        self.gaps.take(rows, seen.gaps)

    def tokens(self) -> Mapping[str, Tensor]:
        """Return the numbers of tokens by the name of their column."""
        return {"ratio": self.ratio_bt, "weight": self.weight_bt, "push": self.push_bt}

    def shares(self) -> Tensor:
        """Return [B] each row's share of the gradients of the rollout: the mean over its optimiser
        steps with a gradient."""
        return self.share_b / max(1, self.steps)


def gradient_shares(policy: Trainable, step: Batch, push_bt: Tensor) -> Tensor:
    """Return [B] the share of each row in a step's gradient G: g_i·G / |G|² with the row's own gradient g_i.

    Shares of a step add up to 1 if all of the loss is by log-probs; a row that pulls against the others has a negative
    one. It takes a pass per row, and gradients are left as they were.

    Args:
        policy: holds G as the gradients of its parameters.
        step: the rows of the step.
        push_bt: minus the derivative of the loss by the log-probs, [B,T].
    """
    share_b = torch.zeros(len(push_bt), dtype=torch.float64)
    with _put_aside(policy) as (size, along):
        for row in (push_bt != 0).any(1).nonzero()[:, 0].tolist() if size > 0 else ():
            own = columns(step.rows(torch.tensor([row])))
            policy.backward(inputs_of(own), {LOG_PROB: -push_bt[[row], : own.mask_bt.shape[1]]})
            share_b[row] = along() / size
    return share_b


@contextmanager
def _put_aside(policy: Trainable) -> Iterator[tuple[float, Callable[[], float]]]:
    """Set the gradient aside; yield its square, and a function that returns its product with the gradient accumulated
    meanwhile, and drops the latter.
    """
    if (spread := distributed(policy)) is not None:
        size = spread.clip(math.inf) ** 2
        with spread.gradient_aside() as product:
            yield size, product
        return
    parameters = policy.parameters()
    whole = [p.grad for p in parameters]

    def along() -> float:
        pairs = [(p.grad, g) for p, g in zip(parameters, whole, strict=True) if p.grad is not None and g is not None]
        found = sum(float((mine.double() * all_of).sum()) for mine, all_of in pairs)
        _drop(parameters)
        return found

    _drop(parameters)
    yield sum(float(g.double().square().sum()) for g in whole if g is not None), along
    for parameter, gradient in zip(parameters, whole, strict=True):
        parameter.grad = gradient


def _drop(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
