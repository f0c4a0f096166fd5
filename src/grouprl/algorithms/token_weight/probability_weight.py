"""Token weights from probabilities at the start of the update: detached factors of the policy loss."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.core.batch import Batch


@part("token_weight")
class ProbabilityWeight(TokenWeight):
    """Give unlikely tokens less weight: α·π_old(y_t) + 1 - α, in [1-α, 1] (AR, arXiv:2505.12929).

    Unlikely tokens have the largest gradients; the weight keeps them from dominating the others.
    """

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.2
    reads = ("old_bt",)
    idle_at = ("alpha", 0, "probability_weight has no effect: alpha is 0")

    def __call__(self, batch: Batch) -> Tensor:
        """Return α·π_old(y_t) + 1 - α."""
        return self.alpha * batch.need("old_bt", self.name).exp() + (1 - self.alpha)

    @override
    def code(self) -> str:
        return f"factor_bt = factor_bt * ({self.alpha!r} * old_bt.exp() + {1 - self.alpha!r})"

    @override
    def words(self) -> str:
        return f"weigh each token by its probability: from {1 - self.alpha:g} for a hopeless one to 1 for a sure one"

    @override
    def formula(self) -> str:
        return f"× ({self.alpha:g}·π_old(y_t) + {1 - self.alpha:g})"
