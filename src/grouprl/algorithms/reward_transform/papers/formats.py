"""Rewards that depend on the format of a completion, given as `keys.form`, and on how far the run is."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.outcome import right
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative

Stage = Literal["accuracy", "alternating", "block"]


@part("reward_transform")
class FormatDiversity(RewardTransform):
    """Ada-GRPO: scale rewards by how rare the completion's format is in its group, less and less (arXiv:2505.20258).

    α = 1 + c·(G/F - 1)(1 + cos(π t/T)), with F completions of the group's G in the same `keys.form`, at step t of T.
    With c = ½ that is G/F at the start and 1 at the end. A form below 0 is not a recognised format: its reward is 0.
    """

    bonus: NonNegative = 0.5
    equation = "R ← R·(1 + {bonus:g}·(G/F - 1)(1 + cos(π t/T))),  F completions of the group in the same format"
    reads = ("keys.form", "step", "steps")
    plain = (
        "decay = {bonus!r} * (1 + math.cos(math.pi * min(step / max(steps, 1), 1.0)))\n"
        'form_bb = same_bb & (keys["form"][:, None] == keys["form"])\n'
        "alpha_b = 1 + decay * (same_bb.sum(1).to(reward_b.dtype) / form_bb.sum(1).clamp(min=1) - 1)\n"
        'reward_b = torch.where(keys["form"] >= 0, alpha_b * reward_b, 0)'
    )
    idle_at = ("bonus", 0, "format_diversity only withholds the rewards of unknown formats: its bonus is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return α·R, or 0 without a recognised format."""
        form_b, counted_b = batch.need("keys.form", self.name), batch.stats_b.to(batch.dtype)
        done = batch.need("step", self.name) / max(batch.need("steps", self.name), 1)
        decay = self.bonus * (1 + math.cos(math.pi * min(done, 1.0)))
        size_b = levels.count(batch.group_b, counted_b, batch.dtype)
        same_b = levels.count(levels.cross(batch.group_b, form_b), counted_b, batch.dtype)
        alpha_b = 1 + decay * (size_b / same_b.clamp(min=1) - 1)
        return batch.replace(reward_b=torch.where(form_b >= 0, alpha_b * batch.reward_b, 0))

    @override
    def words(self) -> str:
        return (
            f"scale rewards by 1 + {2 * self.bonus:g}·(G/F - 1) where F of the group's G completions have the "
            "same format, "
            "fading to 1 over the run; an unknown format earns nothing"
        )

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without forms, for which every reward would be 0."""
        if run.forms:
            return []
        return [
            "format_diversity gives 0 to completions without a recognised format, and the task recognises none "
            "(Task.forms and form_of). Take a task that does, such as ponder"
        ]


@part("reward_transform")
class ParallelReward(RewardTransform):
    """Parallel-R1's rewards (arXiv:2509.07980): correct completions keep R, wrong ones get `wrong`; completions with a
    parallel block may earn more.

    A `keys.form` above 0 holds a well-formed parallel block. `stage="accuracy"` rewards correctness alone. So does
    "alternating", but in the last `bonus_steps` of every `period` steps a correct completion with a block gets
    R·`with_block`. "block" adds `block_bonus` to every completion with a block.
    """

    stage: Stage = "alternating"
    period: Annotated[int, Field(ge=1)] = 10
    bonus_steps: Annotated[int, Field(ge=0)] = 2
    with_block: float = 1.2
    block_bonus: float = 0.5
    wrong: float = -1.0

    def __post_init__(self) -> None:
        """Raise InputError if the bonus is longer than its period."""
        if self.bonus_steps > self.period:
            raise InputError(
                f"parallel_reward: bonus_steps {self.bonus_steps} > period {self.period}",
                "the bonus steps are the last ones of each period",
            )

    def __call__(self, batch: Batch) -> Batch:
        """Return R or `wrong`, changed by what a block earns at this step."""
        right_b = right(batch)
        reward_b = torch.where(right_b, batch.reward_b, self.wrong)
        if self.stage == "accuracy":
            return batch.replace(reward_b=reward_b)
        block_b = batch.need("keys.form", self.name) > 0
        if self.stage == "block":
            return batch.replace(reward_b=reward_b + self.block_bonus * block_b)
        factor = self.with_block if self.pays(int(batch.need("step", self.name))) else 1.0
        return batch.replace(reward_b=torch.where(right_b & block_b, factor * reward_b, reward_b))

    @override
    def code(self) -> str:
        lines = [f"reward_b = torch.where(correct_b, reward_b, {self.wrong!r})"]
        if self.stage == "block":
            lines.append(f'reward_b = reward_b + {self.block_bonus!r} * (keys["form"] > 0)')
        if self.stage == "alternating":
            pays = f"step % {self.period} >= {self.period - self.bonus_steps}"
            lines.append(f"factor = {self.with_block!r} if {pays} else 1.0")
            lines.append('reward_b = torch.where(correct_b & (keys["form"] > 0), factor * reward_b, reward_b)')
        return "\n".join(lines)

    def pays(self, step: int) -> bool:
        """Return whether blocks earn more at `step` (from 0)."""
        return step % self.period >= self.period - self.bonus_steps

    @override
    def needs(self) -> tuple[str, ...]:
        return {"accuracy": (), "block": ("keys.form",), "alternating": ("keys.form", "step")}[self.stage]

    @override
    def words(self) -> str:
        more = {
            "accuracy": "",
            "block": f"; a well-formed parallel block earns {self.block_bonus:g} more",
            "alternating": f"; in {self.bonus_steps} of every {self.period} steps right ones with a parallel block get "
            f"{self.with_block:g} times theirs",
        }[self.stage]
        return f"correct completions keep their reward, wrong ones get {self.wrong:g}{more}"

    @override
    def formula(self) -> str:
        plain = f"R ← R if right else {self.wrong:g}"
        more = {
            "accuracy": "",
            "block": f",  + {self.block_bonus:g}·[block]",
            "alternating": f",  × {self.with_block:g} if right, block and t mod {self.period} ≥ "
            f"{self.period - self.bonus_steps}",
        }[self.stage]
        return plain + more

    def idle(self, run: RunFacts) -> list[str]:
        """Say which settings the stage does not read."""
        read = {"accuracy": (), "block": ("block_bonus",), "alternating": ("period", "bonus_steps", "with_block")}
        names = [name for names in read.values() for name in names if name not in read[self.stage]]
        changed = [name for name in names if getattr(self, name) != getattr(type(self), name)]
        blind = ["parallel blocks never earn more: the task tells no forms of answering apart"]
        none = blind if self.stage != "accuracy" and run.forms < 2 else []
        return [f"parallel_reward.{name} has no effect with stage {self.stage}" for name in changed] + none
