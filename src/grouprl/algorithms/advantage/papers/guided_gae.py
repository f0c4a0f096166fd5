"""Advantages from values that were trained before the run and stay as they are (DVPO)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.advantage.returns import discounted, next_value
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Share


@part("advantage")
class GuidedGAE(Advantage):
    """Generalised advantage estimation with the values of a frozen model and no outcome (DVPO, arXiv:2502.16944).

    δ_t = r_t + γV_{t+1} - V_t with the token rewards alone: the sequence's reward is never read. `terminal` sets the
    value after the last token: "value" takes the model's value of the whole completion; "zero" takes 0 as the authors'
    code does, so that the last δ is r - V.
    """

    gamma: Share = 1.0
    lam: Share = 0.95
    terminal: Literal["value", "zero"] = "value"

    def __call__(self, batch: Batch) -> Tensor:
        """Return the advantages A_t [B,T]."""
        value_bt = torch.where(batch.mask_bt, batch.need("value_bt", self.name), 0)
        after_bt = next_value(value_bt, batch.mask_bt, torch.zeros_like(batch.reward_b))
        if self.terminal == "value":
            after_bt = torch.where(batch.last_token_bt(), batch.need("stats.value_after", self.name), after_bt)
        delta_bt = self.gamma * after_bt - value_bt
        if batch.token_reward_bt is not None:
            delta_bt = delta_bt + batch.token_reward_bt
        return discounted(delta_bt, batch.mask_bt, torch.full_like(batch.reward_b, self.gamma * self.lam))

    @override
    def code(self) -> str:
        last = "mask_bt & (mask_bt.flip(1).cumsum(1).flip(1) == 1)"
        end = f'after_bt = torch.where({last}, stats["value_after"], after_bt)\n' if self.terminal == "value" else ""
        return (
            "after_bt = next_value(value_bt, mask_bt, torch.zeros_like(reward_b))\n"
            f"{end}"
            f"delta_bt = {self.gamma!r} * after_bt - value_bt + token_reward_bt\n"
            f"adv_bt = discounted(delta_bt, mask_bt, torch.full_like(reward_b, {self.gamma * self.lam!r}))"
        )

    @override
    def needs(self) -> tuple[str, ...]:
        return ("value_bt", "stats.value_after") if self.terminal == "value" else ("value_bt",)

    @override
    def words(self) -> str:
        end = "that of the whole completion" if self.terminal == "value" else "0"
        return (
            f"generalised advantage estimation with given values and token rewards alone, lambda {self.lam:g}, "
            f"discount {self.gamma:g}; the value after the end is {end}"
        )

    @override
    def formula(self) -> str:
        end = "" if self.terminal == "value" else ",  V_{T+1} = 0"
        return f"A_t = δ_t + γλ·A_{{t+1}},  δ_t = r_t + γV_{{t+1}} - V_t{end}"
