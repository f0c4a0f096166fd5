"""Trust region: the Fisher matrix of the natural gradient step, and the surrogate objective of that step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Surrogate
from grouprl.algorithms.objective.ratio import Against, log_ratio, ratio_code, symbol
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.json_types import State
from grouprl.core.outputs import LOG_PROB
from grouprl.protocols import Policy
from grouprl.protocols.vectors import V, VectorSpace

TRIES = 6
"""Largest number of attempts at finding a step size for the finite difference."""


@part("objective")
class Importance(Surrogate):
    """-ρ·A without any bound: the surrogate of conservative policy iteration (TRPO, arXiv:1502.05477, eq. 14)."""

    against: Against = "old"
    reads = ("{against}_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return loss_t = -ρ_t A_t."""
        ratio_bt = log_ratio(logp_bt, batch, "token", self.against).exp()
        return TokenLoss(-batch.need("advantage_bt", self.name) * ratio_bt, {})

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return "\n".join([*ratio_code("token", self.against), "loss_bt = -adv_bt * ratio_bt"])

    @override
    def words(self) -> str:
        other = "the old policy" if self.against == "old" else "the policy that sampled it"
        return f"push each token by its ratio to {other} times its advantage, without a clip"

    @override
    def formula(self) -> str:
        return f"-ρ·A,  {symbol('token', self.against)}"


class Fisher(Generic[V]):
    """Products of the sampled Fisher matrix, plus damping, with vectors over the weights of `space`.

    F v = backward(1/N · J v): J v, the slope of every token's log-prob along v, is a central difference whose step size
    is chosen by how far log-probs move: large enough for rounding, small enough for their curvature.
    """

    def __init__(self, policy: Policy, space: VectorSpace[V], step: Batch, damping: float) -> None:
        self.policy, self.space, self.tokens, self.damping = policy, space, step.inputs, damping
        self.even_bt = step.active_bt.to(step.dtype) / step.active_bt.sum().clamp(min=1)
        self.start_p = space.weights()
        self.wanted = 4 * math.sqrt(space.eps)
        self.reach = self.wanted

    def __call__(self, v_p: V) -> V:
        """Return (F + damping) v."""
        slope_bt = self.slope(v_p)
        clear(self.policy)
        self.policy.backward(self.tokens, {LOG_PROB: self.even_bt.to(slope_bt) * slope_bt})
        return self.space.gradient() + self.damping * v_p

    def slope(self, v_p: V) -> Tensor:
        """Return [B,T] derivative of each token's log-prob along v."""
        size = float(v_p.norm())
        for _ in range(TRIES):
            reach = self.reach
            change_bt = (self._logp(v_p, reach / size) - self._logp(v_p, -reach / size)) / 2
            moved = math.sqrt(float((self.even_bt.to(change_bt) * change_bt.square()).sum()))
            self.reach = reach * min(1e2, max(1e-4, self.wanted / max(moved, 1e-300)))
            if self.wanted / 4 <= moved <= self.wanted * 4:
                break
        self.space.write(self.start_p)
        return change_bt * (size / reach)

    def _logp(self, v_p: V, by: float) -> Tensor:
        self.space.write(self.start_p + by * v_p)
        return self.policy.logp(self.tokens)


def clear(policy: Policy) -> None:
    """Clear all gradients."""
    for _, parameter in policy.named_parameters():
        parameter.grad = None


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return a [P] copy of all entries."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def kept(store: State, name: str, otherwise_p: Tensor) -> Tensor:
    """Return the vector [P] in a part's memory, or `otherwise_p` where there is none, on the device of `otherwise_p`.

    A vector that comes out of a checkpoint is on the CPU, whichever device it was kept on.
    """
    found_p: Tensor = store.get(name, otherwise_p)
    return found_p.to(otherwise_p.device)


def gradient(parameters: Sequence[Tensor]) -> Tensor:
    """Return [P] the gradients; 0 for a parameter without one."""
    return flat([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])


@torch.no_grad()
def write(parameters: Sequence[Tensor], value_p: Tensor) -> None:
    """Copy the entries of `value_p` into the parameters, in place."""
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, piece in zip(parameters, value_p.split(sizes), strict=True):
        parameter.copy_(piece.view_as(parameter))


def write_gradient(parameters: Sequence[Tensor], value_p: Tensor) -> None:
    """Make the entries of `value_p` the gradients of the parameters."""
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, piece in zip(parameters, value_p.split(sizes), strict=True):
        parameter.grad = piece.view_as(parameter).to(parameter).clone()
