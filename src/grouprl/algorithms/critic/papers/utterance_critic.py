"""A critic of whole utterances: the expected reward from an observation on, and after an action taken
there (ArCHer).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from grouprl.algorithms.critic.papers.text_encoders import Ids, TextEncoder

HEADS = 2
"""Each quantity is estimated twice; the lower one is used."""


class UtteranceValues(Protocol):
    """An estimator of the values of utterances."""

    def __call__(self, seen: Sequence[Sequence[int]], done: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Return Q of the actions `done` after the observations `seen`, and V of the observations, each [2,N]."""

    def values(self, seen: Sequence[Sequence[int]]) -> Tensor:
        """Return V of observations, [2,N]."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the trainable parameters."""


class UtteranceCritic(nn.Module):
    """Two Q heads on [enc(observation); enc(action)] and two V heads on enc(observation), one encoder for all.

    Zhou et al. 2024, ArCHer (arXiv:2402.19446), and the authors' critic.py.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder, width = encoder, encoder.width
        self.q_heads = nn.ModuleList(_head(2 * width, width) for _ in range(HEADS))
        self.v_heads = nn.ModuleList(_head(width, width) for _ in range(HEADS))

    def forward(self, seen: Ids, done: Ids) -> tuple[Tensor, Tensor]:
        """Return Q [2,N] of actions and V [2,N] of the observations they respond to."""
        seen_nd = self.encoder(seen)
        both_nd = torch.cat([seen_nd, self.encoder(done)], 1)
        return _each(self.q_heads, both_nd), _each(self.v_heads, seen_nd)

    def values(self, seen: Ids) -> Tensor:
        """Return V [2,N] of observations."""
        return _each(self.v_heads, self.encoder(seen))


def td_losses(
    critic: UtteranceValues,
    target: UtteranceValues,
    seen: Sequence[Sequence[int]],
    done: Sequence[Sequence[int]],
    reward_n: Tensor,
    later: Sequence[Sequence[int]],
    over_n: Tensor,
    fresh: Sequence[Sequence[int]],
    gamma: float,
) -> tuple[Tensor, Tensor]:
    """Return the squared errors of Q and of V, each the sum over both heads of means over N turns.

    Q_j(o,a) -> r + gamma·(1 - over)·V'_j(o'),  V_j(o) -> Q'_j(o,a') with a' an action of the present policy, Q' and V'
    those of `target`, which gets no gradient.

    Args:
        critic: the critic to train.
        target: its slowly moving copy.
        seen: observations o.
        done: the actions a taken there.
        reward_n: their rewards, [N].
        later: observations o' that followed; anything where the episode was over.
        over_n: whether it was, [N] bool.
        fresh: actions a' of the present policy at the same observations.
        gamma: discount per turn.
    """
    q_2n, v_2n = critic(seen, done)
    with torch.no_grad():
        aim_q_2n = reward_n + gamma * torch.where(over_n, 0, target.values(later))
        aim_v_2n = target(seen, fresh)[0]
    return (q_2n - aim_q_2n).square().mean(1).sum(), (v_2n - aim_v_2n).square().mean(1).sum()


@torch.no_grad()
def prepared(
    critic: UtteranceValues, seen: Sequence[Sequence[int]], done: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Return min(Q1, Q2) of actions and min(V1, V2) of their observations, each [N]; A is their difference."""
    q_2n, v_2n = critic(seen, done)
    return q_2n.amin(0), v_2n.amin(0)


@torch.no_grad()
def follow(target: UtteranceValues, critic: UtteranceValues, tau: float) -> None:
    """Move the target towards the critic by Polyak averaging: target <- tau·critic + (1 - tau)·target."""
    for slow, fast in zip(target.parameters(), critic.parameters(), strict=True):
        slow.lerp_(fast, tau)


def _head(given: int, width: int) -> nn.Sequential:
    layers = (nn.Linear(given, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    return nn.Sequential(*layers)


def _each(heads: nn.ModuleList, state_nd: Tensor) -> Tensor:
    return torch.stack([head(state_nd)[:, 0] for head in heads])
