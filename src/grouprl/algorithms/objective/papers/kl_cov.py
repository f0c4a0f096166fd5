"""A penalty of the tokens of largest covariance (KL-Cov)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from grouprl.algorithms.losses import TokenLoss
from grouprl.algorithms.objective.covariance import COVARIANCE, covariance, first, tokens_in
from grouprl.algorithms.objective.objective import Surrogate
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code
from grouprl.algorithms.objective.regression import log_distance
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weight.token_selection import hashed
from grouprl.core.batch import Batch
from grouprl.core.edges import beyond_rounding, beyond_rounding_code
from grouprl.core.numbers import PositiveShare


@part("objective", name="kl_cov")
class KLCov(Surrogate):
    """Importance-weighted policy gradient without clip; the tokens of largest covariance pay |log ρ| (KL-Cov).

    max(1, int(share · tokens)) tokens pay coef·|log π - log π_old|, whose slope is zero at the first update.
    """

    share: PositiveShare = 2e-3
    coef: Annotated[float, Field(ge=0)] = 1.0
    couples: ClassVar[str] = "batch"
    says = (
        "importance-weighted policy gradient without clip; the {share:g} of the tokens whose log-prob and "
        "advantage vary together most pay {coef:g} times their distance from the old policy"
    )
    equation = "-ρ_t·A_t + {coef:g}·[t among the top {share:g} of (A - mean A)(log π - mean log π)]·|log ρ_t|"
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -ρ_t·A_t, plus coef·|log ρ_t| for the chosen tokens."""
        adv_bt = batch.need("advantage_bt", self.name)
        log_bt = log_ratio(logp_bt, batch)
        tie_bt = 1e-12 * hashed(logp_bt, batch.mask_bt)  # among equals chance decides, not place
        score_bt = tie_bt - covariance(logp_bt, batch).to(torch.float64)
        chosen_bt = first(score_bt, batch.active_bt, tokens_in(self.share, batch))
        moved_bt = beyond_rounding(log_distance(logp_bt, batch, "old"))  # not held within ±20: the way back stays open
        loss_bt = -adv_bt * log_bt.exp() + torch.where(chosen_bt, self.coef * moved_bt.abs(), 0)
        return TokenLoss(loss_bt, {"covariance_fraction": chosen_bt.to(adv_bt.dtype)})

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        return "\n".join(
            [
                *ratio_code("token", "old"),
                *COVARIANCE,
                f"count = max(1, int({self.share!r} * int(active_bt.sum())))",
                "score_bt = 1e-12 * hashed(logp_bt, mask_bt) - cov_bt.double()  # ties by chance",
                "chosen_bt = first(score_bt, active_bt, count)",
                "drift_bt = torch.where(active_bt, logp_bt - old_bt, 0)",
                f"drift_bt = ({beyond_rounding_code('drift_bt')}).abs()  # flat at the first update",
                f"loss_bt = -adv_bt * ratio_bt + torch.where(chosen_bt, {self.coef!r} * drift_bt, 0)",
            ]
        )

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: no row, because a token without advantage may be chosen to pay."""
        return torch.zeros_like(batch.group_b, dtype=torch.bool) if self.coef else super().zero_rows(batch)

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the penalty has no effect with one update per rollout: its slope is zero there."""
        if run.updates_per_rollout == 1 or self.coef == 0:
            return ["the penalty of kl_cov has no effect: at the first update of a rollout the distance is 0 and flat"]
        return []
