"""Sampling parts that limit the length of completions, or set the temperature of their tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.data_part import RunContext, SamplingRule
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.sampling.papers.entropy_score import ScoredTemperature, extent
from grouprl.core.batch import SOURCES
from grouprl.core.numbers import Share
from grouprl.protocols import EntropyScaling
from grouprl.records.prompt_history import Visit
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples

if TYPE_CHECKING:
    from grouprl.core.batch import Batch


@part("sampling")
class LengthBudget(SamplingRule):
    """A token budget for each prompt that shrinks while the prompt is solved (PALU, arXiv:2510.10168).

    After a visit with a share of correct completions ≥ `target` the budget falls by Q_1 - Q_{1-shrink} of the lengths
    of the correct completions (their longest less a quantile), never below `floor` times the run's budget; else it is
    the run's budget again. A completion that runs out of its budget is cut off and does not count as right here.
    """

    needs_text = True

    target: Share = 0.8
    shrink: Share = 0.5
    floor: Annotated[float, Field(gt=0, le=1)] = 0.1
    says = (
        "a token budget per prompt that shrinks while at least {target:.0%} of its completions are right, down "
        "to {floor:.0%} of the run's"
    )

    def adjust(self, requests: Sequence[RolloutRequest], context: RunContext) -> list[RolloutRequest]:
        """Return the requests with their budgets."""
        budgets = context.state_of(self).get("budget", {})
        found = [
            min(budgets.get(request.index, context.max_new_tokens), request.max_new_tokens or context.max_new_tokens)
            for request in requests
        ]
        if found:
            context.note("length_budget", sum(found) / len(found), "mean")
        return [replace(request, max_new_tokens=budget) for request, budget in zip(requests, found, strict=True)]

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Move the budgets of the prompts of this step."""
        budgets = context.state_of(self).setdefault("budget", {})
        cut_b = samples.rollout.truncated_b.numpy() & samples.scores.correct_b
        cut = Counter(samples.index_b[cut_b].tolist())
        for index, visits in context.prompt_history.at(context.step).items():
            before = budgets.get(index, context.max_new_tokens)
            budgets[index] = self.after(before, visits[-1], context.max_new_tokens, cut[index])

    def after(self, budget: int, visit: Visit, most: int, cut: int = 0) -> int:
        """Return the budget after a visit, from the one before and the run's (`most`).

        `cut` is how many of the completions with the reward of a right one were cut off; they are the longest.
        Completions longer than the budget, which other parts may have sampled, do not count as right.
        """
        within = [length for length in visit.lengths if length <= budget]
        shortest = within[: max(0, len(within) - cut)]
        if not shortest or len(shortest) / visit.completions < self.target:
            return most
        longest, usual = np.quantile(shortest, [1.0, 1 - self.shrink])
        least = max(1, round(self.floor * most))
        return max(least, round(budget - float(longest - usual)))

    @override
    def formula(self) -> str:
        return f"L_q <- L_q - (Q_1 - Q_{1 - self.shrink:g})(right lengths) if p_q ≥ {self.target:g}, else L_max"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task whose prompts never end: the budget applies at a prompt's next visit."""
        endless = (
            "length_budget samples prompts more than once, but this task's prompts never end. "
            "Set data.prompts, e.g. 512"
        )
        return [endless] if run.examples is None else []

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if budgets cannot fall."""
        off = self.shrink == 0 or self.floor == 1
        return ["length_budget has no effect: shrink is 0 or floor is 1"] if off else []


@part("sampling")
class EntropyTemperature(SamplingRule):
    """Sample uncertain tokens hotter and certain ones colder: T·(1 + tau·ĥ) (HAPO, arXiv:2509.16591).

    ĥ in [-1, 1] is log H around its `pivot`-quantile, each side scaled to its extreme; pivot and extremes are those of
    the completions of the previous step, so the first step is sampled at the run's temperature; a side without tokens
    changes nothing. `released`: the authors' code divides the negative side by its signed minimum, so that ĥ is never
    negative.
    """

    needs_text = True

    tau: Annotated[float, Field(gt=0, lt=1)] = 0.05
    pivot: Share = 0.8
    released: bool = False
    says = "a temperature that follows each token's entropy by up to ±{tau:.0%}"
    equation = "T_t = T·(1 + {tau:g}·ĥ_t)"

    def scaling(self, context: RunContext) -> EntropyScaling | None:
        """Return the scale of the step before; None before the first step."""
        scale = context.state_of(self).get("scale")
        if scale is None:
            return None
        pivot, above, below = scale
        return ScoredTemperature(self.tau, (pivot, above, below), self.released)

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Keep pivot and extremes of log H of the completions sampled in this step."""
        sampled = torch.from_numpy(samples.source_b == SOURCES["sampled"])
        present_bt = samples.inputs.present_bt() & sampled[:, None]
        entropy_n = samples.rollout.entropy_bt[:, : present_bt.shape[1]][present_bt].double()
        if not len(entropy_n):
            return
        context.state_of(self)["scale"] = list(extent(entropy_n, self.pivot))
