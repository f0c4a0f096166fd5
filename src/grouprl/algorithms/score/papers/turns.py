"""Scores of episodes, turn by turn: DMPO's discounted turns, SDPO's segments where two episodes differ."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.score import Score, without_reference
from grouprl.algorithms.turn_returns import same_actions, turns_of
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count, Share

TURNS = """there_bs = turns_there(turn_bt, mask_bt, int(torch.where(mask_bt, turn_bt, -1).max()) + 1)
log_bs = over_turns(logp_bt - ref_bt, turn_bt, active_bt, there_bs)
"""
"""Lines of plain torch that assign the turns of each row and their log-ratios."""


def log_ratios(logp_bt: Tensor, there_bs: Tensor, batch: Batch, reader: str) -> Tensor:
    """Return [B,S] log π/π_ref of each turn, summed over its tokens."""
    ratio_bt = logp_bt - batch.need("ref_bt", reader)
    return over_turns(ratio_bt, batch.need("turn_bt", reader), batch.active_bt, there_bs)


def over_turns(value_bt: Tensor, turn_bt: Tensor, active_bt: Tensor, there_bs: Tensor) -> Tensor:
    """Return [B,S] sum of the values of each turn's active tokens."""
    zero_bs = torch.zeros(there_bs.shape, dtype=value_bt.dtype, device=value_bt.device)
    place_bt = torch.where(active_bt, turn_bt, 0).clamp(min=0)
    return zero_bs.scatter_add(1, place_bt, torch.where(active_bt, value_bt, 0))


def early_weights(there_bs: Tensor, gamma: float) -> Tensor:
    """Return [B,S] φ(k, T) of each turn, 0 where a row has none."""
    place_bs = there_bs.to(torch.float64).cumsum(1) - 1
    turns_b = there_bs.sum(1, keepdim=True).to(torch.float64)
    if gamma == 1:
        found_bs = (turns_b - place_bs) / turns_b.clamp(min=1)
    else:
        late_bs = 1 - gamma ** (turns_b - place_bs).clamp(min=0)
        found_bs = gamma ** place_bs.clamp(min=0) * late_bs / (1 - gamma ** turns_b.clamp(min=1))
    return torch.where(there_bs, found_bs, 0)


def segments(action_bs: Tensor, state_bs: Tensor, there_bs: Tensor, turns: int | None) -> tuple[Tensor, Tensor]:
    """Return [B,B] first turn in which two rows differ in action or state, and the first turn after their segment.

    Both are symmetric. The segment ends with the shorter row, and after `turns` turns at the latest.
    """
    both_bbs = there_bs[:, None] & there_bs[None]
    same_bbs = both_bbs & (action_bs[:, None] == action_bs[None]) & (state_bs[:, None] == state_bs[None])
    first_bb = same_bbs.to(torch.int64).cumprod(2).sum(2)
    last_bb = both_bbs.to(torch.int64).cumprod(2).sum(2)
    if turns is not None:
        last_bb = torch.minimum(last_bb, first_bb + turns)
    return first_bb, torch.maximum(last_bb, first_bb)


def over_segments(log_bs: Tensor, first_bb: Tensor, last_bb: Tensor) -> Tensor:
    """Return [B,B] sum of a row's values over the segment in which it differs from another row."""
    total_bs = torch.nn.functional.pad(log_bs.cumsum(1), (1, 0))
    return total_bs.gather(1, last_bb) - total_bs.gather(1, first_bb)


@part("score")
class DiscountedTurns(Score):
    """DMPO: log π/π_ref of the episode, with more weight on early turns (arXiv:2406.14868).

    s = Σ_k φ(k, T) d_k, d_k = log π/π_ref of turn k from 0, T the turns of the episode,
    φ(k, T) = γ^k(1 - γ^(T-k))/(1 - γ^T), at γ = 1 (T - k)/T. With one turn it is the sum over all tokens.
    """

    gamma: Share = 0.7
    says = "how much likelier the episode is than under the reference, early turns more (discount {gamma:g})"
    equation = "s(y) = Σ_k φ(k,T) d_k,  d = log π/π_ref of a turn"
    reads = ("ref_bt", "turn_bt")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return Σ_k φ(k, T) d_k."""
        there_bs = turns_of(batch, self.name)
        log_bs = log_ratios(logp_bt, there_bs, batch, self.name)
        return (early_weights(there_bs, self.gamma).to(log_bs.dtype) * log_bs).sum(1)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return f"{TURNS}score_b = (early_weights(there_bs, {self.gamma!r}).to(log_bs.dtype) * log_bs).sum(1)"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        return without_reference(run, self.name)


@part("score")
class DifferingTurns(Score):
    """SDPO: log π/π_ref of the segment where two episodes differ (arXiv:2501.01821).

    Δs = Σ_{k=e..f} d_k(w) - d_k(l), d_k = log π/π_ref of turn k: e is the first turn in which the two differ in action
    or observation, f is at most `turns` turns later, and within both episodes (`turns` None: the end of the shorter).
    With equal numbers of turns the two partition functions cancel.
    """

    turns: Count | None = None
    reads = ("ref_bt", "turn_bt", "state_bs", "token_bt")

    def of_pairs(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return [E,2] sums over the segment."""
        there_bs = turns_of(batch, self.name)
        action_bs = same_actions(batch, there_bs, self.name)
        state_bs = batch.need("state_bs", self.name)[:, : there_bs.shape[1]]
        spans = segments(action_bs, state_bs, there_bs, self.turns)
        span_bb = over_segments(log_ratios(logp_bt, there_bs, batch, self.name), *spans)
        first_e, second_e = index_e2.T
        return torch.stack([span_bb[first_e, second_e], span_bb[second_e, first_e]], 1)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return (
            f"{TURNS}action_bs = numbered_actions(token_bt, turn_bt, mask_bt, there_bs.shape[1])\n"
            f"spans = segments(action_bs, state_bs[:, : there_bs.shape[1]], there_bs, {self.turns!r})\n"
            "span_bb = over_segments(log_bs, *spans)\n"
            "score_2e = torch.stack([span_bb[*index_2e], span_bb[*index_2e.flip(0)]])"
        )

    @override
    def words(self) -> str:
        how_long = "to the end of the shorter" if self.turns is None else f"for at most {self.turns} turns"
        return (
            "how much likelier one episode is than the other, each against the reference, from the turn in which "
            f"they part, {how_long}"
        )

    @override
    def formula(self) -> str:
        end = "min(T_w, T_l)" if self.turns is None else f"min(e + {self.turns}, T_w, T_l)"
        return f"Δs = Σ_{{e≤k<f}} [d_k(w) - d_k(l)],  f = {end},  d = log π/π_ref of a turn"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        return without_reference(run, self.name)
