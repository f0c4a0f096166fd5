"""Shaping: changes of the reward before advantages are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.algorithms.regularize.kl import CODE, FORMULA, ValueEstimator, estimate
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative

if TYPE_CHECKING:
    from torch import Tensor


class RewardTransform(Part):
    """Base: a batch with other rewards."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with shaped rewards."""
        raise NotImplementedError


@part("reward_transform", name="kl_in_reward")
class KLInReward(RewardTransform):
    """Subtract β times an estimate of KL(π_old || π_ref) from the reward (PPO for language models, RLOO).

    `level="token"`: as a reward on each token, which token-level advantages (returns to go, GAE) place and
    sequence-level ones sum. `level="sequence"`: the sum, from the sequence's scalar reward. `value_limit` clamps each
    token's estimate, as in verl.
    """

    coef: NonNegative = 0.05
    estimator: ValueEstimator = "k1"
    level: Literal["token", "sequence"] = "token"
    value_limit: Annotated[float, Field(gt=0)] | None = None
    says = (
        "subtract {coef:g} times the KL to the reference ({estimator}) from the reward of each {level}; without "
        "gradient, so k1 is right here"
    )
    idle_at = ("coef", 0, "the KL in the reward has no effect: its coefficient is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return r_t = r_t - β·k(log π_old - log π_ref)."""
        if self.coef == 0:
            return batch
        log_bt = batch.need("old_bt", self.name) - batch.need("ref_bt", self.name)
        value_bt = estimate(log_bt, self.estimator, self.value_limit)
        penalty_bt = torch.where(batch.mask_bt, -self.weight(batch) * value_bt, 0)
        if self.level == "sequence":
            return batch.replace(reward_b=batch.reward_b + penalty_bt.sum(1))
        before_bt = batch.token_reward_bt
        return batch.replace(token_reward_bt=penalty_bt if before_bt is None else before_bt + penalty_bt)

    @override
    def code(self) -> str:
        if self.estimator not in CODE:
            return ""
        limit = "" if self.value_limit is None else f".clamp({-self.value_limit!r}, {self.value_limit!r})"
        lines = f"d_bt = old_bt - ref_bt\nkl_bt = ({CODE[self.estimator]}){limit}\n"
        if self.level == "token":
            return f"{lines}token_reward_bt = token_reward_bt - {self.coef!r} * torch.where(mask_bt, kl_bt, 0)"
        return f"{lines}reward_b = reward_b - {self.coef!r} * torch.where(mask_bt, kl_bt, 0).sum(1)"

    def weight(self, batch: Batch) -> Tensor | float:
        """Return β, a number or [B,1]."""
        return self.coef

    @override
    def needs(self) -> tuple[str, ...]:
        return ("old_bt", "ref_bt") if self.coef else ()

    @override
    def formula(self) -> str:
        where = "r_t ← r_t" if self.level == "token" else "R ← R"
        total = "" if self.level == "token" else "Σ_t "
        return f"{where} - {self.coef:g} · {total}[{FORMULA[self.estimator]}],  d = log π_old(y_t) - log π_ref(y_t)"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        if self.coef > 0 and not run.has_reference:
            return [
                "the KL in the reward needs a reference model. Set model.reference: initial, or the coefficient to 0"
            ]
        return []


@part("reward_transform")
class SoftOverlong(RewardTransform):
    """DAPO's soft overlong punishment (arXiv:2503.14476, eq. 13), added to the reward.

    With Lmax the longest allowed completion and Lc the buffer: 0 up to Lmax - Lc, then (Lmax - Lc - |y|)/Lc, -1 from
    Lmax on; times `penalty`. `buffer` below 1 is a fraction of Lmax (rounded to at least one token), else tokens.
    `length` None takes the batch's max_length; a batch without one has no limit, so nothing is overlong.
    """

    buffer: Annotated[float, Field(gt=0)] = 0.2
    penalty: NonNegative = 1.0
    length: Annotated[int, Field(ge=1)] | None = None
    equation = "R ← R + {penalty:g} · clip((Lmax - Lc - |y|)/Lc, -1, 0)"

    def __call__(self, batch: Batch) -> Batch:
        """Return R = R + penalty · clip((Lmax - Lc - |y|)/Lc, -1, 0)."""
        longest = self.length or batch.max_length
        if longest is None:
            return batch
        buffer = self.tokens(longest)
        over_b = (longest - buffer - batch.length_b).to(batch.dtype) / buffer
        return batch.replace(reward_b=batch.reward_b + self.penalty * over_b.clamp(-1, 0))

    @override
    def code(self) -> str:
        if self.length is not None:
            return ""
        size = f"max(round({self.buffer!r} * max_length), 1)" if self.buffer < 1 else str(self.tokens(0))
        return f"""buffer = {size}
over_b = (max_length - buffer - mask_bt.sum(1)) / buffer
reward_b = reward_b + {self.penalty!r} * over_b.clamp(-1, 0)"""

    def tokens(self, longest: int) -> int:
        """Return the buffer in tokens for completions of at most `longest` tokens."""
        return max(round(self.buffer * longest if self.buffer < 1 else self.buffer), 1)

    @override
    def words(self) -> str:
        buffer = f"{self.buffer:.0%} of the allowed length" if self.buffer < 1 else f"{self.buffer:g} tokens"
        return f"punish completions that reach into the last {buffer}, linearly down to -{self.penalty:g} at the limit"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if its penalty is 0 or no completion can reach the buffer."""
        if self.penalty == 0:
            return ["the overlong punishment has no effect: its penalty is 0"]
        longest = self.length or run.max_length
        if run.max_length and longest - self.tokens(longest) >= run.max_length:
            return [
                f"the overlong punishment has no effect: it begins after {longest - self.tokens(longest)} tokens, but "
                f"completions have at most {run.max_length}"
            ]
        return []


@part("reward_transform")
class RewardClip(RewardTransform):
    """Clip the scalar reward to [low, limit] (optional in REINFORCE++; [-10, 10] in OpenRLHF); `low` None: -limit."""

    limit: float = 10.0
    low: float | None = None

    plain = "reward_b = reward_b.clamp({floor!r}, {limit!r})"

    def __post_init__(self) -> None:
        """Raise InputError if the interval is empty."""
        if self.floor >= self.limit:
            raise InputError(
                f"reward_clip: the interval [{self.floor:g}, {self.limit:g}]", "low must be below limit", "Set low too"
            )

    @property
    def floor(self) -> float:
        """Lower bound of the reward."""
        return -self.limit if self.low is None else self.low

    def __call__(self, batch: Batch) -> Batch:
        """Return R = clip(R, low, limit)."""
        return batch.replace(reward_b=batch.reward_b.clamp(self.floor, self.limit))

    @override
    def words(self) -> str:
        return f"clip the reward to {self._interval()}"

    @override
    def formula(self) -> str:
        return f"R ← clip(R, {self._interval()})"

    def _interval(self) -> str:
        return f"±{self.limit:g}" if self.floor == -self.limit else f"[{self.floor:g}, {self.limit:g}]"
