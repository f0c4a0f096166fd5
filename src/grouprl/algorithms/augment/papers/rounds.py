"""Completions handed out in rounds, to the prompts whose mean reward is least certain."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated

import numpy as np
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.augment.resampling import again, splice
from grouprl.algorithms.curriculum.papers.probe import rows_of
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.core.numbers import Positive
from grouprl.records.samples import ScoredSamples


@dataclass(frozen=True)
class PromptRewards:
    """Statistics of one prompt: `completions` rewards of standard deviation `std` (n - 1)."""

    completions: int
    std: float


@part("augment")
class UncertaintyRounds(Augmentation):
    """Hand out further completions in rounds to the prompts of highest priority (XRPO, arXiv:2510.06672).

    Every prompt has its `batch.group_size` completions; `extra` times as many again are split over `rounds` rounds. One
    more completion goes where Π = h(n) - h(n+1) + bonus·√(ln T/n) is largest: h(n) = t·s/√n is the half-width of the
    confidence interval of the mean reward at level 1 - `level`, T the number of all completions. s is measured after
    each round.
    """

    extra: Positive = 1.0
    rounds: Annotated[int, Field(ge=1)] = 4
    level: Annotated[float, Field(gt=0, lt=1)] = 0.05
    bonus: Annotated[float, Field(ge=0)] = 0.1

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows and the further completions."""
        total = round(self.extra * int((samples.source_b == SOURCES["sampled"]).sum()))
        for number in range(self.rounds):
            count = total * (number + 1) // self.rounds - total * number // self.rounds
            rows = rows_of(samples.group_b)
            standings = {group: standing(samples, of_group) for group, of_group in rows.items()}
            more = self.split({group: s for group, s in standings.items() if s.completions}, count)
            requests = [
                again(samples, int(rows[group][0]), completions=completions)
                for group, completions in more.items()
                if completions
            ]
            samples = (
                splice(samples, np.zeros(len(samples), dtype=bool), [context.sample(requests)]) if requests else samples
            )
        sizes = [len(of_group) for of_group in rows_of(samples.group_b).values()]
        context.note("completions_least", min(sizes), "least")
        context.note("completions_most", max(sizes), "most")
        return samples

    def split(self, standings: dict[int, PromptRewards], count: int) -> dict[int, int]:
        """Return how many of `count` further completions each prompt gets, each given to the prompt of highest Π."""
        total = sum(s.completions for s in standings.values())
        more = dict.fromkeys(standings, 0)
        heap = [(-self.priority(s, total), group) for group, s in standings.items()]
        heapq.heapify(heap)
        for _ in range(count if heap else 0):
            group = heapq.heappop(heap)[1]
            more[group] += 1
            grown = replace(standings[group], completions=standings[group].completions + more[group])
            heapq.heappush(heap, (-self.priority(grown, total), group))
        return more

    def priority(self, standing: PromptRewards, total: int) -> float:
        """Return Π of a prompt; a single completion has no spread and counts by the bonus alone."""
        n, s = standing.completions, standing.std
        narrower = half_width(n, s, self.level) - half_width(n + 1, s, self.level) if n > 1 else 0.0
        return narrower + self.bonus * math.sqrt(math.log(total) / n)

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        return f"about {round(self.extra * run.prompts * run.group_size)} completions per rollout, which are trained on"

    @override
    def words(self) -> str:
        more = "as many completions again" if self.extra == 1 else f"{self.extra:g} times as many completions again"
        return f"{more}, in {self.rounds} rounds, for the prompts whose mean reward is least certain"

    @override
    def formula(self) -> str:
        return f"Π = h(n) - h(n+1) + {self.bonus:g}·√(ln T/n),  h(n) = t_{{{1 - self.level / 2:g}, n-1}}·s/√n"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, whose reward has no standard deviation."""
        return (
            [
                "uncertainty_rounds needs at least two completions per prompt to measure their spread. Use "
                "batch.group_size of 2 or more"
            ]
            if run.group_size < 2
            else []
        )


def standing(samples: ScoredSamples, rows: np.ndarray) -> PromptRewards:
    """Return number and spread of the rewards of the policy's own completions of one prompt."""
    use = rows[samples.valid_b[rows] & (samples.source_b[rows] == SOURCES["sampled"])]
    reward = samples.scores.reward_b[use]
    return PromptRewards(len(use), float(reward.std(ddof=1)) if len(use) > 1 else 0.0)


def half_width(completions: int, std: float, level: float) -> float:
    """Return half the width of the confidence interval of a mean at confidence 1 - `level`."""
    return student(level, completions - 1) * std / math.sqrt(completions)


@lru_cache(maxsize=4096)
def student(level: float, freedom: int) -> float:
    """Return the quantile t with P(|T| > t) = `level` for Student's T of `freedom` degrees, by bisection of the exact
    P.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle, freedom) < 1 - level else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def inside(theta: float, freedom: int) -> float:
    """Return P(|T| ≤ √freedom·tan θ) for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    cos, sin = math.cos(theta), math.sin(theta)
    odd = freedom % 2
    if freedom == 1:
        return 2 * theta / math.pi
    term = cos if odd else 1.0
    total = term
    for k in range(3 if odd else 2, freedom, 2):
        term *= cos * cos * (k - 1) / k
        total += term
    return 2 / math.pi * (theta + sin * total) if odd else sin * total
