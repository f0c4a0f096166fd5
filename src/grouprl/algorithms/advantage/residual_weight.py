"""Weights of stored actions by how much better than its state's value each turned out (dual RL, ODICE)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.advantage.returns import gae
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive, Share

Rule = Literal["exponential", "residual"]


@part("advantage")
class ResidualWeight(Advantage):
    """w(δ_t) with δ_t = r_t + γV_{t+1} - V_t, at most `limit`: weights of cloning, never below 0.

    `rule` 'exponential' is exp(τδ) (f-DVL, ICLR 2024: exp(τ(Q - V))), 'residual' is max(δ, 0) (ODICE, ICLR 2024,
    χ²). *Differs from f-DVL*: one sample r + γV(s') stands for Q(s, a), so where chance moves the state a lucky step is
    taken for a merit of its action.
    """

    gamma: Share = 0.99
    rule: Rule = "exponential"
    temperature: Positive = 3.0
    limit: Positive = 100.0
    reads = ("value_bt",)

    def __call__(self, batch: Batch) -> Tensor:
        """Return the weights [B,T]."""
        delta_bt = gae(batch, self.gamma, batch.reward_b.new_zeros(batch.size[0]))
        raw_bt = (self.temperature * delta_bt).exp() if self.rule == "exponential" else delta_bt.clamp(min=0)
        return raw_bt.clamp(max=self.limit) * batch.mask_bt

    @override
    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse rows that the policy samples: it would only ever clone the best of its own actions."""
        if run.stored:
            return []
        return [f"{self.name} weighs stored actions, but this task's are sampled. Set task: trajectories:…"]

    @override
    def code(self) -> str:
        weight = f"({self.temperature!r} * delta_bt).exp()" if self.rule == "exponential" else "delta_bt.clamp(min=0)"
        return (
            "last_bt = mask_bt & (mask_bt.flip(1).cumsum(1).flip(1) == 1)\n"
            "after_bt = next_value(value_bt, mask_bt, torch.zeros_like(reward_b))\n"
            "paid_bt = last_bt * reward_b[:, None] + token_reward_bt\n"
            f"delta_bt = (paid_bt + {self.gamma!r} * after_bt - value_bt) * mask_bt\n"
            f"adv_bt = {weight}.clamp(max={self.limit!r}) * mask_bt"
        )

    @override
    def words(self) -> str:
        rule = f"exp({self.temperature:g}·δ)" if self.rule == "exponential" else "max(δ, 0)"
        return (
            f"each action weighs {rule}, at most {self.limit:g}, δ its reward and the next state's value (discount "
            f"{self.gamma:g}) less the value of its state"
        )

    @override
    def formula(self) -> str:
        rule = f"exp({self.temperature:g}·δ_t)" if self.rule == "exponential" else "max(δ_t, 0)"
        return f"w_t = min({rule}, {self.limit:g}),  δ_t = r_t + {self.gamma:g}·V_{{t+1}} - V_t"
