"""Token weights from probabilities and entropies at the start of the update: detached factors of the policy loss."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weights.weighting import Weighting
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("token_weight")
class ProbabilityWeight(Weighting):
    """Give unlikely tokens less weight: α·π_old(y_t) + 1 - α, in [1-α, 1] (AR, arXiv:2505.12929).

    Unlikely tokens have the largest gradients; the weight keeps them from drowning the others.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.2
    reads = ("old_bt",)

    def __call__(self, batch: Batch) -> Tensor:
        """α·π_old(y_t) + 1 - α."""
        return self.alpha * batch.need("old_bt", self.name).exp() + (1 - self.alpha)

    @override
    def words(self) -> str:
        return f"weigh each token by its probability: from {1 - self.alpha:g} for a hopeless one to 1 for a sure one"

    @override
    def formula(self) -> str:
        return f"× ({self.alpha:g}·π_old(y_t) + {1 - self.alpha:g})"

    def idle(self, run: RunFacts) -> list[str]:
        """Every weight is 1."""
        return ["probability_weight has no effect: alpha is 0"] if self.alpha == 0 else []


@part("token_weight")
class EntropyGuided(Weighting):
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
        """softmax_g((A_t + α·H_t)/P)."""
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
    def words(self) -> str:
        over = "tokens at the same step" if self.level == "token" else "answers"
        return (
            f"weigh by a softmax over the group's {over} of advantage plus {self.alpha:g} times entropy, "
            f"temperature {self.temperature:g}"
        )
