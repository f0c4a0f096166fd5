"""Advantages from comparisons: by how much a completion is preferred to others of its prompt."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.preferences import OPPONENT, SCORED, By, is_opponent, needs, preferences
from grouprl.core.batch import Batch

Unit = Literal["chance", "log_odds"]
SURE = 1e-6
"""Log-odds of a judge are those of probabilities at least this far from 0 and 1: a sure verdict counts ±13.8."""


@part("advantage")
class Preferred(Advantage):
    """mean_j P(y_i ≻ y_j) - ½ over the completions that y_i was compared with (Nash-MD, arXiv:2312.00886).

    `by`: P is a judge's, or σ(R_i - R_j) of rewards. `against`: all others of the prompt, or those of an opponent
    (`opponents`). `unit` "log_odds" takes mean_j log P/(1-P), the score of a preference model (GPO, arXiv:2410.02197).
    With `itself` a completion counts as compared with itself, too, as in SPPO (arXiv:2405.00675). A completion that was
    compared with none has advantage 0.
    """

    by: By = "reward"
    against: Literal["group", "opponents"] = "group"
    unit: Unit = "chance"
    itself: bool = False
    own_samples = "it is how often the policy wins against itself or its opponent"

    def __call__(self, batch: Batch) -> Tensor:
        """Return the mean of P - ½, or of log P/(1-P)."""
        chance_bb, known_bb = preferences(batch, self.by, self.name)
        if self.against == "opponents":
            known_bb = known_bb & is_opponent(batch, self.name)
        worth_bb = chance_bb - 0.5 if self.unit == "chance" else self._log_odds(batch, chance_bb)
        count_b = known_bb.sum(1)
        added_b = count_b + (self.itself & (count_b > 0))
        return batch.broadcast(torch.where(known_bb, worth_bb, 0).sum(1) / added_b.clamp(min=1))

    def _log_odds(self, batch: Batch, chance_bb: Tensor) -> Tensor:
        """Return log P/(1-P) [B,B]: of rewards their differences themselves, which no rounding of P bounds."""
        if self.by == "judge":
            return torch.logit(chance_bb, eps=SURE)
        reward_b = batch.total_reward_b
        return reward_b[:, None] - reward_b

    @override
    def needs(self) -> tuple[str, ...]:
        return (*needs(self.by), *((f"keys.{OPPONENT}",) if self.against == "opponents" else ()))

    @override
    def words(self) -> str:
        whom = "the others of its prompt" if self.against == "group" else "its opponent's"
        who = "a judge" if self.by == "judge" else "rewards as Bradley-Terry scores"
        how = "chance to be preferred, less ½," if self.unit == "chance" else "log-odds to be preferred"
        return f"mean {how} to {whom}{', itself included,' if self.itself else ''} by {who}"

    @override
    def formula(self) -> str:
        chance = "P(y_i ≻ y_j)" if self.by == "judge" else "σ(R_i - R_j)"
        if self.unit == "chance":
            return f"A_i = mean_j {chance} - ½"
        return f"A_i = mean_j {'logit ' + chance if self.by == 'judge' else '(R_i - R_j)'}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if self.by == "judge":
            return ""
        of = f"\nknown_bb = known_bb & (keys['{OPPONENT}'] == 1)" if self.against == "opponents" else ""
        worth = "chance_bb - 0.5" if self.unit == "chance" else "reward_b[:, None] - reward_b"
        count = "(count_b + 1)" if self.itself else "count_b.clamp(min=1)"
        return f"""{SCORED}{of}
count_b = known_bb.sum(1)
adv_b = torch.where(known_bb, {worth}, 0).sum(1) / {count}
adv_bt = adv_b[:, None] * mask_bt"""

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which nothing is compared with."""
        if self.against == "group" and run.group_size == 1:
            return [f"{self.name} compares completions of one prompt. Use batch.group_size of 2 or more"]
        return []
