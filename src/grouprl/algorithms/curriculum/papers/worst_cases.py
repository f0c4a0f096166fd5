"""Training on the case in which the policy earns least, among the settings of an environment (IWOCS, DRPG)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from grouprl.algorithms.curriculum.papers.curriculum import Chooser, pool_size
from grouprl.algorithms.curriculum.papers.probe import probe_prompts, rows_of
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import RunError
from grouprl.core.metric import Metric
from grouprl.core.numbers import Count, NonNegative, Share


class Adversary(Chooser):
    """Base of curricula whose prompts are the settings of an environment, one of which is played in a step."""

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Return the case of this step, `count` times."""
        if not chosen:
            context.state_of(self)["case"] = self.case(context)
        return [int(context.state_of(self)["case"])] * count

    def case(self, context: RunContext) -> int:
        """Return the number of the prompt to play in this step."""
        raise NotImplementedError

    def measured(self, cases: Iterable[int], episodes: int, context: RunContext) -> dict[int, float]:
        """Return the mean return in each case over some episodes. Raises RunError if none could be measured."""
        rows = probe_prompts(context, list(cases), episodes)
        mean = {case: float(rows.scores.reward_b[where].mean()) for case, where in rows_of(rows.index_b).items()}
        if not mean:
            raise RunError(f"{self.name} measured no case: not one of its episodes could be scored. Fix the task")
        context.note("worst_return", min(mean.values()), "least")
        return mean

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if there is one case, or that prompts are not settings of an environment."""
        if run.examples == 1:
            return [f"{self.name} has no effect: there is one prompt"]
        alone = (
            f"{self.name} finds no worst setting of an environment: the task has one, so each of the {run.examples} "
            "prompts is a case, and a step plays one of them alone. Set task.grid (env:…), and data.prompts to the "
            "number of its combinations"
        )
        some = (
            f"{self.name} has {run.examples} cases, and task.grid has {run.cases} combinations: "
            f"{self._unequal(run)}. Set data.prompts to {run.cases}"
        )
        return [alone] * (run.cases == 1) + [some] * (run.cases not in (None, 1, run.examples))

    def _unequal(self, run: RunFacts) -> str:
        few = (run.examples or 0) < (run.cases or 0)
        return "the others are never played" if few else "several cases have the same setting, and differ by their seed"


@part("curriculum")
class WorstCases(Adversary):
    """IWOCS: play the worst of the known cases; every `every` steps measure all, and get to know the worst of them.

    At first the nominal case is known, prompt 0. A step plays the known case in which the policy earns least over
    `episodes` episodes, so that training maximises the least of the known cases; a search over all cases adds the
    worst, if it is new. Once the worst is always known, the set no longer grows. Source: Zouitine et al. 2024
    (arXiv:2410.06212). *Differs from the paper*: one policy is trained further, where the paper solves each case anew
    and acts by the least of their Q functions; all cases are measured in place of a black-box search.
    """

    metrics: ClassVar = {"cases_known": Metric(words="cases among which the worst is played", group="groups")}
    every: Count = 10
    episodes: Count = 16
    says = (
        "the worst of the known cases, measured by {episodes} episodes each; every {every} steps the worst of all "
        "is added"
    )
    equation = "ψ = argmin_T J(π; ψ),  every {every} steps T ← T ∪ {{argmin_ψ J(π; ψ)}},  T = {{ψ_0}} at first"

    @override
    def case(self, context: RunContext) -> int:
        known = context.state_of(self).setdefault("known", [0])
        searching = context.step > 0 and context.step % self.every == 0
        mean = {known[0]: 0.0}
        if searching or len(known) > 1:
            mean = self.measured(range(pool_size(context)) if searching else known, self.episodes, context)
        if searching and (worst := lowest(mean, mean)) not in known:
            known.append(worst)
        context.note("cases_known", len(known), "most")
        return lowest(mean, known)

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many episodes measure."""
        return f"{self.episodes} to each known case in every step, and to all {run.examples} every {self.every} steps"


@part("curriculum")
class WorstNow(Adversary):
    """DRPG: play the case that is the worst for the policy as it is, within a tolerance that shrinks.

    Every step measures all cases by `episodes` episodes each. The case of the step before is kept while it is at most
    `tolerance`·`shrink`^step above the least return. Source: Wang, Ho and Petrik 2023. *Differs from the paper*: the
    set of cases is finite and gone through, where the paper climbs on the transition kernel; the policy's step is
    the run's, where the paper projects tables of probabilities.
    """

    episodes: Count = 16
    tolerance: NonNegative = 1.0
    shrink: Share = 0.95
    says = (
        "the worst case for the policy as it is, to within {tolerance:g}·{shrink:g}^step, by {episodes} episodes each"
    )
    equation = "J(π; ψ_k) ≤ min_ψ J(π; ψ) + {tolerance:g}·{shrink:g}^k"

    @override
    def case(self, context: RunContext) -> int:
        mean = self.measured(range(pool_size(context)), self.episodes, context)
        held, worst = context.state_of(self).get("case", 0), lowest(mean, mean)
        near = mean.get(held, np.inf) <= mean[worst] + self.tolerance * self.shrink**context.step
        return held if near else worst

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many episodes measure."""
        return f"{self.episodes} to each of {run.examples} cases in every step"


def lowest(mean: Mapping[int, float], among: Iterable[int]) -> int:
    """Return the case with the lowest mean, the first of equal ones; one that was not measured comes last."""
    return min(among, key=lambda case: (mean.get(case, np.inf), case))
