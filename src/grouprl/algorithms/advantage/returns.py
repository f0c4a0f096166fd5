"""Credit along a sequence: returns to go and generalised advantage estimation.

Both run backwards over the action tokens only: positions outside the mask (tool output, padding) are skipped, so that
credit flows across turns. The sequence's reward sits on its last action token. Nothing follows it (value 0), unless a
limit cut the sequence and `final_value_b` gives the value of the state in which it was cut (Pardo et al. 2018,
arXiv:1712.00378).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share

if TYPE_CHECKING:
    from torch import Tensor


def token_rewards(batch: Batch) -> Tensor:
    """Return [B,T] reward of each token: token rewards, and the sequence's reward on its last action token."""
    last_bt = batch.last_token_bt().to(batch.dtype) * batch.reward_b[:, None]
    return last_bt if batch.token_reward_bt is None else last_bt + batch.token_reward_bt


def discounted(term_bt: Tensor, mask_bt: Tensor, factor_b: Tensor) -> Tensor:
    """Return [B,T] backward sums x_t = term_t + factor·x_next over the positions of the mask; zero outside."""
    carry_b, found = torch.zeros_like(term_bt[:, 0]), []
    for term_b, mask_b in zip(reversed(term_bt.unbind(1)), reversed(mask_bt.unbind(1)), strict=True):
        carry_b = torch.where(mask_b, term_b + factor_b * carry_b, carry_b)
        found.append(carry_b)
    return torch.where(mask_bt, torch.stack(found[::-1], 1), 0)


def bootstrap(batch: Batch) -> Tensor:
    """Return [B] value of what follows the last action token: that of the final observation where a limit cut the row,
    else 0.

    Without `final_value_b` it is 0 for all rows.
    """
    if batch.final_value_b is None:
        return torch.zeros_like(batch.reward_b)
    return torch.where(batch.need("truncated_b", "bootstrapping by final_value_b"), batch.final_value_b, 0)


def next_value(value_bt: Tensor, mask_bt: Tensor, last_b: Tensor) -> Tensor:
    """Return [B,T] value at the next position of the mask, `last_b` after the last."""
    width = value_bt.shape[1]
    place_bt = torch.where(mask_bt, torch.arange(width, device=mask_bt.device), width)
    here_bt = place_bt.flip(1).cummin(1).values.flip(1)  # the first position of the mask from this one on
    next_bt = torch.cat([here_bt[:, 1:], torch.full_like(here_bt[:, :1], width)], 1)
    return torch.cat([value_bt, last_b[:, None].to(value_bt.dtype)], 1).gather(1, next_bt)


def gae(batch: Batch, gamma: float, lam_b: Tensor) -> Tensor:
    """Return [B,T] generalised advantages: δ_t = r_t + γV_next - V_t, A_t = δ_t + γλ·A_next (Schulman et al. 2015).

    `lam_b` is [B]: one λ per sequence. V_next of the last action token is `bootstrap`.
    """
    value_bt = torch.where(batch.mask_bt, batch.need("value_bt", "gae"), 0)
    delta_bt = token_rewards(batch) + gamma * next_value(value_bt, batch.mask_bt, bootstrap(batch)) - value_bt
    return discounted(delta_bt, batch.mask_bt, gamma * lam_b)


@part("advantage")
class ReturnsToGo(Advantage):
    """A_t = Σ_{k≥t} γ^{k-t} r_k: each token gets the rewards from itself on (REINFORCE++, arXiv:2501.03262)."""

    gamma: Share = 1.0
    says = "rewards from each token to the end of its sequence, discount {gamma:g}"
    plain = (
        "last_bt = mask_bt & (mask_bt.flip(1).cumsum(1).flip(1) == 1)\n"
        "paid_bt = last_bt * reward_b[:, None] + token_reward_bt\n"
        "adv_bt = discounted(paid_bt, mask_bt, torch.full_like(reward_b, {gamma!r}))"
    )

    def __call__(self, batch: Batch) -> Tensor:
        """Return the returns to go A_t [B,T]."""
        return discounted(token_rewards(batch), batch.mask_bt, torch.full_like(batch.reward_b, self.gamma))

    @override
    def formula(self) -> str:
        return "A_t = Σ_{k≥t} r_k" if self.gamma == 1 else f"A_t = Σ_{{k≥t}} {self.gamma:g}^(k-t) r_k"


@part("advantage", name="gae")
class GAE(Advantage):
    """Generalised advantage estimation (Schulman et al. 2015, arXiv:1506.02438) over action tokens.

    `length_alpha` makes λ grow with the length l of each completion, λ = 1 - 1/max(α·l, 1) (VAPO, arXiv:2504.05118;
    there α = 0.05), and replaces `lam`.
    """

    gamma: Share = 1.0
    lam: Share = 0.95
    length_alpha: Annotated[float, Field(gt=0)] | None = None
    equation = "A_t = δ_t + γλ·A_{{t+1}},  δ_t = r_t + γV_{{t+1}} - V_t"
    reads = ("value_bt",)

    def __call__(self, batch: Batch) -> Tensor:
        """Return the advantages A_t [B,T]."""
        return gae(batch, self.gamma, self.lambdas(batch))

    @override
    def code(self) -> str:
        factor, lines = repr(self.gamma * self.lam), []
        if self.length_alpha is not None:
            factor = f"{self.gamma!r} * lam_b"
            lines = [f"lam_b = 1 - 1 / ({self.length_alpha!r} * mask_bt.sum(1).to(reward_b.dtype)).clamp(min=1)"]
        lines += [
            "adv_bt = torch.zeros_like(mask_bt, dtype=reward_b.dtype)",
            "gae_b = next_b = torch.zeros_like(reward_b)",
            "last_b = mask_bt.shape[1] - 1 - mask_bt.flip(1).int().argmax(1)",
            "for t in reversed(range(mask_bt.shape[1])):",
            "    paid_b = torch.where(last_b == t, reward_b, 0) + token_reward_bt[:, t]",
            f"    delta_b = paid_b + {self.gamma!r} * next_b - value_bt[:, t]",
            f"    gae_b = torch.where(mask_bt[:, t], delta_b + {factor} * gae_b, gae_b)",
            "    next_b = torch.where(mask_bt[:, t], value_bt[:, t], next_b)",
            "    adv_bt[:, t] = gae_b * mask_bt[:, t]",
        ]
        return "\n".join(lines)

    def lambdas(self, batch: Batch) -> Tensor:
        """Return the λ of each sequence, [B]."""
        if self.length_alpha is None:
            return torch.full_like(batch.reward_b, self.lam)
        return 1 - 1 / (self.length_alpha * batch.length_b.to(batch.dtype)).clamp(min=1)

    @override
    def words(self) -> str:
        lam = f"lambda {self.lam:g}" if self.length_alpha is None else f"lambda 1 - 1/({self.length_alpha:g}·length)"
        return f"generalised advantage estimation with the critic's values, {lam}, discount {self.gamma:g}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say when `lam` is replaced by `length_alpha`, and when `length_alpha` makes λ 0 for every completion."""
        if self.length_alpha is None:
            return []
        found = []
        if self.lam != type(self).lam:
            found = [f"gae.lam = {self.lam:g} has no effect: length_alpha replaces it"]
        if 0 < run.max_length <= 1 / self.length_alpha:
            found.append(
                f"gae.length_alpha = {self.length_alpha:g} makes lambda 0 for every completion: they have at most "
                f"{run.max_length} tokens, and lambda 1 - 1/({self.length_alpha:g}·length) begins above "
                f"{1 / self.length_alpha:g}. Set it higher, or to none"
            )
        return found
