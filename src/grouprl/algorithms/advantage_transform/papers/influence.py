"""Advantages reweighted by a token's influence on the likelihood of its group's correct completions.

The influence s of a token is Σ over tokens of correct completions <g, g'><h, h'>, h the last hidden state and g the
one-hot of the token minus the policy's probabilities: how far raising the token raises the correct completions.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.outcome import right_share
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch


def threshold(batch: Batch, influence_bt: Tensor, beta: float | None) -> Tensor:
    """Return [B,1] τ = β · min over the group's correct completions of their mean influence; -inf
    where `beta` is None.
    """
    if beta is None:
        return torch.full_like(influence_bt[:, :1], -torch.inf)
    counted_b = (batch.need("correct_b", "the influence threshold") & batch.stats_b).to(batch.dtype)
    mean_b = torch.where(batch.mask_bt, influence_bt, 0).sum(1) / batch.length_b.clamp(min=1)
    return beta * levels.extreme(mean_b, batch.group_b, counted_b, largest=False)[:, None]


def threshold_code(beta: float | None) -> str:
    """Return the lines that assign influences, the `threshold` above which they count, and which groups are mixed."""
    limit = "limit_b1 = -torch.inf"
    if beta is not None:
        limit = (
            "own_b = torch.where(mask_bt, influence_bt, 0).sum(1) / mask_bt.sum(1).clamp(min=1)\n"
            "least_b = torch.where(same_bb & correct_b, own_b, torch.inf).amin(1)  # of the right completions\n"
            f"limit_b1 = {beta!r} * torch.where(least_b.isinf(), 0, least_b)[:, None]"
        )
    return (
        'influence_bt, share_b = stats["influence"], mean(correct_b.to(adv_bt.dtype), same_bb)\n'
        f"mixed_b = (share_b > 0) & (share_b < 1)\n{limit}"
    )


def both_signs(batch: Batch) -> Tensor:
    """Return [B,1] bool: rows of groups with right and with wrong completions."""
    share_b = right_share(batch)
    return ((share_b > 0) & (share_b < 1))[:, None]


@part("advantage_transform")
class HiddenReward(AdvantageTransform):
    """Keep the tokens that matter most to the correct completions, and tilt them (THR, arXiv:2510.03669).

    THR = s on tokens of correct completions and -s on those of wrong ones: what a step on the token does to the right
    completions. A becomes [|THR| > τ]·(1 + p·sign THR)·A: p > 0 exploits, p < 0 explores, p = 0 only selects the
    dominant tokens. τ = β·min over correct completions of their mean s, or none with `beta` None. Groups without both
    right and wrong completions are unchanged.
    """

    p: Annotated[float, Field(ge=-1, le=1)] = 0.1
    beta: Annotated[float, Field(ge=0)] | None = 1.0
    reads = ("stats.influence", "correct_b")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return [|THR| > τ]·(1 + p·sign THR)·A."""
        influence_bt, right_b = batch.need("stats.influence", self.name), batch.need("correct_b", self.name)
        hidden_bt = torch.where(right_b[:, None], influence_bt, -influence_bt)
        keep_bt = hidden_bt.abs() > threshold(batch, influence_bt, self.beta)
        tilted_bt = adv_bt * (1 + self.p * hidden_bt.sign()) * keep_bt
        return torch.where(both_signs(batch), tilted_bt, adv_bt)

    @override
    def code(self) -> str:
        tilted = f"adv_bt * (1 + {self.p!r} * hidden_bt.sign()) * (hidden_bt.abs() > limit_b1)"
        return (
            f"{threshold_code(self.beta)}\n"
            "hidden_bt = torch.where(correct_b[:, None], influence_bt, -influence_bt)\n"
            f"adv_bt = torch.where(mixed_b[:, None], {tilted}, adv_bt)"
        )

    @override
    def words(self) -> str:
        others = "" if self.beta is None else ", and the others left out"
        return (
            f"tokens whose step raises the group's correct completions count {1 + self.p:g} times, those that "
            "lower them "
            f"{1 - self.p:g} times{others}"
        )

    @override
    def formula(self) -> str:
        mask = "" if self.beta is None else f"[|THR| > {self.beta:g}·min_right mean s]·"
        return f"A ← {mask}(1 + {self.p:g}·sign THR)·A,  THR = ±s"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if `p` is 0 and `beta` None."""
        return ["hidden_reward has no effect: p is 0 and beta None"] if self.p == 0 and self.beta is None else []


@part("advantage_transform")
class SparedTokens(AdvantageTransform):
    """Punish less the tokens of wrong completions that support right ones (NTHR, arXiv:2505.18830).

    On tokens of wrong completions with s > τ the advantage is multiplied by 2·|0.5 - share of correct completions|; τ
    as in `hidden_reward`. Groups without both right and wrong completions are unchanged.
    """

    beta: Annotated[float, Field(ge=0)] | None = 1.0
    says = "tokens of wrong completions that resemble the group's right ones are punished less, 2·|0.5 - pass rate|"
    reads = ("stats.influence", "correct_b")

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return 2|0.5 - p|·A where wrong and s > τ."""
        influence_bt, right_b = batch.need("stats.influence", self.name), batch.need("correct_b", self.name)
        spared_bt = ~right_b[:, None] & (influence_bt > threshold(batch, influence_bt, self.beta)) & both_signs(batch)
        return torch.where(spared_bt, adv_bt * (2 * (0.5 - right_share(batch)).abs())[:, None], adv_bt)

    @override
    def code(self) -> str:
        return (
            f"{threshold_code(self.beta)}\n"
            "spared_bt = (mixed_b & ~correct_b)[:, None] & (influence_bt > limit_b1)\n"
            "adv_bt = torch.where(spared_bt, adv_bt * (2 * (0.5 - share_b).abs())[:, None], adv_bt)"
        )

    @override
    def formula(self) -> str:
        tau = "" if self.beta is None else f" and s > {self.beta:g}·min_right mean s"
        return f"A ← 2·|0.5 - p|·A if wrong{tau}"
