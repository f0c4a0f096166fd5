"""Signal and noise of the gradients of a rollout, and the balance of its advantages, without a further pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grouprl.core.batch import Batch
from grouprl.policy.thinning import thinned
from grouprl.protocols import Trainable
from grouprl.protocols.policies import distributed

LOOKED_AT = 2**20
"""Number of entries of a gradient that are kept; of a larger one, evenly spaced entries stand for all."""


@dataclass
class GradientWatch:
    """The gradients of the minibatches of a rollout, seen as independent batches of groups.

    It keeps one sum of (at most `LOOKED_AT` entries of) gradients, on the ranks that hold them if there are several.
    The weights move between two minibatches, which is neglected: the signal is that of policies a step apart.
    """

    parts: int
    """Minibatches of a pass over the rollout; further passes hold the same groups and are not looked at."""
    groups: int = 0
    squares: list[float] = field(default_factory=list)
    whole: float = 0.0
    """The squared norm of the sum."""
    total: list[Tensor] = field(default_factory=list)
    """The sum, in one process."""

    def add(self, policy: Trainable, step: Batch) -> None:
        """Look at the gradient of an optimiser step that has not been clipped or applied; a missing one is zero."""
        if len(self.squares) == self.parts:
            return
        every = max(1, -(-sum(x.numel() for x in policy.parameters()) // LOOKED_AT))
        shared = distributed(policy)
        square, whole = self._here(policy, every) if shared is None else shared.look(every, first=not self.squares)
        self.squares.append(every * square)
        self.whole = every * whole
        self.groups += len(step.group_b.unique())

    def _here(self, policy: Trainable, every: int) -> tuple[float, float]:
        now = thinned([torch.zeros_like(x) if x.grad is None else x.grad for x in policy.parameters()], every)
        self.total = [one + other for one, other in zip(self.total, now, strict=True)] if self.squares else now
        return _square(now), _square(self.total)

    def metrics(self) -> dict[str, float]:
        """Return signal and noise; empty for fewer than two minibatches, or without any gradient."""
        if len(self.squares) < 2 or not max(self.squares) > 0:
            return {}
        signal, noise = signal_and_noise(self.whole, self.squares, self.groups / len(self.squares))
        return {"gradient_signal": signal, "gradient_noise": noise}


def _square(pieces: Sequence[Tensor]) -> float:
    return float(sum((piece.double().square().sum() for piece in pieces), torch.zeros((), dtype=torch.float64)))


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


def positive_share(step: Batch) -> dict[str, float]:
    """Return the share of advantage above 0 in |advantage| as the loss of an optimiser step weighs its tokens; empty
    where there is none.
    """
    if step.advantage_bt is None or step.weight_bt is None:
        return {}
    pushed = (step.advantage_bt * step.weight_bt)[step.active_bt]
    size = float(pushed.abs().sum())
    return {"advantage_positive": float(pushed.clamp(min=0).sum()) / size} if size > 0 else {}
