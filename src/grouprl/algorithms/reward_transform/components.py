"""Rewards recomputed from their components, for all rows or for those of one agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import Whole


@part("reward_transform")
class WeightedComponents(RewardTransform):
    """R ← Σ weight · component over the named components, for rows of agent number `agent` (None: for all).

    A component that a row lacks counts 0; one that no row has is an error, unless it weighs 0.
    """

    weights: Annotated[Mapping[str, float], Field(min_length=1)] = Field(default_factory=lambda: {"accuracy": 1.0})
    agent: Whole | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Return R ← Σ_k w_k · R_k."""
        total_b = torch.zeros_like(batch.reward_b)
        for name, weight in self._counting().items():
            if name not in batch.rewards:
                known = f"Its components are {', '.join(batch.rewards)}" if batch.rewards else "The reward has no parts"
                raise InputError(
                    f"{self.name} needs batch.rewards.{name}, which this reward does not give", remedy=known
                )
            total_b = total_b + weight * batch.rewards[name].to(batch.dtype).nan_to_num(0.0)
        if self.agent is not None:
            total_b = torch.where(batch.need("agent_b", self.name) == self.agent, total_b, batch.reward_b)
        return batch.replace(reward_b=total_b)

    @override
    def code(self) -> str:
        terms = [f'{weight!r} * rewards["{name}"].nan_to_num(0.0)' for name, weight in self._counting().items()]
        if self.agent is None:
            return f"reward_b = {' + '.join(terms) or 'torch.zeros_like(reward_b)'}"
        total = f"total_b = {' + '.join(terms) or 'torch.zeros_like(reward_b)'}"
        return f"{total}\nreward_b = torch.where(agent_b == {self.agent}, total_b, reward_b)"

    def _counting(self) -> dict[str, float]:
        """Return the components whose weight is not 0."""
        return {name: weight for name, weight in self.weights.items() if weight != 0}

    @override
    def needs(self) -> tuple[str, ...]:
        return (*(f"rewards.{name}" for name in self._counting()), *(["agent_b"] if self.agent is not None else []))

    @override
    def words(self) -> str:
        parts = " + ".join(f"{weight:g} · {name}" for name, weight in self._counting().items()) or "nothing"
        return f"the reward{'' if self.agent is None else f' of agent {self.agent}'} is {parts}"

    @override
    def formula(self) -> str:
        return "R ← " + (" + ".join(f"{weight:g}·R_{name}" for name, weight in self._counting().items()) or "0")

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if all weights are 0 or the task has no such agent."""
        if self.agent is not None and self.agent >= run.agents:
            return [f"{self.name} has no effect: the task has no agent {self.agent}"]
        return [] if self._counting() else [f"{self.name} pays nothing: all its weights are 0"]
