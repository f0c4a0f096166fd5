"""Completions that begin with part of the right solution, and with less of it as the run proceeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.augment.guidance import needs_solutions
from grouprl.algorithms.data_part import RunContext, SamplingRule
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.numbers import PositiveShare
from grouprl.records.requests import RolloutRequest


class Restarts(SamplingRule):
    """Base: completions of a share `chance` of the prompts begin with part of the right solution.

    The given part is scored with the completion and never trained on.
    """

    needs_text = True

    chance: float
    idle_at = ("chance", 0, "{name} has no effect: its chance is 0")

    def adjust(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return the requests, some with the beginning of their prompt's solution."""
        rng = context.rng(self)
        uniforms = {ordinal: rng.random(2) for ordinal in dict.fromkeys(request.ordinal for request in requests)}
        adjusted = [self._begun(request, uniforms[request.ordinal], context) for request in requests]
        context.note("restarts", sum(bool(request.prefix) for request in adjusted))
        return adjusted

    def given(self, uniform: float, tokens: int, context: RunContext) -> int:
        """Return how many of a solution's `tokens` tokens a completion begins with; `uniform` is drawn from [0, 1)."""
        raise NotImplementedError

    def _begun(self, request: RolloutRequest, uniforms: np.ndarray, context: RunContext) -> RolloutRequest:
        right = context.task.solution(request.example) if uniforms[0] < self.chance else None
        ids = context.text.encode(right) if right else ()
        given = min(self.given(float(uniforms[1]), len(ids), context), len(ids), context.max_new_tokens - 1)
        if given < 1:
            return request
        room = min(request.max_new_tokens or context.max_new_tokens, context.max_new_tokens - given)
        return replace(request, prefix=(*request.prefix, *ids[:given]), max_new_tokens=room)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without right solutions."""
        return needs_solutions(self.name, run)


@part("sampling")
class PrefixRestarts(Restarts):
    """Completions of a share `chance` of the prompts begin with part of the right solution, less and less of it.

    The length of that part is drawn uniformly from 0 up to a share of the solution's tokens that falls from `most` to 0
    in equal steps until the share `until` of the run: a curriculum from the end of the solution backwards (after
    Florensa et al., arXiv:1707.05300; for language models R3, arXiv:2402.05808). The given part is scored with the
    completion and never trained on.
    """

    chance: Annotated[float, Field(ge=0, le=1)] = 0.5
    most: PositiveShare = 0.9
    until: PositiveShare = 1.0

    def given(self, uniform: float, tokens: int, context: RunContext) -> int:
        """Return a number from 0 up to the step's largest share of the solution."""
        return int(uniform * self.share(context.step, context.steps) * (tokens + 1))

    def share(self, step: int, steps: int) -> float:
        """Return the largest share of a solution that is given at a step of the run."""
        return self.most * max(0.0, 1 - step / (self.until * steps))

    @override
    def words(self) -> str:
        until = "the end" if self.until == 1 else f"{self.until:.0%}"
        return (
            f"{self.chance:.0%} of the prompts are completed from a beginning of the solution: up to {self.most:.0%} "
            f"of it at first, nothing at {until} of the run"
        )


@part("sampling")
class DatasetResets(Restarts):
    """Completions of a share `chance` of the prompts begin with a random part of the task's solution (DR-PO).

    Its length is uniform from 1 to one less than the solution's tokens; solutions of one token are never begun with
    (arXiv:2404.08495; Cornell-RL/tril, RollinProcessor). Prompt and completion together are as long as without it.
    """

    chance: Annotated[float, Field(ge=0, le=1)] = 1.0
    says = "{chance:.0%} of the prompts are completed from a random beginning of the task's solution"

    def given(self, uniform: float, tokens: int, context: RunContext) -> int:
        """Return a random number from 1 to one less than the solution's tokens; 0 if that leaves none."""
        return 1 + int(uniform * (tokens - 1)) if tokens > 1 else 0
