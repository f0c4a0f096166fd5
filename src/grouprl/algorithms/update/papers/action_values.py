"""Values of actions that are learnt from a rollout's returns and from stored transitions alike (HNPG)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from grouprl.core.errors import InputError
from grouprl.core.json_types import State
from grouprl.records.offline import StoredEpisode

Chances = Callable[[Tensor], Tensor]
"""Observations [N,D] -> the policy's probability of each action, [N,A]."""


@dataclass(frozen=True)
class StoredSteps:
    """N stored steps: what was seen, done and paid, and what was seen next."""

    seen_nd: Tensor
    action_n: Tensor
    reward_n: Tensor
    next_nd: Tensor
    over_n: Tensor
    """[N] bool: steps that nothing follows."""

    def __len__(self) -> int:
        return len(self.action_n)

    def take(self, index: np.ndarray) -> StoredSteps:
        """Return the steps `index` [K]."""
        where = torch.from_numpy(index)
        return StoredSteps(*(getattr(self, name)[where] for name in self.__dataclass_fields__))


def stored_transitions(found: object, source: str, actions: int) -> StoredSteps:
    """Return the steps of stored trajectories, one trajectory after the other.

    Raises:
        InputError: `found` holds no trajectories, observations that are not arrays, or unknown actions.
    """
    episodes = list(found) if isinstance(found, Sequence) else []
    if not episodes or not all(isinstance(each, StoredEpisode) for each in episodes):
        raise InputError(
            f"'{source}' returned {type(found).__name__} of {len(episodes)}",
            "it returns a list of grouprl.records.offline.StoredEpisode, at least one",
            "The rows of a task: task.stored_rows(task.example('train', number))",
        )
    if any(not isinstance(each.observations, np.ndarray) for each in episodes):
        raise InputError(f"'{source}' has observations by name", "their values are learnt from one array", "Join them")
    seen = [np.asarray(each.observations, np.float32).reshape(len(each) + 1, -1) for each in episodes]
    action_n = torch.from_numpy(np.concatenate([each.actions for each in episodes]).astype(np.int64))
    if action_n.dim() != 1 or bool(((action_n < 0) | (action_n >= actions)).any()):
        raise InputError(f"'{source}' has actions outside 0 to {actions - 1}", "they are those of the environment")
    last = [np.arange(len(each)) == len(each) - 1 for each in episodes]
    ended = [here & each.terminated for here, each in zip(last, episodes, strict=True)]
    return StoredSteps(
        torch.from_numpy(np.concatenate([x[:-1] for x in seen])),
        action_n,
        torch.from_numpy(np.concatenate([each.rewards for each in episodes]).astype(np.float32)),
        torch.from_numpy(np.concatenate([x[1:] for x in seen])),
        torch.from_numpy(np.concatenate(ended)),
    )


class ActionValues:
    """A perceptron f(s, ·) with two layers of `width`, whose weights are kept in a part's memory.

    Args:
        store: the memory.
        inputs: numbers of an observation.
        actions: how many there are.
        width: of the hidden layers.
        seed: of the first weights.
    """

    def __init__(self, store: State, inputs: int, actions: int, width: int, seed: int) -> None:
        self.store = store
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = [nn.Linear(*pair) for pair in pairwise((inputs, width, width, actions))]
        nn.init.zeros_(layers[2].weight)
        nn.init.zeros_(layers[2].bias)
        self.net = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
        if "net" in store:
            self.net.load_state_dict(store["net"])

    @torch.no_grad()
    def __call__(self, seen_nd: Tensor) -> Tensor:
        """Return the values of all actions, [N,A]."""
        found: Tensor = self.net(seen_nd)
        return found

    def fit(
        self,
        seen_nd: Tensor,
        action_n: Tensor,
        return_n: Tensor,
        stored: StoredSteps,
        chance_ma: Tensor,
        *,
        gamma: float,
        sweeps: int,
        steps: int,
        lr: float,
    ) -> tuple[float, float]:
        """Fit f to returns of the rollout and to r + γ·Σ_a π(a|s')f(s', a) of stored steps; keep the weights.

        `chance_ma` is π at the next observations of the stored steps. Each sweep takes `steps` steps of Adam towards
        targets by f as the sweep began. Returns both mean squared errors before the last one.
        """
        adam = torch.optim.Adam(self.net.parameters(), lr)
        every_nd = torch.cat([seen_nd, stored.seen_nd])
        every_n = torch.cat([action_n, stored.action_n])[:, None]
        even_n = torch.cat([torch.full((count,), 1 / max(count, 1)) for count in (len(seen_nd), len(stored))])
        for _ in range(sweeps):
            after_m = (chance_ma * self(stored.next_nd)).sum(-1)
            target_m = stored.reward_n + gamma * torch.where(stored.over_n, 0, after_m)
            target_n = torch.cat([return_n, target_m])
            for _ in range(steps):
                error_n = even_n * (self.net(every_nd).gather(1, every_n)[:, 0] - target_n).square()
                adam.zero_grad()
                error_n.sum().backward()
                adam.step()
        self.store["net"] = {name: tensor.detach().clone() for name, tensor in self.net.state_dict().items()}
        own, others = error_n.detach().split([len(seen_nd), len(stored)])
        return float(own.sum()), float(others.sum())
