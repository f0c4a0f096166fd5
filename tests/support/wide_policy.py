"""Policies of a stranger, in a file of their own."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Categorical, Distribution

from grouprl.policy import ArrayPolicy
from grouprl.policy.kinds import Build


class Wide(ArrayPolicy):
    """One hidden layer; `closure` makes it hold what cannot be pickled."""

    def __init__(self, build: Build, width: int = 8, closure: bool = False) -> None:
        torch.manual_seed(build.seed)
        module = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
        super().__init__(build, module, critic=nn.Linear(4, 1) if build.values else None)
        self.held = (lambda: 0) if closure else None

    def distribution(self, seen, temperature: float) -> Distribution:
        return Categorical(logits=self.module(seen.observation) / temperature)


class Bare:
    """What no module of the package scores."""

    def __init__(self, build: Build) -> None:
        self.build = build
