"""Tokens weighted by the policy's entropy (EGSW)."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("token_weight")
class EntropyGuided(TokenWeight):
    """Weigh by softmax((A + α·H)/P) over the group: good and uncertain completions count more (EGSW, arXiv:2503.22456).

    `level="token"`: over the tokens at the same step of the group's completions, with the entropy there. "sequence":
    over the completions, with their mean entropy. The weights of a group (at a step) sum to 1.
    """

    alpha: Annotated[float, Field(ge=0)] = 1.0
    temperature: Annotated[float, Field(gt=0)] = 1.0
    level: Literal["token", "sequence"] = "token"
    equation = "× softmax_g((A + {alpha:g}·H)/{temperature:g})"
    reads = ("entropy_bt",)

    def __call__(self, batch: Batch) -> Tensor:
        """Return softmax_g((A_t + α·H_t)/P)."""
        active_bt, group_b = batch.active_bt, levels.compact(batch.group_b)[0]
        score_bt = batch.need("advantage_bt", self.name) + self.alpha * batch.need("entropy_bt", self.name)
        out_bt = torch.zeros_like(score_bt)
        if self.level == "token":
            id_bt = group_b[:, None] * (batch.size[1] + 1) + active_bt.cumsum(1)
            out_bt[active_bt] = levels.softmax(score_bt[active_bt] / self.temperature, id_bt[active_bt])
            return out_bt
        live_b = active_bt.any(1)
        mean_b = torch.where(active_bt, score_bt, 0).sum(1) / active_bt.sum(1).clamp(min=1)
        out_bt[live_b] = levels.softmax(mean_b[live_b] / self.temperature, group_b[live_b])[:, None]
        return torch.where(active_bt, out_bt, 0)

    @override
    def code(self) -> str:
        score = f"score_bt = (adv_bt + {self.alpha!r} * old_entropy_bt) / {self.temperature!r}"
        if self.level == "sequence":
            return (
                f"{score}\n"
                "score_b = torch.where(active_bt, score_bt, 0).sum(1) / active_bt.sum(1).clamp(min=1)\n"
                "live_bb = (group_b[:, None] == group_b) & active_bt.any(1)\n"
                "share_b = torch.where(live_bb, score_b, -torch.inf).softmax(1).diagonal()\n"
                "factor_bt = factor_bt * torch.where(active_bt, share_b[:, None], 0)"
            )
        return (
            f"{score}\n"
            "high_bt = torch.where(active_bt, score_bt - score_bt[active_bt].max(), -torch.inf).exp()\n"
            "share_bt = high_bt / sum_by_place(high_bt, active_bt, group_b)\n"
            "factor_bt = factor_bt * torch.where(active_bt, share_bt, 0)"
        )

    @override
    def words(self) -> str:
        over = "tokens at the same step" if self.level == "token" else "completions"
        return (
            f"weigh by a softmax over the group's {over} of advantage plus {self.alpha:g} times entropy, "
            f"temperature {self.temperature:g}"
        )
