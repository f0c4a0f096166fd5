"""Log-ratios between the trained policy and the policy that an update started from.

Every logarithm is held within ±20 before it is exponentiated, with its slope; `docs/bounds.md` lists every bound of the
library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from grouprl.core.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor

RatioLevel = Literal["token", "sequence", "sequence_token", "sequence_sum"]
Against = Literal["old", "behavior"]
LOG_LIMIT = 20.0
"""Largest logarithm that is exponentiated: far outside any trust region, and e^20 squared is finite in float32."""

SYMBOL = {
    "token": "ρ_t = π(y_t)/π_old(y_t)",
    "sequence": "ρ = (π(y)/π_old(y))^(1/|y|)",
    "sequence_token": "ρ_t = sg[(π(y)/π_old(y))^(1/|y|)] · π(y_t)/sg[π(y_t)]",
    "sequence_sum": "ρ = π(y)/π_old(y)",
}


def held(log: Tensor, low: float | None = -LOG_LIMIT, high: float = LOG_LIMIT) -> Tensor:
    """Return logarithms within the limits, with their slope of 1 beyond: what is lost by far is still pulled back."""
    return log + (log.clamp(low, high) - log).detach()


def within(x: Tensor, low: float | Tensor | None = None, high: float | Tensor | None = None) -> Tensor:
    """Return numbers clipped to their bounds, with a slope of 1 at the bounds, too, and of 0 beyond.

    Ratios begin at 1 and are exactly there while nothing has moved, so that a bound of 1 is met. The slope that torch's
    `clamp` has at its bounds differs from release to release: 1, and since 2.14 0, or ½ for bounds that are tensors.
    """
    limited = x.detach()
    limited = limited if low is None else limited.clamp(min=low)
    limited = limited if high is None else limited.clamp(max=high)
    return torch.where(limited == x, x, limited)


def symbol(level: RatioLevel, against: Against) -> str:
    """Return the ratio's definition in symbols."""
    return SYMBOL[level] if against == "old" else SYMBOL[level].replace("π_old", "π_behavior")


def ratio_code(level: RatioLevel, against: Against, logp: str = "logp_bt") -> list[str]:
    """Return the lines of plain torch that assign `ratio_bt`; `logp` are the log-probs of the trained policy."""
    log = f"torch.where(active_bt, {logp} - {against}_bt, 0)"
    if level == "token":
        return [f"ratio_bt = held({log}).exp()"]
    mean = "" if level == "sequence_sum" else " / active_bt.sum(1).clamp(min=1)"
    lines = [f"log_b = {log}.sum(1){mean}", "log_bt = held(log_b)[:, None] * active_bt"]
    if level == "sequence_token":
        lines.append(f"log_bt = torch.where(active_bt, {logp} - {logp}.detach() + log_bt.detach(), 0)")
    return [*lines, "ratio_bt = log_bt.exp()"]


def log_ratio(logp_bt: Tensor, batch: Batch, level: RatioLevel = "token", against: Against = "old") -> Tensor:
    """Return [B,T] log of the importance ratio, zero outside the loss mask, held within ±20.

    `token`: per token. `sequence`: mean over the sequence's active tokens (GSPO). `sequence_token`: the same value, but
    the gradient is the token's own (GSPO-token). `sequence_sum`: the ratio of whole sequences.
    """
    active_bt = batch.active_bt
    anchor_bt = batch.need(f"{against}_bt", "the importance ratio")
    token_bt = torch.where(active_bt, logp_bt - anchor_bt, 0)
    if level == "token":
        return held(token_bt)
    sum_b = token_bt.sum(1)
    if level != "sequence_sum":
        sum_b = sum_b / active_bt.sum(1).clamp(min=1)
    sequence_bt = held(sum_b)[:, None] * active_bt
    if level == "sequence_token":
        return torch.where(active_bt, logp_bt - logp_bt.detach() + sequence_bt.detach(), 0)
    return sequence_bt
