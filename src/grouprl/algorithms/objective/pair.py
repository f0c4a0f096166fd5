"""Preferences: the better of every two completions of a prompt should score higher."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from grouprl.algorithms.link.link import Link, Logistic
from grouprl.algorithms.losses import PairLoss, counted, out_of, pairs_of
from grouprl.algorithms.margin.margin import Constant, Margin
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.regression import completion_value, same_group
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.algorithms.stage_checks import pair_values
from grouprl.core.batch import Batch


@part("objective")
class Pair(Objective):
    """A loss of each pair of a prompt's completions with different advantages: link(s(better) - s(worse), margin).

    Score, link and margin are parts of their own. At the defaults it is DPO (arXiv:2305.18290); link `squared` makes it
    IPO, `hinge` SLiC, score `log_prob` with a constant margin SimPO. `sequence_mean` averages pairs within a group, and
    groups by their size.
    """

    score: Score = LogRatio()
    link: Link = Logistic()
    margin: Margin = Constant()
    couples: ClassVar[str] = "group"
    says = "of every two completions of a prompt let the one with the larger advantage score higher"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> PairLoss:
        """Return link(s(better) - s(worse), margin) of each pair."""
        index_e2 = pairs_of(batch, self.name).index_e2
        gap_e = pair_values(self.score, self.score.difference, index_e2, logp_bt, batch, index_e2)
        margin_e = pair_values(self.margin, self.margin, index_e2, batch, index_e2)
        loss_e = pair_values(self.link, self.link, index_e2, gap_e, margin_e)
        return PairLoss(loss_e, {"pair_accuracy": (gap_e > 0).to(gap_e.dtype), "pair_margin": gap_e})

    def formula(self) -> str:
        """Return the link's formula with those of score and margin."""
        score, margin = self.score.formula(), self.margin.formula()
        return f"{self.link.formula()},  Δs = s(w) - s(l),  {',  '.join(x for x in (score, margin) if x)}"

    def pairs(self, batch: Batch) -> Tensor:
        """Return [E,2] the better and the worse completion of every two of a prompt, by their advantages."""
        value_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        known_b = counted(batch) > 0
        pair_bb = same_group(batch) & known_b[:, None] & known_b[None]
        return (pair_bb & (value_b[:, None] > value_b[None])).nonzero()

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that are in no pair."""
        return out_of(pairs_of(batch, self.name).index_e2, batch)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which have no pairs."""
        lone = ["pair compares completions of one prompt, but batch.group_size is 1. Use batch.group_size of 2 or more"]
        return lone if run.group_size == 1 else []
