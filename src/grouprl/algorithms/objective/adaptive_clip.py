"""PPO's clip with bounds of their own for each token, and the clip of a turn."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.lines import clip_lines
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Bound, LowBound, Surrogate, clipped, idle_ratio
from grouprl.algorithms.objective.ratio import held
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch

Dual = Annotated[float, Field(gt=1)] | None


@part("objective")
class TurnClip(Surrogate):
    """PPO's clip on the ratio of whole turns: w_k = exp(mean over the turn of log ρ_t) (Turn-PPO, arXiv:2511.20718).

    All tokens of a turn share its ratio, so each gets the gradient of the turn's mean advantage.
    """

    clip_low: LowBound = 0.2
    clip_high: Bound = 0.2
    dual_clip: Dual = None
    reads = ("old_bt", "turn_bt")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -min(w_k A_t, clip(w_k, 1-clip_low, 1+clip_high)A_t)."""
        adv_bt = batch.need("advantage_bt", self.name)
        ratio_bt = turn_log_ratio(logp_bt, batch).exp()
        low_bt, high_bt = torch.full_like(adv_bt, 1 - self.clip_low), torch.full_like(adv_bt, 1 + self.clip_high)
        return clipped(ratio_bt, adv_bt, low_bt, high_bt, self.dual_clip)

    @override
    def code(self) -> str:
        lines = [
            "moved_bs = held(mean_of_turns(logp_bt - old_bt, active_bt, turn_bt, int(turn_bt.max()) + 1))",
            "ratio_bt = to_tokens(moved_bs, turn_bt, active_bt).exp()",
        ]
        return "\n".join([*lines, *clip_lines(repr(1 - self.clip_low), repr(1 + self.clip_high), self.dual_clip)])

    @override
    def words(self) -> str:
        return f"PPO clip on each turn's geometric mean ratio, [{1 - self.clip_low:g}, {1 + self.clip_high:g}]"

    @override
    def formula(self) -> str:
        clip = f"clip(w, {1 - self.clip_low:g}, {1 + self.clip_high:g})"
        return f"-min(w·A_t, {clip}·A_t),  w = (π(turn)/π_old(turn))^(1/|turn|)"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that nothing is clipped if the ratio is always 1."""
        return idle_ratio(run, "old", f"the clip [{1 - self.clip_low:g}, {1 + self.clip_high:g}]")


def turn_log_ratio(logp_bt: Tensor, batch: Batch) -> Tensor:
    """Return [B,T] mean log-ratio over the active tokens of each token's turn, zero elsewhere, held within ±20."""
    active_bt = batch.active_bt
    token_bt = torch.where(active_bt, logp_bt - batch.need("old_bt", "the turn ratio"), 0)
    turn_bt = batch.need("turn_bt", "the turn ratio").clamp(min=0)
    zero_bs = token_bt.new_zeros(len(turn_bt), int(turn_bt.max()) + 1 if turn_bt.numel() else 1)
    size_bs = zero_bs.scatter_add(1, turn_bt, active_bt.to(token_bt.dtype)).clamp(min=1)
    mean_bs = zero_bs.scatter_add(1, turn_bt, token_bt) / size_bs
    return held(mean_bs).gather(1, turn_bt) * active_bt
