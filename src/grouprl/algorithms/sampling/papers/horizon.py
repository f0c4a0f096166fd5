"""Limits on the turns of an episode that grow during the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.data_part import RunContext, SamplingRule
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import InputError
from grouprl.core.numbers import Count
from grouprl.records.requests import RolloutRequest


@part("sampling")
class Horizon(SamplingRule):
    """Episodes are cut off after turns[min(⌊step/every⌋, last)] turns (ScalingInter-RL, arXiv:2509.08755).

    An episode that is cut off keeps the reward it has so far. Steps count from 1, as in the authors' code.
    """

    turns: Annotated[tuple[Count, ...], Field(min_length=1)] = (10, 20, 30)
    every: Count = 100

    def __post_init__(self) -> None:
        """Raise InputError if the limits do not grow."""
        if list(self.turns) != sorted(self.turns):
            raise InputError(
                f"horizon has the turns {list(self.turns)}", "the limits must grow", f"Set {sorted(self.turns)}"
            )

    def at(self, step: int) -> int:
        """Return the limit of turns at step `step`, from 0."""
        return self.turns[min((step + 1) // self.every, len(self.turns) - 1)]

    def adjust(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return the requests with the limit of turns of this step."""
        turns = self.at(context.step)
        context.note("horizon", turns, "mean")
        return [replace(request, max_turns=turns) for request in requests]

    @override
    def words(self) -> str:
        stages = ", ".join(map(str, self.turns))
        return f"episodes of at most {stages} turns, the next number every {self.every} steps"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without turns."""
        if run.environment:
            return []
        return ["horizon limits turns, and the task has none. Use a task with an environment"]

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if no episode can reach the limit."""
        if self.turns[0] < run.turns:
            return []
        return [f"horizon has no effect: the task's episodes take at most {run.turns} turns anyway"]
