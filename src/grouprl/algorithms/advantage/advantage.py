"""Advantages: how good a completion (or a token) was, compared with what.

The reward of a sequence is its scalar reward plus the sum of its token rewards, if it has any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.levels import Alone, Center, Scale

if TYPE_CHECKING:
    from torch import Tensor


class Advantage(Part):
    """Base: advantage of each token from the batch."""

    def __call__(self, batch: Batch) -> Tensor:
        """Return advantages [B,T]."""
        raise NotImplementedError

    def imitates(self) -> bool:
        """Return whether no advantage is ever below 0: a policy gradient is then a likelihood of chosen completions,
        which may come from anywhere.
        """
        return False


class GroupAdvantage(Advantage):
    """Base of advantages that compare the completions of a prompt with each other."""

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which have nothing to be compared with."""
        if run.group_size > 1:
            return []
        return [
            "a group baseline compares several completions of one prompt, but batch.group_size is 1. "
            "Use batch.group_size of 2 or more, or a method without group baseline (reinforce, reinforce_pp, ppo)"
        ]


_CENTERED = {
    "mean": "reward_b - mean_b",
    "leave_one_out": "reward_b - (n_b * mean_b - reward_b) / (n_b - 1).clamp(min=1)",
    "none": "reward_b",
}
"""Reward minus the center of its group, in plain torch, for each kind of center."""


