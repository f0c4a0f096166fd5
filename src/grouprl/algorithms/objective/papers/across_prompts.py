"""Chosen completions contrasted with the rejected ones of other prompts, too."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.augment.papers.preferences.similar_prompts import SIMILAR
from grouprl.algorithms.link.link import Link, Logistic
from grouprl.algorithms.losses import RowLoss, counted
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.regression import completion_value
from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import LogRatio, Score, over_tokens
from grouprl.core.batch import Batch
from grouprl.core.edges import share_right
from grouprl.core.errors import InputError
from grouprl.core.numbers import Positive, Share


@part("objective")
class AcrossPrompts(Objective):
    """Every chosen completion of the optimiser step against every rejected one, of whichever prompt (RPO).

    From arXiv:2402.10958. Chosen is a completion that is better than another of its prompt or, alone with its prompt,
    has an advantage above `threshold`; rejected one that is worse, or has not. `weighing` "similarity": a contrast of
    rows i and j counts ω_ij = softmax_j(cos(x_i, x_j)/temperature) times the difference of scores, inside the link;
    `similar_prompts` gives the cosines, and without one it is 0. "diagonal": own pairs have `diagonal` of the weight,
    and those of different prompts the rest; where there are none of a kind, the other has all. A step in which a side
    is empty has loss 0.

    Raises:
        InputError: a score that exists for pairs only, or a link that judges both scores of a pair.
    """

    score: Score = LogRatio()
    link: Link = Logistic()
    weighing: Literal["similarity", "diagonal"] = "similarity"
    temperature: Positive = 0.5
    diagonal: Share = 0.8
    threshold: float = 0.5
    couples: ClassVar[str] = "batch"

    def __post_init__(self) -> None:
        if type(self.score).__call__ is Score.__call__ or not self.link.margins:
            raise InputError(
                f"across_prompts has the score '{self.score.name}' and the link '{self.link.name}'",
                "it compares the scores of single completions by their difference",
                "Use log_ratio or log_prob, and a link such as logistic",
            )

    @override
    def needs(self) -> tuple[str, ...]:
        return (f"edges.{SIMILAR}",) if self.weighing == "similarity" else ()

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return the mean loss of all contrasts of the step, for each row."""
        meets_bb, own_bb = self.contrasts(batch)
        score_b = self.score(logp_bt, batch)
        gap_bb = torch.where(meets_bb, score_b[:, None] - score_b, 0)
        if self.weighing == "similarity":
            gap_bb = gap_bb * self.closeness(batch, meets_bb)
        size_b = (over_tokens(logp_bt, batch, "sum") if self.score.log_probs else score_b).abs()
        loss_bb, right_bb = self.link(gap_bb, torch.zeros_like(gap_bb)), share_right(gap_bb, size_b[:, None] + size_b)
        share_bb = self.shares(meets_bb.to(gap_bb.dtype), own_bb.to(gap_bb.dtype))
        on_side_bb = meets_bb | meets_bb.T
        right_b = torch.where(on_side_bb, right_bb + right_bb.T, 0).sum(1) / on_side_bb.sum(1).clamp(min=1)
        return RowLoss((share_bb * loss_bb).sum().expand(len(score_b)), {"label_accuracy": right_b})

    def contrasts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return [B,B] bool: whether row i is contrasted as chosen with row j as rejected, and whether that is a pair
        of one prompt.
        """
        value_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        known_b = counted(batch) > 0
        same_bb = batch.group_b[:, None] == batch.group_b
        own_bb = same_bb & known_b[:, None] & known_b & (value_b[:, None] > value_b)
        alone_b = known_b & ((same_bb & known_b).sum(1) == 1)
        chosen_b = own_bb.any(1) | (alone_b & (value_b > self.threshold))
        rejected_b = own_bb.any(0) | (alone_b & (value_b <= self.threshold))
        return chosen_b[:, None] & rejected_b & (own_bb | ~same_bb), own_bb

    def closeness(self, batch: Batch, meets_bb: Tensor) -> Tensor:
        """Return [B,B] ω_ij, which adds up to 1 over the rejected rows that row i meets."""
        edges = batch.need(f"edges.{SIMILAR}", self.name)
        cosine_bb = (batch.group_b[:, None] == batch.group_b).to(batch.dtype)
        cosine_bb[edges.index_e2[:, 0], edges.index_e2[:, 1]] = edges.value_e.to(batch.dtype)
        logit_bb = torch.where(meets_bb, cosine_bb / self.temperature, -torch.inf)
        return torch.where(meets_bb, logit_bb.softmax(1), 0)

    def shares(self, meets_bb: Tensor, own_bb: Tensor) -> Tensor:
        """Return [B,B] how much each contrast counts; they add up to 1. The masks are given as numbers, 0 and 1."""
        if self.weighing == "similarity":
            by_row_bb = meets_bb / meets_bb.sum(1, keepdim=True).clamp(min=1)
            return by_row_bb / meets_bb.any(1).sum().clamp(min=1)
        other_bb = meets_bb * (1 - own_bb)
        share_bb = self.diagonal * own_bb / own_bb.sum().clamp(min=1)
        share_bb = share_bb + (1 - self.diagonal) * other_bb / other_bb.sum().clamp(min=1)
        total = share_bb.sum()
        return torch.where(total > 0, share_bb / total, share_bb)

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that are contrasted with none."""
        meets_bb, _ = self.contrasts(batch)
        return ~(meets_bb.any(1) | meets_bb.any(0))

    @override
    def words(self) -> str:
        how = (
            f"each contrast by how alike the prompts are (temperature {self.temperature:g})"
            if self.weighing == "similarity"
            else f"{self.diagonal:g} of the weight on pairs of one prompt"
        )
        return f"let every chosen completion of the step score above every rejected one, of any prompt; {how}"

    @override
    def formula(self) -> str:
        mean = (
            "mean_i mean_j"
            if self.weighing == "similarity"
            else (f"{self.diagonal:g}·mean over own pairs + {1 - self.diagonal:g}·mean over others")
        )
        gap = "ω_ij·(s(w_i) - s(l_j))" if self.weighing == "similarity" else "s(w_i) - s(l_j)"
        omega = f",  ω_ij = softmax_j(cos(x_i, x_j)/{self.temperature:g})" if self.weighing == "similarity" else ""
        return f"{mean} of {self.link.formula()} at m = 0,  Δs = {gap}{omega},  {self.score.formula()}"

    def code(self) -> str:
        """Return the part as lines of plain torch, without the edges of similar prompts."""
        score, link = self.score.code(), self.link.code()
        if self.weighing == "similarity" or not score or not link:
            return ""
        return f"""known_b = counts_b & active_bt.any(1)
value_b = completion_value(adv_bt, active_bt)
same_bb = group_b[:, None] == group_b
own_bb = same_bb & known_b[:, None] & known_b & (value_b[:, None] > value_b)
alone_b = known_b & ((same_bb & known_b).sum(1) == 1)
chosen_b = own_bb.any(1) | (alone_b & (value_b > {self.threshold!r}))
rejected_b = own_bb.any(0) | (alone_b & (value_b <= {self.threshold!r}))
meets_bb = chosen_b[:, None] & rejected_b & (own_bb | ~same_bb)
{score}
gap_e = torch.where(meets_bb, score_b[:, None] - score_b, 0)
margin_e = torch.zeros_like(gap_e)
{link}
other_bb = (meets_bb & ~own_bb).to(gap_e.dtype)
share_bb = {self.diagonal!r} * own_bb.to(gap_e.dtype) / own_bb.sum().clamp(min=1)
share_bb = share_bb + {1 - self.diagonal!r} * other_bb / other_bb.sum().clamp(min=1)
share_bb = torch.where(share_bb.sum() > 0, share_bb / share_bb.sum(), share_bb)
loss_bt = (share_bb * loss_e).sum() * active_bt"""
