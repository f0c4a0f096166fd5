"""A process reward that counts only together with the outcome (Search-R2)."""

from __future__ import annotations

from typing_extensions import override

from grouprl.algorithms.part import part
from grouprl.algorithms.reward_transform.reward_transform import RewardTransform
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative


@part("reward_transform")
class OutcomeGatedProcess(RewardTransform):
    """R = r_o·(1 + c·r_p): a process reward that counts only together with the outcome (Search-R2, arXiv:2602.03647).

    r_p is the reward component `component`, 0 for rows that have none.
    """

    coef: NonNegative = 1.0
    component: str = "#density"
    says = "the reward grows by {coef:g} times its share of '{component}'"
    equation = "R ← R·(1 + {coef:g}·r_p),  r_p = {component}"
    plain = 'reward_b = reward_b * (1 + {coef!r} * rewards["{component}"].nan_to_num(0.0))'
    idle_at = ("coef", 0, "outcome_gated_process has no effect: its coefficient is 0")

    def __call__(self, batch: Batch) -> Batch:
        """Return R·(1 + c·r_p)."""
        if self.coef == 0:
            return batch
        if self.component not in batch.rewards:
            raise InputError(
                f"{self.name} needs batch.rewards.{self.component}, which this environment does not give",
                f"its components are {', '.join(batch.rewards) or 'none'}",
                "Let its score() return it, or set the coefficient (process) to 0",
            )
        process_b = batch.rewards[self.component].to(batch.dtype).nan_to_num(0.0)
        return batch.replace(reward_b=batch.reward_b * (1 + self.coef * process_b))

    @override
    def needs(self) -> tuple[str, ...]:
        return (f"rewards.{self.component}",) if self.coef else ()
