"""Refill until the success rates of prompts, or the rewards of episodes, are within a band."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from grouprl.algorithms.filter.difficulty import ROUNDING, band_rows, check_band
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.refill.refill import Refill
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share


@part("refill", "difficulty_band")
class RefillDifficultyBand(Refill):
    """Sample new prompts until the batch is full of prompts of middling difficulty (arXiv:2504.03380).

    The share of correct completions must lie in [low, high], and never be 0 or 1. A batch takes at most `max_rounds`
    rounds of sampling, and may stay incomplete after them.
    """

    low: Share = 0.2
    high: Share = 0.8
    max_rounds: Annotated[int, Field(ge=1)] = 10
    says = (
        "sample new prompts until every one has between {low:.0%} and {high:.0%} correct completions, at most "
        "{max_rounds} rounds"
    )
    idle_at = ("max_rounds", 1, "difficulty_band has no effect: max_rounds is 1")

    def __post_init__(self) -> None:
        """Refuse an empty band."""
        check_band(self.low, self.high)

    def wanted(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows of mixed groups inside the band."""
        return band_rows(batch, self.low, self.high)


@part("refill")
class EpisodeBand(Refill):
    """CPMobius: new prompts until the batch is full of episodes whose mean reward of `agent` lies in [low, high].

    An episode in which the agent has no row is not wanted. A batch takes at most `max_rounds` rounds of sampling, and
    may stay incomplete after them.
    """

    low: Share = 0.2
    high: Share = 0.8
    agent: Annotated[int, Field(ge=0)] = 0
    max_rounds: Annotated[int, Field(ge=1)] = 10
    says = (
        "sample new prompts until there are enough episodes in which agent {agent} earns between {low:g} and "
        "{high:g} on average, at most {max_rounds} rounds"
    )
    reads = ("agent_b", "keys.episode")

    def __post_init__(self) -> None:
        """Refuse an empty band."""
        check_band(self.low, self.high)

    def wanted(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows of all agents of the episodes inside the band."""
        episode_b = batch.need("keys.episode", self.name)
        own_b = (batch.need("agent_b", self.name) == self.agent).to(batch.dtype)
        mean_b = levels.mean(batch.reward_b, episode_b, own_b)
        inside_b = (mean_b >= self.low - ROUNDING) & (mean_b <= self.high + ROUNDING)
        return inside_b & (levels.total(own_b, episode_b) > 0)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if its band is 0 to 1."""
        return ["episode_band has no effect: it is 0 to 1"] if (self.low, self.high) == (0, 1) else []
