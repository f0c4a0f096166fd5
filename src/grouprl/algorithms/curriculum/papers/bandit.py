"""Bandits: curricula that learn which prompts to sample from the results of earlier completions,
without extra samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.curriculum.papers.curriculum import (
    Chooser,
    all_alike,
    at_random,
    best,
    labels,
    pool_size,
    unknown_column,
)
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.json_types import State
from grouprl.core.numbers import Share

if TYPE_CHECKING:
    from grouprl.core.batch import Batch
    from grouprl.records.samples import ScoredSamples


@part("curriculum")
class ThompsonSampling(Chooser):
    """Choose the prompts whose sampled pass rate promises the most information (VADE, arXiv:2511.18902).

    Each prompt has a posterior Beta(prior + right, prior + wrong). Every step samples p~ from all of them and takes the
    largest p~(1-p~) (`gain` "variance") or p~(1-p~)² ("information", as in Knapsack RL). Because the policy moves, the
    counts shrink each step: by `sampled_decay` where the prompt was sampled, by `decay` elsewhere.
    """

    async_safe: ClassVar[bool] = True

    prior: Annotated[float, Field(gt=0)] = 1.0
    decay: Share = 0.999
    sampled_decay: Share = 0.9
    gain: Literal["variance", "information"] = "variance"
    says = (
        "prompts by Thompson sampling of their pass rates; counts shrink by {sampled_decay:g} when sampled, "
        "else by {decay:g}"
    )

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Sample a pass rate for every prompt and take the most informative."""
        right_n, wrong_n = self.counts(context)
        rate_n = rng.beta(self.prior + right_n, self.prior + wrong_n)
        return best(rate_n * (1 - rate_n) ** (1 if self.gain == "variance" else 2), count, chosen)

    def counts(self, context: RunContext) -> tuple[np.ndarray, np.ndarray]:
        """Return the right and wrong completions of each prompt so far, [N] each, shrunk."""
        counts = context.state_of(self).get("counts")
        return (np.zeros((2, pool_size(context))) if counts is None else counts.numpy())[:2]  # type: ignore[return-value]

    def observe(self, samples: ScoredSamples, prepared: Batch | None, context: RunContext) -> None:
        """Shrink all counts, then add those of this step."""
        count_2n = np.stack(self.counts(context))
        visits = context.prompt_history.at(context.step)
        factor_n = np.full(count_2n.shape[1], self.decay)
        factor_n[list(visits)] = self.sampled_decay
        count_2n = count_2n * factor_n
        for index, of_step in visits.items():
            count_2n[:, index] += (sum(v.right for v in of_step), sum(v.completions - v.right for v in of_step))
        context.state_of(self)["counts"] = torch.from_numpy(count_2n)

    @override
    def formula(self) -> str:
        power = "" if self.gain == "variance" else "²"
        return f"top by p~(1-p~){power},  p~ ~ Beta({self.prior:g} + right, {self.prior:g} + wrong)"


@part("curriculum")
class BanditOverSources(Chooser):
    """Sample the sources of prompts by how much they still teach (DUMP, arXiv:2504.09710).

    A source's score is the mean |advantage| over its last `window` completions plus √(2 ln(n + 1)/(n_d + 1)), with n
    completions in all and n_d to that source; sources are sampled with softmax(score / `temperature`), prompts inside a
    source uniformly. `by` is a column of the prompts, or "level".
    """

    by: str = "level"
    window: Annotated[int, Field(ge=1)] = 300
    temperature: Annotated[float, Field(gt=0)] = 0.1
    says = "sources ('{by}') by their mean |advantage| and how seldom they were sampled, prompts uniformly"
    equation = "P(d) ∝ exp((mean|A|_d + √(2 ln(n + 1)/(n_d + 1))) / {temperature:g})"

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Sample the number of prompts of each source, then the prompts."""
        names, source_n = self._sources(context)
        counts = rng.multinomial(count, self.probabilities(context.state_of(self), names))
        members = [np.flatnonzero(source_n == number) for number in range(len(names))]
        return [i for m, k in zip(members, counts.tolist(), strict=True) for i in at_random(m, k, rng, chosen)]

    def probabilities(self, store: State, names: Sequence[str]) -> np.ndarray:
        """Return the chance of each source, [len(names)]."""
        windows, requested = store.get("windows", {}), store.get("asked", {})
        total = sum(requested.values())
        score = [ucb(windows.get(name, []), requested.get(name, 0), total) for name in names]
        return torch.softmax(torch.tensor(score, dtype=torch.float64) / self.temperature, 0).numpy()

    def observe(self, samples: object, prepared: object, context: RunContext) -> None:
        """Add the |advantage| of this step's completions to the windows of their sources."""
        names, source_n = self._sources(context)
        store = context.state_of(self)
        windows, requested = store.setdefault("windows", {}), store.setdefault("asked", {})
        for index, of_step in context.prompt_history.at(context.step).items():
            name = names[source_n[index]]
            for visit in of_step:
                new = [visit.advantage] * visit.completions
                windows[name] = [*windows.get(name, []), *new][-self.window :]
                requested[name] = requested.get(name, 0) + visit.completions

    def _sources(self, context: RunContext) -> tuple[list[str], np.ndarray]:
        """Return the names of the sources, and [N] the number of each prompt's source."""
        store = context.state_of(self)
        if "source" not in store:
            found = [str(value) for value in labels(self.by, self.name, context)]
            store["names"] = sorted(set(found))
            store["source"] = [store["names"].index(name) for name in found]
        return store["names"], np.array(store["source"])

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse prompts without the column that names their sources."""
        return [*super().refuse(run), *unknown_column(self.name, self.by, run)]

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if there is one source."""
        return all_alike(self.name, self.by, run)


def ucb(window: Sequence[float], requested: int, total: int) -> float:
    """Return the mean of `window` (0 if empty) plus the bonus √(2 ln(total + 1)/(sampled + 1))."""
    mean = math.fsum(window) / len(window) if window else 0.0
    return mean + math.sqrt(2 * math.log(total + 1) / (requested + 1))
