"""The sampler's correction as a weight, and tokens outside a trust region masked (MiniRL)."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Bound, LowBound, Surrogate, clip_metrics, idle_ratio
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code
from grouprl.algorithms.objective.stop_gradient import bounded
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch


@part("objective", "masked_importance")
class MaskedImportanceObjective(Surrogate):
    """MiniRL: -M·sg[min(π/π_behavior, cap)]·A·log π, M zero where PPO's clip has no gradient (Qwen 2025).

    The mask judges staleness (ρ = π/π_old beyond 1-clip_low or 1+clip_high in the direction of A); the weight
    corrects for the sampler. Both are detached.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.27
    cap: Bound | None = 5.0
    reads = ("old_bt", "behavior_bt")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -M_t·w_t·A_t·log π(y_t)."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = log_ratio(logp_bt.detach(), batch).exp()
        metrics = clip_metrics(ratio_bt, adv_bt, 1 - self.clip_low, 1 + self.clip_high)
        sampler_bt = log_ratio(logp_bt.detach(), batch, "token", "behavior").exp()
        weight_bt = bounded(sampler_bt, None, self.cap)
        metrics["capped_fraction"] = (weight_bt != sampler_bt).to(adv_bt.dtype)
        keep_bt = (1 - metrics["clip_fraction"]) * weight_bt
        return TokenLoss(-keep_bt * adv_bt * logp_bt, metrics)

    @override
    def code(self) -> str:
        high, low = repr(1 + self.clip_high), repr(1 - self.clip_low)
        cap = "" if self.cap is None else f".clamp(max={self.cap!r})"
        return "\n".join(
            [
                *ratio_code("token", "old", "logp_bt.detach()"),
                f"out_bt = ((ratio_bt > {high}) & (adv_bt > 0)) | ((ratio_bt < {low}) & (adv_bt < 0))",
                f"sampler_bt = held(torch.where(active_bt, logp_bt.detach() - behavior_bt, 0)).exp(){cap}",
                "loss_bt = -adv_bt * ~out_bt * sampler_bt * logp_bt",
            ]
        )

    @override
    def words(self) -> str:
        return (
            f"push each token's log-prob by its advantage times its ratio to the sampler{_at_most(self.cap)}; "
            f"tokens already moved beyond [{1 - self.clip_low:g}, {1 + self.clip_high:g}] of the old policy are "
            "left out"
        )

    @override
    def formula(self) -> str:
        cap = "∞" if self.cap is None else f"{self.cap:g}"
        return f"-M_t·sg[min(π/π_behavior, {cap})]·A_t·log π(y_t)"

    def idle(self, run: RunFacts) -> list[str]:
        """Say when the mask has no effect (one update per rollout), and when the weight has none (an exact sampler)."""
        return idle_ratio(run, "old", f"the mask [{1 - self.clip_low:g}, {1 + self.clip_high:g}]")


def _at_most(cap: float | None) -> str:
    return "" if cap is None else f" (at most {cap:g})"
