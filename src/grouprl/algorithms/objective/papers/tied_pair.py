"""Preferences of which some are ties: both decided and tied pairs have a loss."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from grouprl.algorithms.link.link import slope_of
from grouprl.algorithms.link.papers.ties import Davidson, TieLink
from grouprl.algorithms.losses import PairLoss, counted, pairs_of
from grouprl.algorithms.margin.margin import Constant, Margin
from grouprl.algorithms.objective.pair import Pairwise
from grouprl.algorithms.objective.pair_metrics import pair_metrics, sizes
from grouprl.algorithms.objective.regression import completion_value, same_group
from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import LogRatio, Score, pairs_code
from grouprl.algorithms.stage_checks import pair_values
from grouprl.core.batch import Batch
from grouprl.core.edges import share_right
from grouprl.core.errors import InputError
from grouprl.core.metric import Metric

PAIRS = """known_b = counts_b & active_bt.any(1)
value_b = completion_value(adv_bt, active_bt)
first_bb = torch.ones_like(same_bb).triu(1)
ahead_bb = (value_b[:, None] > value_b) | ((value_b[:, None] == value_b) & first_bb)
index_2e = (same_bb & known_b[:, None] & known_b & ahead_bb).nonzero().T
tied_e = value_b[index_2e[0]] == value_b[index_2e[1]]"""
"""Lines of plain torch that find the pairs and which of them are tied."""
AT_ROWS = "loss_bt = pairs_to_rows(loss_e, index_2e, group_b, known_b)[:, None] * active_bt"


@part("objective")
class TiedPair(Pairwise):
    """A loss of every two completions of a prompt: of a decided pair where their advantages differ, else of a tie.

    The margin is the parameter of ties (`tie_margin`). A tie counts as half in `pair_accuracy` and as 0 in
    `pair_margin`.

    Raises:
        InputError: a link without ties, or a constant margin of 0, at which no tie can happen.
    """

    metrics: ClassVar = {
        "tie_margin": Metric(
            words="the parameter of ties, mean over the pairs: the larger, the likelier a tie is",
            level="pair",
            good="settles where ties are as likely as they are among the pairs, if it is learned",
        )
    }

    score: Score = LogRatio()
    link: TieLink = Davidson()
    margin: Margin = Constant(value=0.5)
    says = "of every two completions of a prompt let the one with the larger advantage score higher; equals are tied"

    def __post_init__(self) -> None:
        if self.margin == Constant():
            raise InputError(
                "tied_pair.margin is 0",
                "the margin says how likely ties are, and at 0 there are none",
                "Use a positive value, such as 0.5, or the margin learned_ties",
            )

    def pairs(self, batch: Batch) -> Tensor:
        """Return [E,2] every two completions of a prompt: the better one first, equals in the order of their rows."""
        value_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        known_b = counted(batch) > 0
        pair_bb = same_group(batch) & known_b[:, None] & known_b[None]
        first_bb = torch.ones_like(pair_bb).triu(1)
        tied_bb = (value_b[:, None] == value_b[None]) & first_bb
        return (pair_bb & ((value_b[:, None] > value_b[None]) | tied_bb)).nonzero()

    def __call__(self, logp_bt: Tensor, batch: Batch) -> PairLoss:
        """Return the loss of each pair, decided or tied."""
        index_e2 = pairs_of(batch, self.name).index_e2
        score_e2 = pair_values(self.score, self.score.of_pairs, index_e2, logp_bt, batch, index_e2, each=2)
        margin_e = pair_values(self.margin, self.margin, index_e2, batch, index_e2)
        value_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        tied_e = value_b[index_e2[:, 0]] == value_b[index_e2[:, 1]]
        gap_e = score_e2[:, 0] - score_e2[:, 1]
        loss_e = torch.where(tied_e, self.link.of_ties(gap_e, margin_e), self.link(gap_e, margin_e))
        right_e = share_right(gap_e, sizes(self.score, score_e2, logp_bt, batch, index_e2))
        right_e = torch.where(tied_e, 0.5, right_e)
        metrics = {
            "pair_accuracy": right_e,
            "pair_margin": torch.where(tied_e, 0, gap_e),
            "tie_margin": margin_e.expand_as(gap_e),
        }
        if self.score.log_probs:
            metrics |= even_metrics(tied_e, slope_of(self.link), score_e2, logp_bt, batch, index_e2, right_e)
        return PairLoss(loss_e, metrics)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        score, *held = (pairs_code(self.score), self.margin.code(), self.link.code(), self.link.ties_code())
        if not score or not all(held):
            return ""
        lines = [PAIRS, score, "gap_e = score_2e[0] - score_2e[1]", *held]
        return "\n".join([*lines, "loss_e = torch.where(tied_e, tie_e, loss_e)", AT_ROWS])


def even_metrics(
    tied_e: Tensor, beta: float, score_e2: Tensor, logp_bt: Tensor, batch: Batch, index_e2: Tensor, right_e: Tensor
) -> dict[str, Tensor]:
    """Return the metrics of pairs [E]; for tied ones the mean over both orders, as neither completion is the better."""
    ours = pair_metrics(beta, score_e2, logp_bt, batch, index_e2, right_e)
    turned = pair_metrics(beta, score_e2.flip(1), logp_bt, batch, index_e2.flip(1), 1 - right_e)
    return {name: torch.where(tied_e, (one_e + turned[name]) / 2, one_e) for name, one_e in ours.items()}
