"""Advantages: how good an answer (or a token) was, compared with what."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from grouprl import levels
from grouprl.batch import Batch
from grouprl.levels import Alone, Center, Scale
from grouprl.parts.part import Part, RunFacts, part


class Advantage(Part):
    """Base: advantage of each token from the batch."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return advantages [B,T]."""
        raise NotImplementedError


@part("advantage")
class Relative(Advantage):
    """Judge each sequence's reward relative to its group: (R - center) / (spread + eps), the same for all its tokens.

    `key` names the grouping ('group', 'batch', 'agent' or a key of the batch). GRPO: mean and standard deviation;
    Dr. GRPO: mean only; RLOO: leave-one-out mean. `scale_key` takes the spread over another grouping (Lite PPO and
    ScaleRL: group mean, batch spread), of raw rewards or of centred ones (`scale_of`).
    """

    key: str = "group"
    center: Center = "mean"
    scale: Scale = "sample_std"
    eps: Annotated[float, Field(ge=0)] = 1e-6
    alone: Alone = "zero"
    scale_key: str | None = None
    scale_of: Literal["raw", "centered"] = "raw"

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_b broadcast over tokens."""
        id_b, weight_b = batch.grouping(self.key), batch.stats_b.to(batch.dtype)
        if self.scale_key is None:
            options = {"center": self.center, "scale": self.scale, "eps": self.eps, "alone": self.alone}
            return batch.broadcast(levels.relative(batch.reward_b, id_b, weight_n=weight_b, **options))
        centered_b = levels.relative(
            batch.reward_b, id_b, center=self.center, scale="none", alone=self.alone, weight_n=weight_b
        )
        spread_of_b = batch.reward_b if self.scale_of == "raw" else centered_b
        sample = self.scale == "sample_std"
        std_b = levels.std(spread_of_b, batch.grouping(self.scale_key), weight_b, sample=sample)
        return batch.broadcast(centered_b / (std_b + self.eps).clamp(min=1e-30))

    def words(self) -> str:
        """Describe."""
        center = {"mean": "the mean", "leave_one_out": "the mean of the others", "none": "nothing"}[self.center]
        where = "" if self.scale_key is None else f" of the {self.scale_key}'s {self.scale_of} rewards"
        scale = "" if self.scale == "none" else f", divided by the {self.scale.replace('_', ' ')}{where} + {self.eps:g}"
        return f"reward minus {center} of its {self.key}{scale}; a {self.key} of one: {self.alone}"

    def formula(self) -> str:
        """Formula."""
        center = {"mean": "R - mean_g R", "leave_one_out": "R_i - mean_{j≠i} R_j", "none": "R"}[self.center]
        std = {"none": "", "sample_std": "std", "population_std": "std_pop", "leave_one_out_std": "std_{j≠i}"}
        return f"A = {center}" if self.scale == "none" else f"A = ({center}) / ({std[self.scale]} + {self.eps:g})"

    def refuse(self, run: RunFacts) -> list[str]:
        """A group baseline needs a group."""
        if run.group_size == 1 and self.key == "group" and self.center != "none" and self.alone != "raw":
            return [
                "a group baseline compares several answers to one question, but batch.group is 1. "
                "Use batch.group of 2 or more, or a method without group baseline (reinforce, reinforce_pp, ppo)"
            ]
        return []
