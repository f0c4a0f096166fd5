"""A small denoising chain: an environment whose actions are denoising steps, and the Gaussian policy of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal

from grouprl.envs import Step
from grouprl.policy.kinds import Build
from grouprl.policy.vectors.array_inputs import Seen
from grouprl.policy.vectors.array_policy import ArrayPolicy
from grouprl.policy.vectors.mlp import perceptron
from grouprl.protocols import Box, Spaces

TARGET = np.array([1.0, -0.5], dtype=np.float32)


class Denoising:
    """Noise [2] becomes a point in `steps` steps; its reward falls with its distance from a target."""

    spaces = Spaces(observation=Box((3,)), action=Box((2,)))

    def __init__(self, steps: int = 4) -> None:
        self.steps = steps
        self.point, self.time = np.zeros(2, dtype=np.float32), 0

    def reset(self, example: Any, seed: int) -> np.ndarray:
        self.point = np.random.default_rng(seed).standard_normal(2).astype(np.float32)
        return self._seen()

    def step(self, action: np.ndarray) -> Step:
        points = np.atleast_2d(np.asarray(action, dtype=np.float32))
        self.point, self.time = points[-1], self.time + len(points)
        done = self.time == self.steps
        return Step(self._seen(), self._worth() if done else 0.0, terminated=done)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        return {"correct": float(self._worth() > 0.8)}

    def close(self) -> None:
        pass

    def _worth(self) -> float:
        return math.exp(-float(((self.point - TARGET) ** 2).sum()))

    def _seen(self) -> np.ndarray:
        return np.append(self.point, np.float32(self.time / self.steps)).astype(np.float32)


class WholeDenoising(Denoising):
    """The same, told of the whole chain at once."""

    spaces = replace(Denoising.spaces, chain=4)


class Chain(ArrayPolicy):
    """x' ~ N(x + v(x, t) / steps, (sigma · temperature)²): one step of a flow with noise."""

    def __init__(self, build: Build, *, steps: int = 4, sigma: float = 0.3, hidden: int = 16) -> None:
        self.steps, self.sigma = steps, sigma
        module = nn.ModuleDict({"velocity": perceptron(3, 2, (hidden,), "tanh", seed=build.seed)})
        super().__init__(build, module)

    def distribution(self, seen: Seen, temperature: float) -> Independent:
        velocity_na = self.module["velocity"](seen.observation)
        mean_na = seen.observation[:, :2] + velocity_na / self.steps
        return Independent(Normal(mean_na, torch.full_like(mean_na, self.sigma * temperature)), 1)

    def advance(self, seen: Seen, action_n: Tensor) -> Seen:
        time_n1 = seen.observation[:, 2:] + 1 / self.steps
        return replace(seen, observation=torch.cat([action_n, time_n1], -1))

    def ended(self, seen: Seen) -> Tensor:
        return seen.observation[:, 2] >= 1
