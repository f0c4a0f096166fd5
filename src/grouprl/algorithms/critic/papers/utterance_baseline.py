"""A value head as the baseline of single tokens under a critic of whole utterances (ArCHer)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from grouprl.algorithms.advantage.papers.utterance_advantage import utterance_advantage
from grouprl.algorithms.critic.critic import Critic
from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("critic", "token_baseline")
class TokenBaselineCritic(Critic):
    """ArCHer's baseline of tokens: coef·(A - b(o, a_<t))², A the advantage of the whole utterance."""

    coef: Annotated[float, Field(ge=0)] = 1.0
    says = "a value head fitted to the advantage of the whole utterance at each token, weight {coef:g}"
    equation = "{coef:g} · (A - b(o, a_<t))²"
    reads = ("past.q", "past.v", "value_bt")

    def targets(self, batch: Batch) -> Tensor:
        """Return [B,T] the advantage of the whole utterance."""
        return batch.broadcast(utterance_advantage(batch, self.name))

    def __call__(self, value_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return value losses [B,T], differentiable in `value_bt`."""
        return_bt = batch.need("return_bt", self.name)
        error_bt = (return_bt - value_bt).square()
        return TokenLoss(
            self.coef * error_bt, {"value_error": error_bt, "value_mean": value_bt, "return_mean": return_bt}
        )
