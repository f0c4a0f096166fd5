"""A policy that points at one of several nodes: the map is encoded once, every choice is decoded from it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from grouprl.core.answering import Answering
from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_distributions import ILLEGAL, PlainCategorical
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.array_policy import ArrayPolicy
from grouprl.protocols import Box, DictSpace, Discrete, Spaces

CLIP = 10.0
"""Largest magnitude of a logit (Bello et al. 2016)."""


class Attention(nn.Module):
    """Attention of queries over nodes, in several heads, without dropout.

    Args:
        width: numbers of a query, a node and a result.
        heads: number of heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.said = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, query_rqd: Tensor, node_rnd: Tensor, open_rn: Tensor | None = None) -> Tensor:
        """Return the numbers [R,Q,d] that each query reads of the nodes, or of those that `open_rn` leaves open."""
        shape = (self.heads, -1)
        query, key, said = (
            layer(x).unflatten(-1, shape).transpose(1, 2)
            for layer, x in ((self.query, query_rqd), (self.key, node_rnd), (self.said, node_rnd))
        )
        mask = None if open_rn is None else torch.where(open_rn, 0.0, ILLEGAL).to(query)[:, None, None]
        found = nn.functional.scaled_dot_product_attention(query, key, said, attn_mask=mask)
        return self.out(found.transpose(1, 2).flatten(2))


class EncoderLayer(nn.Module):
    """Attention among nodes and a perceptron, each added to its normalised input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.before, self.between = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, node_rnd: Tensor) -> Tensor:
        """Return the nodes, each having read all others."""
        read_rnd = self.before(node_rnd)
        node_rnd = node_rnd + self.attention(read_rnd, read_rnd)
        return node_rnd + self.perceptron(self.between(node_rnd))


def encoded_once(map_rnf: Tensor, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the nodes [R,N,d] of maps; rows with the same map are encoded once."""
    each_mk, which_r = torch.unique(map_rnf.flatten(1), dim=0, return_inverse=True)
    return encode(each_mk.unflatten(1, map_rnf.shape[1:]))[which_r]


