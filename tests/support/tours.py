"""Short tours through cities: an environment that shows its map once, and the policy that builds a tour from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from grouprl.envs import ArrayObservation, Step
from grouprl.policy import ArrayPolicy, Build, Seen
from grouprl.policy.vectors.mlp import perceptron
from grouprl.protocols import Box, DictSpace, Discrete, Spaces

CITIES = 6
PARTS = ("read", "first", "last")


class Tour:
    """Visit every city once, city by city; the reward is minus the length of the closed tour."""

    spaces = Spaces(
        observation=DictSpace({"first": Discrete(CITIES), "last": Discrete(CITIES)}),
        action=Discrete(CITIES),
        context=DictSpace({"city": Box((CITIES, 2), 0.0, 1.0)}),
    )

    def __init__(self) -> None:
        self.city = np.zeros((CITIES, 2))
        self.order: list[int] = []

    def reset(self, example: Any, seed: int) -> ArrayObservation:
        self.city = np.random.default_rng(int(example.columns["seed"])).random((CITIES, 2)).astype(np.float32)
        return replace(self._shown(), context={"city": self.city})

    def step(self, action: Any) -> Step:
        for city in np.atleast_1d(action):
            assert city not in self.order, "a city is visited once"
            self.order.append(int(city))
        done = len(self.order) == CITIES
        return Step(self._shown(), -self._length() if done else 0.0, terminated=done)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass

    def _length(self) -> float:
        path = self.city[[*self.order, self.order[0]]]
        return float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum())

    def _shown(self) -> ArrayObservation:
        legal = np.ones(CITIES, dtype=bool)
        legal[self.order] = False
        first, last = (self.order[0], self.order[-1]) if self.order else (0, 0)
        return ArrayObservation({"first": first, "last": last}, legal)


class WholeTour(Tour):
    """The same, told of the whole tour at once."""

    spaces = replace(Tour.spaces, chain=CITIES)


class Pointer(ArrayPolicy):
    """Reads the map once for each tour, and points at the next city from where the tour stands."""

    def __init__(self, build: Build, *, width: int = 16) -> None:
        self.width, self.seed, self.maps_read = width, build.seed, 0
        made = {name: self._layer(number, 2 if name == "read" else width) for number, name in enumerate(PARTS)}
        super().__init__(build, nn.ModuleDict(made), critic=self.new_critic() if build.values else None)

    def new_critic(self) -> nn.Module:
        return perceptron(self.width, 1, (16,), "tanh", seed=self.seed)

    def _layer(self, number: int, inputs: int) -> nn.Module:
        layer = perceptron(inputs, self.width, (16,), "tanh", seed=self.seed + number)
        with torch.no_grad():
            layer[-1].weight.mul_(100)
        return layer

    def distribution(self, seen: Seen, temperature: float) -> Categorical:
        city_ncw, (first_nw, last_nw) = self._read(seen)
        query_nw = self.module["first"](first_nw) + self.module["last"](last_nw)
        return Categorical(logits=(city_ncw * query_nw[:, None]).sum(-1) / temperature)

    def value(self, seen: Seen) -> Tensor:
        assert self.critic is not None
        return self.critic(self._read(seen)[0].mean(1))[:, 0]

    def advance(self, seen: Seen, action_n: Tensor) -> Seen:
        assert seen.legal_na is not None
        begins_n = seen.legal_na.all(1)
        places = {"first": torch.where(begins_n, action_n, seen.observation["first"]), "last": action_n}
        return replace(seen, observation=places, legal_na=seen.legal_na.scatter(1, action_n[:, None], False))

    def ended(self, seen: Seen) -> Tensor:
        assert seen.legal_na is not None
        return ~seen.legal_na.any(1)

    def _read(self, seen: Seen) -> tuple[Tensor, list[Tensor]]:
        """[N,C,W] of the maps, each read once, and [N,W] of the first and the last city."""
        self.maps_read += len(seen.context["city"])
        city_ncw = self.module["read"](seen.context["city"])[seen.row_n]
        places = (seen.observation[name] for name in ("first", "last"))
        return city_ncw, [city_ncw[torch.arange(len(p), device=p.device), p] for p in places]
