"""A policy by which several vehicles point at nodes at once."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from grouprl.core.errors import InputError
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_distributions import RankedPicks
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.pointer import CLIP, Attention, AttentionPolicy, EncoderLayer, check_sizes, encoded_once
from grouprl.protocols import DictSpace, MultiDiscrete, Spaces

CONTEXT, SEEN = ("map", "fleet", "profile"), ("here", "vehicles", "open")


class PointersNet(nn.Module):
    """An encoder of maps, vehicles that read one another, and a pointer for each, which sees the nodes by its own
    preferences (PARCO, section 4; CAMP, section 4).

    Args:
        spaces: the task's spaces.
        width: numbers of a node and of a vehicle.
        layers: layers of the encoder.
        heads: heads of each attention.
    """

    def __init__(self, spaces: Spaces, width: int, layers: int, heads: int) -> None:
        super().__init__()
        observation = spaces.observation
        assert isinstance(observation, DictSpace)
        there = spaces.context.spaces
        changing = observation.spaces["vehicles"].shape[-1] + there["fleet"].shape[-1]
        self.embed = nn.Linear(there["map"].shape[-1], width)
        self.encoder = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.vehicle, self.here = nn.Linear(changing, width), nn.Linear(width, width, bias=False)
        self.mean, self.open = nn.Linear(width, width, bias=False), nn.Linear(1, width, bias=False)
        self.own, self.talk = nn.Linear(2, width, bias=False), EncoderLayer(width, heads)
        self.glimpse, self.point = Attention(width, heads), nn.Linear(width, width, bias=False)
        self.worth = nn.Linear(width, 1)

    def asked(self, seen: Seen) -> tuple[Tensor, Tensor]:
        """Return the query [P,K,d] of each vehicle after its glimpse at its legal nodes, and its nodes [P,K,N,d]."""
        node_rnd = encoded_once(seen.context["map"], lambda map_mnf: self.encoder(self.embed(map_mnf)))
        node_pnd, here_pk = node_rnd[seen.row_n], seen.observation["here"]
        state_pks = torch.cat([seen.context["fleet"][seen.row_n], seen.observation["vehicles"]], -1)
        at_pkd = node_pnd.gather(1, here_pk[..., None].expand(-1, -1, node_pnd.shape[-1]))
        vehicle_pkd = self.vehicle(state_pks) + self.here(at_pkd) + self.mean(node_rnd.mean(1))[seen.row_n, None]
        query_pkd = self.talk(vehicle_pkd)
        liked_pkn = seen.context["profile"][seen.row_n]
        own_pnd = node_pnd + self.open(seen.observation["open"][..., None])
        node_pknd = own_pnd[:, None] + self.own(torch.stack([liked_pkn, _away(seen)], -1))
        legal_qn = _picks(seen, *liked_pkn.shape[1:])
        read_qd = self.glimpse(query_pkd.flatten(0, 1)[:, None], node_pknd.flatten(0, 1), legal_qn)[:, 0]
        return query_pkd + read_qd.unflatten(0, query_pkd.shape[:2]), node_pknd

    def forward(self, seen: Seen) -> Tensor:
        """Return logits [P,K,N] within ±10."""
        query_pkd, node_pknd = self.asked(seen)
        fit_pkn = (self.point(node_pknd) @ query_pkd[..., None])[..., 0] / query_pkd.shape[-1] ** 0.5
        return CLIP * torch.tanh(fit_pkn)

    def value(self, seen: Seen) -> Tensor:
        """Return a value [P] of each position, from the mean of its vehicles."""
        value_p: Tensor = self.worth(self.asked(seen)[0].mean(1))[:, 0]
        return value_p


class Pointers(AttentionPolicy):
    """Attention policy of a fleet: in one pass every vehicle picks a node (PARCO, arXiv:2409.03811).

    It reads tasks as `grouprl.envs.construction.fleet:DeliveryFleet`, whose preferences of vehicles for customers, if
    there are any, it adds to what each sees of the nodes (CAMP, arXiv:2501.02977), beside its way to them. Picks of one
    node are ranked by their probability. The log-prob of an action is that of what was picked, whoever gets it.

    *Differs from the papers*: sizes are fixed within a run, where theirs vary by batch; vehicles read one another in
    one layer, and see how far each node is; a preference is added to a node, where CAMP has attention between clients
    and vehicles for each profile.

    Args:
        build: the run's arguments.
        width: numbers of a node and of a vehicle.
        layers: layers of the encoder.
        heads: heads of each attention.
    """

    def __init__(self, build: Build, *, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        spaces = build.need_spaces("pointers", observations=(DictSpace,), actions=(MultiDiscrete,))
        _need_fleet(spaces)
        check_sizes("pointers", width, layers, heads)
        super().__init__(build, partial(PointersNet, spaces, width, layers, heads))

    def distribution(self, seen: Seen, temperature: float) -> Distribution:
        """Return the distributions of the picks, which are independent given the position."""
        return RankedPicks(list((self.module(seen) / temperature).unbind(1)))


def _away(seen: Seen) -> Tensor:
    """Return the distance [P,K,N] of each node from each vehicle."""
    place_pn2, here_pk = seen.context["map"][seen.row_n, :, :2], seen.observation["here"]
    at_pk2 = place_pn2.gather(1, here_pk[..., None].expand(-1, -1, 2))
    return torch.linalg.vector_norm(at_pk2[:, :, None] - place_pn2[:, None], dim=-1)


def _picks(seen: Seen, vehicles: int, nodes: int) -> Tensor | None:
    """Return [P·K,N] the legal picks of each vehicle; None: all are."""
    if seen.legal_na is None:
        return None
    return seen.legal_na[:, : vehicles * nodes].unflatten(1, (vehicles, nodes)).flatten(0, 1)


def _need_fleet(spaces: Spaces) -> None:
    observation, there = spaces.observation, spaces.context.spaces
    assert isinstance(observation, DictSpace)
    if not (set(CONTEXT) <= set(there) and set(SEEN) <= set(observation.spaces)):
        raise InputError(
            f"the context {sorted(there)} and the observations {sorted(observation.spaces)}",
            f"the policy pointers reads {', '.join(CONTEXT)} in the context, and {', '.join(SEEN)} in observations",
            "Take a task such as env:grouprl.envs.construction.fleet:DeliveryFleet, or model: mlp",
        )
