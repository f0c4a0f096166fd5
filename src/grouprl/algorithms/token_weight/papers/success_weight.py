"""Prompts weighted by how often their completions succeed (NFT)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.labels import HELD, success
from grouprl.algorithms.part import part
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.core.batch import Batch


@part("token_weight")
class SuccessWeight(TokenWeight):
    """Weigh prompts by their success rate p: 1-p, or sqrt((1-p)/p) (NFT, arXiv:2505.18116): hard ones count more.

    p is clamped to [0.02, 0.98].
    """

    form: Literal["failure", "root_odds"] = "failure"
    reads = ("correct_b",)

    def __call__(self, batch: Batch) -> Tensor:
        """Return 1-p or sqrt((1-p)/p)."""
        share_b = success(batch, self.name)[1].clamp(*HELD)
        return batch.broadcast(1 - share_b if self.form == "failure" else ((1 - share_b) / share_b).sqrt())

    @override
    def code(self) -> str:
        weight = "1 - share_b" if self.form == "failure" else "((1 - share_b) / share_b).sqrt()"
        return (
            f"share_b = mean(correct_b.to(adv_bt.dtype), same_bb).clamp{HELD}\n"
            f"factor_bt = factor_bt * ({weight})[:, None]"
        )

    @override
    def words(self) -> str:
        what = "1 - p" if self.form == "failure" else "sqrt((1-p)/p)"
        return f"weigh each prompt by {what}, p the share of its completions that are right"

    @override
    def formula(self) -> str:
        return "× (1 - p)" if self.form == "failure" else "× sqrt((1 - p)/p)"
