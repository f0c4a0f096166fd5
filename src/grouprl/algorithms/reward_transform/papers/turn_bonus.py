"""A bonus for taking turns, which fades over the run."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch


@part("reward_transform")
class TurnBonus(RewardTransform):
    """SPEAR: a bonus for each turn that the environment answered, which falls to nothing within `until` steps
    (arXiv:2509.22601).

    R ← R + min(limit, each · turns) · (1 + cos(π·step/until))/2 up to step `until`. The last turn of an episode gets no
    answer and does not count.
    """

    each: Annotated[float, Field(ge=0)] = 0.1
    limit: Annotated[float, Field(ge=0)] = 1.0
    until: Annotated[int, Field(ge=1)] = 200
    says = "add {each:g} for each turn that got an answer, at most {limit:g}, fading to nothing by step {until}"
    equation = "R ← R + min({limit:g}, {each:g}·turns)·(1 + cos(π·step/{until}))/2"
    reads = ("turn_bt", "step")
    plain = (
        "share = (1 + math.cos(math.pi * step / {until})) / 2 if step <= {until} else 0.0\n"
        "turns_b = torch.where(mask_bt, turn_bt, -1).amax(1).to(reward_b.dtype)\n"
        "reward_b = reward_b + share * ({each!r} * turns_b).clamp(0, {limit!r})"
    )

    def __call__(self, batch: Batch) -> Batch:
        """Add the bonus of the batch's step."""
        share = self.share(batch)
        if share == 0:
            return batch
        turns_b = torch.where(batch.mask_bt, batch.need("turn_bt", self.name), -1).amax(1).to(batch.dtype)
        return batch.replace(reward_b=batch.reward_b + share * (self.each * turns_b).clamp(0, self.limit))

    def share(self, batch: Batch) -> float:
        """Return the share of the bonus that is left at the batch's step."""
        step = batch.need("step", self.name)
        return (1 + math.cos(math.pi * step / self.until)) / 2 if step <= self.until else 0.0

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if it adds nothing or completions have one turn."""
        if self.each == 0 or self.limit == 0:
            return ["turn_bonus has no effect: it adds nothing"]
        return [] if run.environment else ["turn_bonus has no effect: completions of one turn get none"]