@part("advantage")
class Relative(GroupAdvantage):
    """Judge each sequence's reward relative to its group: (R - center) / (spread + eps), the same for all its tokens.

    `key` names the grouping ('group', 'batch', 'agent' or a key of the batch). GRPO: mean and standard deviation;
    Dr. GRPO: mean only; RLOO: leave-one-out mean. `scale_key` takes the spread over another grouping (Lite PPO and
    ScaleRL: group mean, batch spread), of raw rewards or of centred ones (`scale_of`). A group without spread gets
    exactly zero; a group of one gets what `alone` says (zero, its raw reward, or an InputError).
    """

    key: str = "group"
    center: Center = "mean"
    scale: Scale = "sample_std"
    eps: Annotated[float, Field(ge=0)] = 1e-6
    alone: Alone = "zero"
    scale_key: str | None = None
    scale_of: Literal["raw", "centered"] = "raw"

    def __post_init__(self) -> None:
        """Raise InputError if `scale_key` is set but `scale` is not a standard deviation."""
        if self.scale_key is not None and self.scale not in ("sample_std", "population_std"):
            raise InputError(
                f"relative: scale_key is '{self.scale_key}' but scale is '{self.scale}'",
                "a spread over another grouping is a sample_std or a population_std",
                "Set scale to one of them, or scale_key to null",
            )

    def __call__(self, batch: Batch) -> Tensor:
        """Return the advantages A_b, the same for all tokens of a row, [B,T]."""
        reward_b, id_b, weight_b = batch.total_reward_b, batch.grouping(self.key), batch.stats_b.to(batch.dtype)
        scale: Scale = self.scale if self.scale_key is None else "none"
        adv_b = levels.relative(
            reward_b, id_b, center=self.center, scale=scale, eps=self.eps, alone=self.alone, weight_n=weight_b
        )
        if self.scale_key is not None:
            spread_of_b = reward_b if self.scale_of == "raw" else adv_b
            sample = self.scale == "sample_std"
            std_b = levels.std(spread_of_b, batch.grouping(self.scale_key), weight_b, sample=sample)
            adv_b = torch.where(std_b > 0, adv_b / (std_b + self.eps), 0)
        return batch.broadcast(adv_b)

    @override
    def code(self) -> str:
        if self.key not in ("group", "batch") or self.scale_key not in (None, "batch"):
            return ""
        of = "same_bb" if self.key == "group" else "all_bb"
        lines = [] if self.key == "group" else ["all_bb = counts_b.expand_as(same_bb)"]
        lines += [f"n_b = {of}.sum(1)", f"mean_b = ({of} * reward_b).sum(1) / n_b.clamp(min=1)"]
        lines.append(f"adv_b = {_CENTERED[self.center]}")
        if self.scale == "leave_one_out_std":
            lines.append(
                f"std_b = spread(reward_b, {of} & ~torch.eye(len(reward_b), dtype=torch.bool))  # of the others"
            )
            lines.append(f"adv_b = adv_b / torch.where(std_b > 0, std_b + {self.eps!r}, 1)")
        elif self.scale != "none" and self.scale_key is None:
            less = "n_b - 1" if self.scale == "sample_std" else "n_b"
            square = f"({of} * (reward_b - mean_b[:, None]).square()).sum(1)"
            lines.append(f"std_b = ({square} / ({less}).clamp(min=1)).sqrt()")
            lines.append(f"adv_b = adv_b / (std_b + {self.eps!r})")
        if self.center != "none":
            lines.append(f"adv_b = torch.where(differs(reward_b, {of}), adv_b, 0)  # equal rewards tell nothing")
        if self.center != "none" or self.scale != "none":
            lines.append(f"adv_b = torch.where(n_b > 1, adv_b, {'reward_b' if self.alone == 'raw' else '0'})")
        if self.scale_key is not None:
            spread, correction = "reward_b" if self.scale_of == "raw" else "adv_b", int(self.scale == "sample_std")
            lines.append(f"std = {spread}[counts_b].std(correction={correction})")
            lines.append(f"adv_b = torch.where(std > 0, adv_b / (std + {self.eps!r}), 0)")
        return "\n".join([*lines, "adv_bt = torch.where(mask_bt & counts_b[:, None], adv_b[:, None], 0)"])

    @override
    def words(self) -> str:
        center = {"mean": "the mean", "leave_one_out": "the mean of the others", "none": "nothing"}[self.center]
        what = "rewards" if self.scale_of == "raw" else "centred rewards"
        where = "" if self.scale_key is None else f" of the {self.scale_key}'s {what}"
        scale = "" if self.scale == "none" else f", divided by the {self.scale.replace('_', ' ')}{where} + {self.eps:g}"
        return f"reward minus {center} of its {self.key}{scale}; a {self.key} of one: {self.alone}"

    @override
    def formula(self) -> str:
        g = {"group": "g", "batch": "B"}.get(self.key, self.key)
        center = {"mean": f"R - mean_{g} R", "leave_one_out": "R_i - mean_{j≠i} R_j", "none": "R"}[self.center]
        if self.scale == "none":
            return f"A = {center}"
        std = {"sample_std": "std", "population_std": "std_pop", "leave_one_out_std": "std_{j≠i}"}[self.scale]
        where = g if self.scale_key is None else {"batch": "B"}.get(self.scale_key, self.scale_key)
        of = "R" if self.scale_of == "raw" else "(R - mean)"
        spread = std if self.scale == "leave_one_out_std" else f"{std}_{where} {of}"
        return f"A = ({center}) / ({spread} + {self.eps:g})"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion if the method compares completions within a group."""
        compares = self.key == "group" and self.center != "none" and self.alone != "raw"
        return super().refuse(run) if compares else []


@part("advantage")
class RawReward(Advantage):
    """The reward itself, no baseline (REINFORCE, Williams 1992). `positive_only` keeps max(R, 0) (RAFT)."""

    positive_only: bool = False

    def __call__(self, batch: Batch) -> Tensor:
        """Return A = R, or max(R, 0)."""
        reward_b = batch.total_reward_b
        return batch.broadcast(reward_b.clamp(min=0) if self.positive_only else reward_b)

    @override
    def imitates(self) -> bool:
        return self.positive_only

    @override
    def code(self) -> str:
        reward = "reward_b.clamp(min=0)" if self.positive_only else "reward_b"
        return f"adv_bt = {reward}[:, None] * mask_bt"

    @override
    def words(self) -> str:
        return "the reward where it is positive, else zero" if self.positive_only else "the reward itself, no baseline"

    @override
    def formula(self) -> str:
        return "A = max(R, 0)" if self.positive_only else "A = R"


@part("advantage")
class Ones(Advantage):
    """Advantage 1 for every token: likelihood of demonstrations (SFT)."""

    says = "every token counts 1, whatever its reward"
    equation = "A = 1"
    plain = "adv_bt = mask_bt.to(logp_bt.dtype)"

    def __call__(self, batch: Batch) -> Tensor:
        """Return A = 1."""
        return batch.mask_bt.to(batch.dtype)

    @override
    def imitates(self) -> bool:
        return True


@part("advantage")
class Given(Advantage):
    """The advantage that the batch already carries in `advantage_bt`."""

    says = "the advantages given with the batch"
    reads = ("advantage_bt",)

    def __call__(self, batch: Batch) -> Tensor:
        """Return batch.advantage_bt."""
        return batch.need("advantage_bt", self.name)
