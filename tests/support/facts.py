"""Plain arithmetic for tests of rules: means, spreads, clips and slopes as the papers write them, on lists of numbers.

Nothing here calls the library's own formulas.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

import grouprl
from grouprl.core.batch import Batch
from small import ragged

Rows = Sequence[Sequence[float]]


def slope(method: grouprl.Method, batch: Batch, moved: Rows, anchor: str = "old_bt") -> tuple[float, Tensor, Batch]:
    """Loss, dLoss/dlogp [B,T] and the prepared batch at log-probs `anchor` + `moved`."""
    ready = method.prepare(batch)
    leaf_bt = (getattr(batch, anchor) + ragged(moved)).clone().requires_grad_()
    loss = method.loss(leaf_bt, ready).value
    (grad_bt,) = torch.autograd.grad(loss, leaf_bt)
    return float(loss.detach()), torch.where(batch.mask_bt, grad_bt, 0), ready


def still(batch: Batch) -> Rows:
    """No movement, for `slope`."""
    return [[0.0] * batch.size[1]] * batch.size[0]


def centred(rewards: Sequence[float]) -> list[float]:
    """R - mean."""
    mean = statistics.fmean(rewards)
    return [r - mean for r in rewards]


def standardised(rewards: Sequence[float], eps: float = 1e-6) -> list[float]:
    """(R - mean)/(sample spread + eps)."""
    spread = statistics.stdev(rewards)
    return [r / (spread + eps) for r in centred(rewards)]


def ppo(advantage: float, ratio: float, low: float, high: float) -> float:
    """Gradient by log π of -min(ρA, clip(ρ, low, high)A); `low` and `high` bound the ratio itself."""
    stopped = (advantage > 0 and ratio > high) or (advantage < 0 and ratio < low)
    return 0.0 if stopped else -advantage * ratio


def gae(rewards: Sequence[float], values: Sequence[float], lam: float, after: float = 0.0) -> list[float]:
    """Advantages of one sequence with γ = 1; `after` is the value behind the last token."""
    following, running, found = [*values[1:], after], 0.0, []
    for reward, value, next_value in reversed(list(zip(rewards, values, following, strict=True))):
        running = reward + next_value - value + lam * running
        found.append(running)
    return found[::-1]


def whitened(values: Sequence[float]) -> list[float]:
    """(A - mean)/sqrt(variance + 1e-8), the variance by n - 1: how verl and TRL whiten advantages."""
    mean, variance = statistics.fmean(values), statistics.variance(values)
    return [(v - mean) / (variance + 1e-8) ** 0.5 for v in values]
