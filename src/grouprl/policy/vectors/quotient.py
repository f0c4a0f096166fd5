"""A policy that forgets the past: an encoder of what is left of an instance, run anew at every choice."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_distributions import PlainCategorical
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.pointer import Attention, AttentionPolicy, check_sizes
from grouprl.protocols import Box, DictSpace, Discrete, Spaces


class GrowingLayer(nn.Module):
    """Attention among the nodes that are left and a perceptron, each times a learned number that begins at 0 (ReZero,
    Bachlechner et al. 2020).
    """

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.perceptron = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))
        self.read, self.thought = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))

    def forward(self, node_pnd: Tensor, left_pn: Tensor) -> Tensor:
        """Return the nodes [P,N,d], each having read those that are left."""
        node_pnd = node_pnd + self.read * self.attention(node_pnd, node_pnd, left_pn)
        return node_pnd + self.thought * self.perceptron(node_pnd)


class QuotientNet(nn.Module):
    """A linear embedding of the nodes, which marks the beginning and the end, layers of attention, and a score of each
    node (Drakulic et al. 2023, section 4).

    Args:
        columns: numbers of a node of the rest: whether it is left, the beginning, the end, then its features.
        width: numbers of a node.
        layers: layers of attention.
        heads: heads of each attention.
    """

    def __init__(self, columns: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(columns - 1, width)
        self.layers = nn.ModuleList(GrowingLayer(width, heads, 4 * width) for _ in range(layers))
        self.score, self.worth = nn.Linear(width, 1), nn.Linear(width, 1)

    def encoded(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """Return the nodes [P,N,d] of each position, and which are left, [P,N]."""
        rest_pnc = seen.observation["rest"]
        left_pn = rest_pnc[..., 0] > 0
        node_pnd = self.embed(rest_pnc[..., 1:])
        for layer in self.layers:
            node_pnd = layer(node_pnd, left_pn)
        return node_pnd, left_pn

    def forward(self, seen: Seen) -> Tensor:
        """Return logits [P,N]."""
        scores: Tensor = self.score(self.encoded(seen)[0])[..., 0]
        return scores

    def value(self, seen: Seen) -> Tensor:
        """Return a value [P] of each position, from the mean of its nodes."""
        node_pnd, left_pn = self.encoded(seen)
        share_pn = left_pn / left_pn.sum(-1, keepdim=True).clamp(min=1)
        value_p: Tensor = self.worth((node_pnd * share_pn[..., None]).sum(1))[:, 0]
        return value_p


class Quotient(AttentionPolicy):
    """Encoder without a decoder for what is left of a constructive problem (BQ-NCO, arXiv:2301.03313).

    It reads tasks whose observations are a `rest` [N,3+K], as those of construct:... with state: rest. At every choice
    the whole network runs on the nodes that are left, so that it never knows what was before, and a solution of N
    nodes costs N passes. Weights do not depend on the number of nodes.

    *Differs from the paper*: batches have one number of nodes, with those that are gone masked, where the paper cuts
    them off; a choice of the CVRP is a node, the depot among them, where the paper scores each customer twice, direct
    and by way of the depot; a critic and a temperature are possible.

    Args:
        build: the run's arguments.
        width: numbers of a node (paper: 192).
        layers: layers of attention (paper: 9).
        heads: heads of each attention (paper: 12).
    """

    def __init__(self, build: Build, *, width: int = 64, layers: int = 3, heads: int = 4) -> None:
        spaces = build.need_spaces("quotient", observations=(DictSpace,), actions=(Discrete,))
        columns = _columns(spaces)
        check_sizes("quotient", width, layers, heads)
        super().__init__(build, partial(QuotientNet, columns, width, layers, heads))

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the distribution over nodes at each position."""
        return PlainCategorical(self.module(seen) / temperature)


def _columns(spaces: Spaces) -> int:
    observation = spaces.observation
    assert isinstance(observation, DictSpace)
    rest = observation.spaces.get("rest")
    if not isinstance(rest, Box) or len(rest.shape) != 2 or rest.shape[1] < 4:
        raise InputError(
            f"the observations {sorted(observation.spaces)}",
            "the policy quotient reads the rest of an instance",
            "Set task.state to rest for construct:tsp, cvrp or knapsack, or take model: pointer",
        )
    return rest.shape[1]
