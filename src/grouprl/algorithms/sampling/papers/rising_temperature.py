"""A sampling temperature that rises from round to round, against the collapse of what is sampled (PLaID++)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from grouprl.algorithms.data_part import RunContext, SamplingRule
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.numbers import Count, NonNegative
from grouprl.records.requests import RolloutRequest


@part("sampling")
class RisingTemperature(SamplingRule):
    """Sample at T·min(most, 1 + rise·round), a round having `every` steps (PLaID++, arXiv:2509.07150).

    T is the run's temperature, at which log-probs are computed whatever the rows were sampled at.
    """

    every: Count = 100
    rise: NonNegative = 0.1
    most: Annotated[float, Field(ge=1)] = 2.0
    says = "sample hotter by {rise:.0%} of the temperature with every round of {every} steps, at most {most:g} times it"
    equation = "T_k = T·min({most:g}, 1 + {rise:g}·k),  k = ⌊step/{every}⌋"

    def at(self, step: int) -> float:
        """Return the factor of the temperature at step `step`, from 0."""
        return min(self.most, 1 + self.rise * (step // self.every))

    def adjust(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return the requests with the temperature of this step; those of the first round are unchanged."""
        factor = self.at(context.step)
        context.note("sampling_temperature", context.temperature * factor, "mean")
        if factor == 1:
            return list(requests)
        return [replace(request, temperature=context.temperature * factor) for request in requests]

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the temperature cannot rise."""
        return ["rising_temperature has no effect: rise is 0 or most is 1"] if self.rise == 0 or self.most == 1 else []
