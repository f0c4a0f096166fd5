"""PPO's clip for completions of earlier policies: the interval moves with the ratio at the start of the update."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.lines import clip_lines
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.adaptive_clip import Dual
from grouprl.algorithms.objective.objective import Bound, LowBound, Surrogate, clipped
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch


@part("objective")
class ShiftedClip(Surrogate):
    """Clip π/π_behavior around what it was at the start of the update, π_old/π_behavior (ReMix, arXiv:2507.06892).

    For a completion that the policy itself sampled, that is 1 and the clip is PPO's.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    dual_clip: Dual = None
    says = (
        "PPO clip of the ratio to the policy that sampled the completion, from {clip_low:g} below to "
        "{clip_high:g} above "
        "what it was at the start of the update"
    )
    equation = (
        "-min(r·A, clip(r, c-{clip_low:g}, c+{clip_high:g})·A),  r = π/π_behavior(y_t), c = π_old/π_behavior(y_t)"
    )
    reads = ("old_bt", "behavior_bt")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -min(rA, clip(r, c - low, c + high)A), r = π/π_behavior, c = π_old/π_behavior."""
        ratio_bt = log_ratio(logp_bt, batch, against="behavior").exp()
        center_bt = log_ratio(batch.need("old_bt", self.name), batch, against="behavior").exp()
        bounds = (center_bt - self.clip_low).clamp(min=0), center_bt + self.clip_high
        return clipped(ratio_bt, batch.need("advantage_bt", self.name), *bounds, self.dual_clip)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        low, high = f"(center_bt - {self.clip_low!r}).clamp(min=0)", f"center_bt + {self.clip_high!r}"
        return "\n".join(
            [
                *ratio_code("token", "behavior"),
                "center_bt = held(torch.where(active_bt, old_bt - behavior_bt, 0)).exp()",
                *clip_lines(low, high, self.dual_clip),
            ]
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the clip has no effect with one update per rollout: the ratio is its centre."""
        if run.updates_per_rollout > 1:
            return []
        return [
            "the shifted clip cannot act: with one update per rollout the ratio is its centre. "
            "Use batch.minibatches or batch.epochs of 2 or more"
        ]
