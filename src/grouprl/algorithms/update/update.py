"""Turning a prepared rollout into optimiser steps: the arguments of such parts, and the update in two phases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import Part, part
from grouprl.core.batch import Batch

if TYPE_CHECKING:
    from grouprl.algorithms.data_part import RunContext

PHASE = "phase"
"""Mark of the tokens of the current phase."""


class JudgingMethod(Protocol):
    """The members of a method that an update reads; `grouprl.Method` has them."""

    @property
    def objective(self) -> Part:
        """The objective: (logp_bt, batch) -> token losses [B,T]."""

    @property
    def regularize(self) -> tuple[Part, ...]:
        """The further terms of the loss."""

    @property
    def critic(self) -> object | None:
        """Part that judges values; None without a critic."""

    @property
    def couples(self) -> str:
        """Rows that the loss must see together: 'sequence', 'group' or 'batch'."""

    def compute_loss_weights(self, batch: Batch, /) -> Batch:
        """Return the rows of one optimiser step with their weights in it."""

    def compute_advantages(self, batch: Batch, /) -> Batch:
        """Return rows that were sampled since with their advantages."""


class UpdateSteps(Protocol):
    """Argument of a `learn` part: the policy, its optimiser, and the steps between a rollout and an update."""

    @property
    def policy(self) -> Any:
        """The policy: `logp`, `backward`, `named_parameters` and whatever else the part documents."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of all trainable parameters."""

    @property
    def method(self) -> JudgingMethod:
        """The method that judged the rollout."""

    @property
    def context(self) -> RunContext:
        """The run's side of a data part (`grouprl.algorithms.data_part.RunContext`): for sampling between two steps,
        and for memory.
        """

    @property
    def epochs(self) -> int:
        """Number of passes over the rollout (`batch.epochs`)."""

    @property
    def seed(self) -> int:
        """A number of this step of the run, from which orders follow."""

    def steps(self, prepared: Batch) -> Iterator[Batch]:
        """Yield the weighted batch of each optimiser step, epoch by epoch."""

    def accumulate(self, step: Batch) -> dict[str, float]:
        """Add the gradient of one weighted step to the parameters' `.grad` and return metrics."""

    def apply(self) -> float:
        """Clip the gradient, take the optimiser's step and zero the gradient; return the norm before clipping."""

    def take(self, step: Batch) -> dict[str, float]:
        """Call `accumulate` and `apply`; return the step's metrics."""

    def evaluate(self, step: Batch) -> tuple[float, Tensor]:
        """Return the policy loss of a weighted step, regularisers included, and its log-probs [B,T],
        without a graph.
        """

    def accumulate_values(self, step: Batch) -> dict[str, float]:
        """Add the gradient of the critic's loss alone and return its metrics."""

    def without_critic(self) -> UpdateSteps:
        """Add the gradient of the policy's loss alone and return its metrics."""


class Update(Part):
    """Base: takes the optimiser steps of one prepared rollout."""

    phases: ClassVar[int] = 1
    """Number of passes over the steps of a rollout."""
    positions_alone: ClassVar[bool] = False
    """True if positions are scored apart from their rows, which a policy that remembers cannot do."""

    cuts_rows: ClassVar[bool] = False
    """True if optimiser steps take single actions, so that batch.minibatches does not say how many there are."""

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps; yield the metrics of each."""
        raise NotImplementedError

    def steps_of(self, epochs: int, minibatches: int, actions: int) -> int:
        """Return how many optimiser steps a rollout gets that has at most so many actions."""
        return epochs * minibatches * self.phases

    def first_step(self) -> int:
        """Return the step of the run, from 0, in which the policy takes its first optimiser step."""
        return 0


@part("update")
class TwoPhase(Update):
    """Lopti: all steps on the unlikely tokens alone, then all steps on the others (arXiv:2505.12929, section 4.2).

    A token is unlikely when its probability at the start of the update is below `eta`, or, by quantile, below the
    `eta`-quantile of the rollout's tokens. A token of the other phase has weight 0 in every term of the loss, and the
    denominators are those of all tokens: the two gradients add up to that of one update.
    """

    phases: ClassVar[int] = 2

    eta: Annotated[float, Field(ge=0, le=1)] = 0.5
    by: Literal["probability", "quantile"] = "probability"
    order: Literal["low_first", "high_first"] = "low_first"
    reads = ("old_bt",)
    idle_at = ("eta", 0, "two_phase has no effect: eta is 0, so that no token is unlikely")

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps of both phases; steps without tokens of their phase are left out."""
        low_bt = self.unlikely(prepared)
        for phase_bt in (low_bt, ~low_bt) if self.order == "low_first" else (~low_bt, low_bt):
            for step in learner.steps(prepared.replace(marks={**prepared.marks, PHASE: phase_bt})):
                active_bt, keep_bt = step.active_bt, step.marks[PHASE]
                count, total = int((active_bt & keep_bt).sum()), int(active_bt.sum())
                if count:
                    low = count if phase_bt is low_bt else total - count
                    yield {**learner.take(only(step, keep_bt)), "unlikely_fraction": low / total}

    def unlikely(self, prepared: Batch) -> Tensor:
        """Return [B,T] bool: tokens of the phase of low probability."""
        old_bt, limit = prepared.need("old_bt", self.name), self.eta
        if self.by == "quantile":
            limit = float(old_bt[prepared.active_bt].exp().quantile(self.eta)) if prepared.active_bt.any() else 0.0
        return old_bt.exp() < limit

    @override
    def words(self) -> str:
        limit = f"{self.eta:g}" if self.by == "probability" else f"the {self.eta:g}-quantile of the rollout"
        first, then = ("below", "from") if self.order == "low_first" else ("from", "below")
        return (
            f"update twice on the same rollout: first on the tokens of probability {first} {limit} alone, then on "
            f"those of probability {then} it"
        )


def only(step: Batch, keep_bt: Tensor) -> Batch:
    """Restrict every loss term of a weighted step to the tokens `keep_bt` ([B,T] bool); denominators stay the same."""
    masked = {name: torch.where(keep_bt, step.need(name, "only"), 0) for name in ("weight_bt", "share_bt")}
    return step.replace(**masked)
