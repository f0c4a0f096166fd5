"""A clipped objective of two advantages: the group's and the prompt's (COPO)."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import clip_lines
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.adaptive_clip import Dual
from grouprl.algorithms.objective.objective import Bound, LowBound, Surrogate, clip_metrics, clipped, idle_ratio
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code, symbol
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch


@part("objective")
class TwoLevelClip(Surrogate):
    """w·PPO clip of the group's advantage plus PPO clip of the prompt's (COPO); `prompt_advantage` gives both.

    There are two losses because two advantages of different sign are each clipped on their own side.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    dual_clip: Dual = None
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return w·ℓ(A) + ℓ((1-w)·A_q), ℓ(A) = max(-Aρ, -A clip(ρ))."""
        ratio_bt = log_ratio(logp_bt, batch).exp()
        own_bt, prompt_bt = self.advantages(batch)
        bounds = 1 - self.clip_low, 1 + self.clip_high, self.dual_clip
        own, prompt = (clipped(ratio_bt, adv_bt, *bounds) for adv_bt in (own_bt, prompt_bt))
        return TokenLoss(own.loss_bt + prompt.loss_bt, clip_metrics(ratio_bt, own_bt + prompt_bt, *bounds))

    @override
    def code(self) -> str:
        low, high = repr(1 - self.clip_low), repr(1 + self.clip_high)
        return "\n".join(
            [
                *ratio_code("token", "old"),
                "own_bt, prompt_bt = local_b[:, None] * adv_bt, prompt_b[:, None] * active_bt",
                *clip_lines(low, high, self.dual_clip, "own_loss_bt", "own_bt"),
                *clip_lines(low, high, self.dual_clip, "prompt_loss_bt", "prompt_bt"),
                "loss_bt = own_loss_bt + prompt_loss_bt",
            ]
        )

    def advantages(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return [B,T] weighted advantages: of the completion in its group, and of the prompt among all prompts."""
        own_bt = batch.need("rewards.local", self.name)[:, None] * batch.need("advantage_bt", self.name)
        return own_bt, batch.need("rewards.prompt", self.name)[:, None] * batch.active_bt

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows with neither advantage."""
        own_bt, prompt_bt = self.advantages(batch)
        return ~((own_bt != 0) | (prompt_bt != 0)).any(1)

    @override
    def words(self) -> str:
        return (
            "PPO clip of the completion's advantage in its group, plus that of its prompt's among all prompts: ratio "
            f"within [{1 - self.clip_low:g}, {1 + self.clip_high:g}]"
        )

    @override
    def formula(self) -> str:
        clip = f"ℓ(A) = -min(ρ·A, clip(ρ, {1 - self.clip_low:g}, {1 + self.clip_high:g})·A)"
        return f"w·ℓ(A) + (1-w)·ℓ(A_q),  {clip},  {symbol('token', 'old')}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the clip has no effect if the ratio is always 1."""
        return idle_ratio(run, "old", "the two-level clip")
