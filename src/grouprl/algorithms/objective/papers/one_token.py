"""One token of policy gradient at every position of a demonstration, in closed form."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch


@part("objective")
class OneToken(Objective):
    """Expected policy gradient of sampling one token where a demonstration has x (OTR, arXiv:2509.26313).

    Reward 1 for x, `beta` for any other token, tokens sampled from p' = sg softmax(z/κ):
    loss_t = -A_t[p'(x) log π(x) + β Σ_{a≠x} p'(a) log π(a)], the limit of many samples. `cross@κ`, the
    cross-entropies Σ_a p'(a) log π(a), come with the loss; with κ other than 1 p'(x) is `stats.logp@κ`, taken at the
    start of the update.
    """

    beta: Annotated[float, Field(le=1)] = -0.1
    kappa: Annotated[float, Field(gt=0)] = 1.0

    @override
    def outputs(self) -> tuple[str, ...]:
        return (self._cross(),) if self.beta != 0 else ()

    def _cross(self) -> str:
        return f"cross@{self.kappa:g}"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -A[p'(x) log π(x) + β(cross - p'(x) log π(x))]."""
        sampled_bt = (logp_bt.detach() if self.kappa == 1 else batch.need(self._reading(), self.name)).exp()
        right_bt = sampled_bt * logp_bt
        value_bt = right_bt
        if self.beta != 0:
            value_bt = right_bt + self.beta * (batch.need(f"stats.{self._cross()}", self.name) - right_bt)
        return TokenLoss(-batch.need("advantage_bt", self.name) * value_bt, {})

    @override
    def code(self) -> str:
        sampled = "logp_bt.detach()" if self.kappa == 1 else f'stats["logp@{self.kappa:g}"]'
        lines = [f"value_bt = torch.where(active_bt, {sampled}, 0).exp() * logp_bt"]
        if self.beta != 0:
            lines.append(f'value_bt = value_bt + {self.beta!r} * (stats["{self._cross()}"] - value_bt)')
        return "\n".join([*lines, "loss_bt = -adv_bt * torch.where(active_bt, value_bt, 0)"])

    def _reading(self) -> str:
        return f"stats.logp@{self.kappa:g}"

    @override
    def needs(self) -> tuple[str, ...]:
        return () if self.kappa == 1 else (self._reading(),)

    @override
    def words(self) -> str:
        return (
            "at every position, as if many tokens were sampled"
            f"{'' if self.kappa == 1 else f' at temperature {self.kappa:g}'}: reward 1 for the demonstration's, "
            f"{self.beta:g} for any other"
        )

    @override
    def formula(self) -> str:
        p = "π" if self.kappa == 1 else f"softmax(z/{self.kappa:g})"
        return f"-[p'(x)·log π(x) + {self.beta:g}·Σ_{{a≠x}} p'(a)·log π(a)],  p' = sg {p}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no gradient if all tokens have the same reward and `kappa` is 1."""
        if self.beta == 1:
            return ["one_token has no gradient at kappa 1: every token has the same reward"] if self.kappa == 1 else []
        return []