class PointerNet(nn.Module):
    """An encoder of maps, and a decoder that asks its nodes from where the solution stands (Kool et al. 2019, section
    3; Bello et al. 2016).

    Args:
        spaces: the task's spaces.
        width: numbers of a node.
        layers: layers of the encoder.
        heads: heads of each attention.
    """

    def __init__(self, spaces: Spaces, width: int, layers: int, heads: int) -> None:
        super().__init__()
        observation = spaces.observation
        assert isinstance(observation, DictSpace)
        static, changing, whole = (
            each.shape[-1]
            for each in (spaces.context.spaces["map"], *(observation.spaces[n] for n in ("nodes", "whole")))
        )
        self.embed = nn.Linear(static, width)
        self.encoder = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.changing, self.whole = nn.Linear(changing, width, bias=False), nn.Linear(whole, width)
        self.here, self.mean = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.glimpse, self.point = Attention(width, heads), nn.Linear(width, width, bias=False)
        self.worth = nn.Linear(width, 1)

    def asked(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """Return the query [P,d] of each position after its glimpse at the open nodes, and the nodes [P,N,d] there."""
        node_rnd = encoded_once(seen.context["map"], lambda map_mnf: self.encoder(self.embed(map_mnf)))
        node_pnd, here_p = node_rnd[seen.row_n], seen.observation["here"]
        query_pd = self.here(node_pnd[torch.arange(len(here_p), device=here_p.device), here_p])
        query_pd = query_pd + self.mean(node_rnd.mean(1))[seen.row_n] + self.whole(seen.observation["whole"])
        node_pnd = node_pnd + self.changing(seen.observation["nodes"])
        return query_pd + self.glimpse(query_pd[:, None], node_pnd, seen.legal_na)[:, 0], node_pnd

    def forward(self, seen: Seen) -> Tensor:
        """Return logits [P,N] within ±10."""
        return self.pointed(*self.asked(seen))

    def pointed(self, query_pd: Tensor, node_pnd: Tensor) -> Tensor:
        """Return logits [P,N] within ±10 of nodes [P,N,d] for the queries [P,d] that ask them."""
        fit_pn = (self.point(node_pnd) @ query_pd[:, :, None])[..., 0] / query_pd.shape[-1] ** 0.5
        return CLIP * torch.tanh(fit_pn)

    def value(self, seen: Seen) -> Tensor:
        """Return a value [P] of each position."""
        return self.worth(self.asked(seen)[0])[:, 0]


@runtime_checkable
class Valued(Protocol, metaclass=Answering):
    """A network that also gives the value of a position."""

    def value(self, seen: Seen) -> Tensor:
        """Return the value of each position, [P]."""
        ...


class AttentionPolicy(ArrayPolicy):
    """Base of the policies that attend to nodes: their critic is a second network of the same sizes.

    Args:
        build: the run's arguments.
        make: returns a network, drawn by torch's generator.
    """

    def __init__(self, build: Build, make: Callable[[], nn.Module]) -> None:
        self._make, self._seed = make, build.seed
        super().__init__(build, self._drawn(0), critic=self._drawn(1) if build.values else None)

    def new_critic(self) -> nn.Module:
        """Return a network of the policy's own sizes, of which only the value is read."""
        return self._drawn(1)

    def value(self, seen: Seen) -> Tensor:
        """Return the critic's value of each position, [P]."""
        assert isinstance(self.critic, Valued)
        return self.critic.value(seen)

    def _drawn(self, number: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed + number)
            return self._make()


def check_sizes(name: str, width: int, layers: int, heads: int) -> None:
    """Refuse sizes that attention cannot have.

    Raises:
        InputError: a number is too small, or the heads do not divide the width.
    """
    if width < 1 or heads < 1 or layers < 0 or width % heads:
        raise InputError(
            f"width {width}, layers {layers}, heads {heads} of the policy {name}",
            "heads must divide the width, and neither is below 1",
        )


class Pointer(AttentionPolicy):
    """Attention policy for constructive problems: softmax over nodes, logits 10·tanh divided by the temperature.

    It reads tasks whose context has a `map` [N,F] and whose observations have `here`, `nodes` [N,D] and `whole` [S], as
    those of construct:… do. The encoder reads the map of an instance once for all choices and rows of a pass.

    *Differs from Kool et al.*: layer norm before each block in place of batch norm, so that a row does not depend on
    the others of a pass; the keys of the decoder read what changes about each node.

    Args:
        build: the run's arguments.
        width: numbers of a node.
        layers: layers of the encoder.
        heads: heads of each attention.
    """

    def __init__(self, build: Build, *, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        spaces = build.need_spaces("pointer", observations=(DictSpace,), actions=(Discrete,))
        need_map("pointer", spaces)
        check_sizes("pointer", width, layers, heads)
        super().__init__(build, partial(PointerNet, spaces, width, layers, heads))

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the distribution over nodes at each position."""
        return PlainCategorical(self.module(seen) / temperature)


def need_map(name: str, spaces: Spaces) -> None:
    """Check that the spaces hold a map, which the policy `name` encodes.

    Raises:
        InputError: there is none.
    """
    observation, there = spaces.observation, spaces.context.spaces.get("map")
    assert isinstance(observation, DictSpace)
    whole = isinstance(there, Box) and len(there.shape) == 2 and {"here", "nodes", "whole"} <= set(observation.spaces)
    if not whole:
        raise InputError(
            f"the context {sorted(spaces.context.spaces)} and the observations {sorted(observation.spaces)}",
            f"the policy {name} reads `map` in the context, and `here`, `nodes` and `whole` in observations",
            "Take a task such as construct:tsp, or model: mlp",
        )
