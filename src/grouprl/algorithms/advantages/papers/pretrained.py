"""Advantages from a model that was trained before: its rewards (RTO), its values (DVPO)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantages.advantage import Advantage
from grouprl.algorithms.advantages.returns import discounted, next_value
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.rewards.shaping import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative, Share

LOG_LIMIT = 20.0


@part("advantage")
class GuidedGAE(Advantage):
    """Generalised advantage estimation with the values of a frozen model and no outcome (DVPO, arXiv:2502.16944).

    δ_t = r_t + γV_{t+1} - V_t with the token rewards alone: the sequence's reward is never read. `terminal` is the
    value after the last token: "value" is the model's own, of the whole completion; "zero" is that of the authors'
    code, by which the last δ is r - V.
    """

    gamma: Share = 1.0
    lam: Share = 0.95
    terminal: Literal["value", "zero"] = "value"

    def __call__(self, batch: Batch) -> Tensor:
        """Return A_t."""
        value_bt = torch.where(batch.mask_bt, batch.need("value_bt", self.name), 0)
        after_bt = next_value(value_bt, batch.mask_bt, torch.zeros_like(batch.reward_b))
        if self.terminal == "value":
            after_bt = torch.where(batch.last_token_bt(), batch.need("stats.value_after", self.name), after_bt)
        delta_bt = self.gamma * after_bt - value_bt
        if batch.token_reward_bt is not None:
            delta_bt = delta_bt + batch.token_reward_bt
        return discounted(delta_bt, batch.mask_bt, torch.full_like(batch.reward_b, self.gamma * self.lam))

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


@part("reward_transform")
class ExpertReward(RewardTransform):
    """Reward a token by how much likelier a preference model finds it than the reference (RTO, arXiv:2404.18922).

    r_t += clip(β·(log π_expert - log π_ref), ±limit), the clip after the scaling; None clips nothing. Unclipped the
    rewards of a completion add up to the preference model's implicit reward. log-ratios are held within ±20.
    """

    coef: NonNegative = 0.05
    limit: Annotated[float, Field(gt=0)] | None = 0.05

    def __call__(self, batch: Batch) -> Batch:
        """r_t = r_t + clip(β·log(π_expert/π_ref), ±limit)."""
        if self.coef == 0:
            return batch
        log_bt = batch.need("stats.expert", self.name) - batch.need("ref_bt", self.name)
        dense_bt = self.coef * log_bt.clamp(-LOG_LIMIT, LOG_LIMIT)
        if self.limit is not None:
            dense_bt = dense_bt.clamp(-self.limit, self.limit)
        dense_bt, before_bt = torch.where(batch.mask_bt, dense_bt, 0), batch.token_reward_bt
        return batch.replace(token_reward_bt=dense_bt if before_bt is None else before_bt + dense_bt)

    @override
    def needs(self) -> tuple[str, ...]:
        return ("stats.expert", "ref_bt") if self.coef else ()

    @override
    def words(self) -> str:
        clip = "" if self.limit is None else f", within ±{self.limit:g}"
        return (
            f"add {self.coef:g} times the log-ratio of the preference model to the reference to each token's "
            f"reward{clip}"
        )

    @override
    def formula(self) -> str:
        dense = f"{self.coef:g}·log(π_expert/π_ref)(y_t)"
        return f"r_t ← r_t + {dense}" if self.limit is None else f"r_t ← r_t + clip({dense}, ±{self.limit:g})"

    def idle(self, run: RunFacts) -> list[str]:
        """No coefficient."""
        return ["the expert's reward has no effect: its coefficient is 0"] if self.coef == 0 else []

    def refuse(self, run: RunFacts) -> list[str]:
        """A reference is needed."""
        if self.coef > 0 and not run.has_reference:
            return ["the expert's reward needs a reference model. Set model.reference: initial"]
        return []
