"""Signal and noise of the gradients of a rollout, and the balance of its advantages, without a further pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grouprl.core.batch import Batch
from grouprl.protocols import Trainable

LOOKED_AT = 2**20
"""Number of entries of a gradient that are kept; of a larger one evenly spaced ones stand for all."""


@dataclass
class GradientWatch:
    """The gradients of the minibatches of a rollout, seen as independent batches of groups.

    It keeps one sum of (at most `LOOKED_AT` entries of) gradients. The weights move between two minibatches, which is
    neglected: the signal is that of policies a step apart.
    """

    parts: int
    """Minibatches of a pass over the rollout; further passes hold the same groups and are not looked at."""
    groups: int = 0
    squares: list[float] = field(default_factory=list)
    total: Tensor | None = None
    scale: int = 1
    """How many entries of a gradient each one kept stands for."""

    def add(self, policy: Trainable, step: Batch) -> None:
        """Look at the gradient of an optimiser step that has not been clipped or applied; a missing one is zero."""
        if len(self.squares) == self.parts:
            return
        gradient, scale = thinned([x.grad for x in policy.parameters() if x.grad is not None])
        self.squares.append(scale * float(gradient.square().sum()))
        self.groups += len(step.group_b.unique())
        if len(gradient):
            self.total = gradient if self.total is None else self.total + gradient
            self.scale = scale

    def metrics(self) -> dict[str, float]:
        """Return signal and noise; empty for fewer than two minibatches, or without any gradient."""
        if len(self.squares) < 2 or self.total is None or not max(self.squares) > 0:
            return {}
        whole = self.scale * float(self.total.square().sum())
        signal, noise = signal_and_noise(whole, self.squares, self.groups / len(self.squares))
        return {"gradient_signal": signal, "gradient_noise": noise}


def signal_and_noise(whole: float, squares: Sequence[float], groups: float) -> tuple[float, float]:
    """Return |G|² and tr(Σ) of the gradient of a single group, both without bias.

    Source: McCandlish et al. 2018, arXiv:1812.06162, appendix A.1, with one of n minibatches as the small batch, their
    mean gradient as that of the large one, and groups for examples.

    Args:
        whole: squared norm of the sum of n gradients.
        squares: their squared norms.
        groups: number of groups over which each of them is a mean.
    """
    count = len(squares)
    small, large = sum(squares) / count, whole / count**2
    signal = (count * large - small) / (count - 1)
    return signal, groups * count * (small - large) / (count - 1)


def thinned(gradients: Sequence[Tensor]) -> tuple[Tensor, int]:
    """Return every n-th entry of the gradients, laid end to end, and n: the smallest with at most `LOOKED_AT` kept."""
    size = sum(each.numel() for each in gradients)
    every, begin, kept = max(1, -(-size // LOOKED_AT)), 0, []
    for each in gradients:
        wide = torch.promote_types(each.dtype, torch.float32)
        kept.append(each.detach().reshape(-1)[-begin % every :: every].to("cpu", wide))
        begin += each.numel()
    return torch.cat(kept) if kept else torch.zeros(0), every


def positive_share(step: Batch) -> dict[str, float]:
    """Return the share of advantage above 0 in |advantage| as the loss of an optimiser step weighs its tokens; empty
    where there is none.
    """
    if step.advantage_bt is None or step.weight_bt is None:
        return {}
    pushed = (step.advantage_bt * step.weight_bt)[step.active_bt]
    size = float(pushed.abs().sum())
    return {"advantage_positive": float(pushed.clamp(min=0).sum()) / size} if size > 0 else {}
