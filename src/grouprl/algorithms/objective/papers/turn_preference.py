"""Preferences between episodes, turn by turn: which of two episodes of a prompt is the better one, and where.

Every two episodes of a group with different rewards are a pair. `sequence_mean` averages pairs within a group, and
groups by their size.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import PairLoss, out_of, pairs_of
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.regression import completion_value, counted, same_group
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.turn_returns import same_actions, turns_of
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count


class Preference(Objective):
    """Base: -log σ(β·margin) of every pair, the margin a difference of log-ratios to the reference."""

    beta: float
    couples: ClassVar[str] = "group"
    reads = ("ref_bt", "turn_bt")

    def margins(self, log_bs: Tensor, there_bs: Tensor, batch: Batch) -> Tensor:
        """[B,B] by how much the first episode of each pair became likelier than the second, in nats."""
        raise NotImplementedError

    def __call__(self, logp_bt: Tensor, batch: Batch) -> PairLoss:
        """-log σ(β·margin) of each pair."""
        there_bs = turns_of(batch, self.name)
        first_e, second_e = pairs_of(batch, self.name).index_e2.T
        margin_e = self.margins(self._log_ratios(logp_bt, there_bs, batch), there_bs, batch)[first_e, second_e]
        metrics = {"pair_accuracy": (margin_e > 0).to(margin_e.dtype), "pair_margin": margin_e}
        return PairLoss(-torch.nn.functional.logsigmoid(self.beta * margin_e), metrics)

    def pairs(self, batch: Batch) -> Tensor:
        """[E,2] the better and the worse episode of every two of a prompt, by their advantages."""
        value_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        known_b = counted(batch) > 0
        pair_bb = same_group(batch) & known_b[:, None] & known_b[None]
        return (pair_bb & (value_b[:, None] > value_b[None])).nonzero()

    def _log_ratios(self, logp_bt: Tensor, there_bs: Tensor, batch: Batch) -> Tensor:
        """[B,S] log π/π_ref of each turn, summed over its tokens."""
        log_bt = torch.where(batch.active_bt, logp_bt - batch.need("ref_bt", self.name), 0)
        turn_bt = torch.where(batch.active_bt, batch.need("turn_bt", self.name), 0).clamp(min=0)
        return torch.zeros(there_bs.shape, dtype=log_bt.dtype, device=log_bt.device).scatter_add(1, turn_bt, log_bt)

    def zero_rows(self, batch: Batch) -> Tensor:
        """[B] bool: rows that are in no pair."""
        return out_of(pairs_of(batch, self.name).index_e2, batch)

    def refuse(self, run: RunFacts) -> list[str]:
        """A pair needs two episodes and a reference."""
        lone = [f"{self.name} compares completions of one prompt. Use batch.group_size of 2 or more"]
        none = [f"{self.name} compares with a reference model. Set model.reference: initial"]
        return [*(lone if run.group_size == 1 else []), *([] if run.has_reference else none)]


@part("objective")
class DiscountedPreference(Preference):
    """DMPO: a preference in which early turns weigh more (arXiv:2406.14868).

    margin = Σ_k φ(k, T_w) d_k(w) - Σ_k φ(k, T_l) d_k(l), d_k = log π/π_ref of turn k from 0, T the turns of each
    episode, φ(k, T) = γ^k(1 - γ^(T-k))/(1 - γ^T), at γ = 1 (T - k)/T. With one turn each it is DPO.
    """

    beta: Annotated[float, Field(gt=0)] = 0.1
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.7
    says = (
        "of every two episodes of a prompt make the better one likelier against the reference, early turns more "
        "(discount {gamma:g}, strength {beta:g})"
    )
    equation = "-log σ({beta:g}·[Σ_k φ(k,T_w) d_k(w) - Σ_k φ(k,T_l) d_k(l)]),  d = log π/π_ref of a turn"

    def margins(self, log_bs: Tensor, there_bs: Tensor, batch: Batch) -> Tensor:
        """[B,B] difference of weighted sums."""
        score_b = (self.weights(there_bs).to(log_bs.dtype) * log_bs).sum(1)
        return score_b[:, None] - score_b[None]

    def weights(self, there_bs: Tensor) -> Tensor:
        """[B,S] φ of each turn, 0 where a row has none."""
        place_bs = there_bs.to(torch.float64).cumsum(1) - 1
        turns_b = there_bs.sum(1, keepdim=True).to(torch.float64)
        if self.gamma == 1:
            found_bs = (turns_b - place_bs) / turns_b.clamp(min=1)
        else:
            late_bs = 1 - self.gamma ** (turns_b - place_bs).clamp(min=0)
            found_bs = self.gamma ** place_bs.clamp(min=0) * late_bs / (1 - self.gamma ** turns_b.clamp(min=1))
        return torch.where(there_bs, found_bs, 0)


@part("objective")
class SegmentPreference(Preference):
    """SDPO: a preference on the segment where two episodes differ (arXiv:2501.01821).

    margin = Σ_{k=e..f} d_k(w) - d_k(l), d_k = log π/π_ref of turn k: e is the first turn in which the two act or find
    themselves differently, f at most `turns` turns from there, and within both episodes. Equal numbers of turns make
    the partition functions of the two cancel. None: to the end of the shorter.
    """

    beta: Annotated[float, Field(gt=0)] = 0.1
    turns: Count | None = None

    def margins(self, log_bs: Tensor, there_bs: Tensor, batch: Batch) -> Tensor:
        """[B,B] difference of sums over the segment."""
        total_bs = torch.nn.functional.pad(log_bs.cumsum(1), (1, 0))
        first_bb, last_bb = self.segments(there_bs, batch)
        span_bb = total_bs.gather(1, last_bb) - total_bs.gather(1, first_bb)
        return span_bb - span_bb.T

    def segments(self, there_bs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """[B,B] first turn of each pair's segment, and the first behind it; symmetric."""
        action_bs = same_actions(batch, there_bs, self.name)
        state_bs = batch.need("state_bs", self.name)[:, : there_bs.shape[1]]
        both_bbs = there_bs[:, None] & there_bs[None]
        same_bbs = both_bbs & (action_bs[:, None] == action_bs[None]) & (state_bs[:, None] == state_bs[None])
        first_bb = same_bbs.to(torch.int64).cumprod(2).sum(2)
        last_bb = both_bbs.to(torch.int64).cumprod(2).sum(2)
        if self.turns is not None:
            last_bb = torch.minimum(last_bb, first_bb + self.turns)
        return first_bb, torch.maximum(last_bb, first_bb)

    @override
    def needs(self) -> tuple[str, ...]:
        return (*super().needs(), "state_bs", "token_bt")

    @override
    def words(self) -> str:
        how_long = "to the end of the shorter" if self.turns is None else f"for at most {self.turns} turns"
        return (
            "of every two episodes of a prompt make the better one likelier against the reference, from the turn in "
            f"which they part, {how_long} (strength {self.beta:g})"
        )

    @override
    def formula(self) -> str:
        end = "min(T_w, T_l)" if self.turns is None else f"min(e + {self.turns}, T_w, T_l)"
        return f"-log σ({self.beta:g}·Σ_{{e≤k<f}} [d_k(w) - d_k(l)]),  f = {end},  d = log π/π_ref of a turn"
