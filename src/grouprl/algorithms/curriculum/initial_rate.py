"""Prompts chosen by the share of correct completions before training."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from grouprl.algorithms.data_part import Curriculum, DataPart, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.pretrain.initial_completions import ENDLESS, InitialCompletions
from grouprl.core.errors import RunError
from grouprl.core.numbers import Share
from grouprl.records.requests import RolloutRequest


@part("curriculum")
class InitialRate(Curriculum):
    """Sample only prompts whose share of correct completions before training is above `above` and below `below`.

    Passes over them are shuffled anew. Needs `initial_completions` among the preludes.
    """

    above: Share | None = None
    below: Share | None = None

    def choose(self, count: int, context: RunContext) -> list[RolloutRequest]:
        """Take the next prompts of the shuffled set."""
        taken = next_of(len(among := self.among(context)), count, self, context)
        return [context.request(int(among[i])) for i in taken]

    def among(self, context: RunContext) -> np.ndarray:
        """Return the numbers of the prompts that may be sampled. Raises RunError if there are none."""
        rate_n = context.state_of(InitialCompletions())["rate"].numpy()
        fits_n = np.ones(len(rate_n), dtype=bool)
        if self.above is not None:
            fits_n &= rate_n > self.above
        if self.below is not None:
            fits_n &= rate_n < self.below
        if not fits_n.any():
            raise RunError(
                f"no prompt has an initial share of correct completions {self._range()}: no prompt is left to sample. "
                "Choose "
                "other bounds, more initial completions, or other prompts"
            )
        return np.flatnonzero(fits_n)

    def _range(self) -> str:
        bounds = (("above", self.above), ("below", self.below))
        return " and ".join(f"{name} {bound:g}" for name, bound in bounds if bound is not None)

    @override
    def words(self) -> str:
        return (
            f"sample only prompts whose share of correct completions before training is {self._range() or 'anything'}"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect without `above` and `below`."""
        return ["initial_rate has no effect without above or below"] if self.above is self.below is None else []

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task whose prompts never end."""
        return [f"{self.name} {ENDLESS}"] if run.examples is None else []


def next_of(size: int, count: int, part: DataPart, context: RunContext) -> list[int]:
    """Return the next `count` of `size` places, in passes that `part` shuffles anew; none if `size` is 0."""
    store = context.state_of(part)
    taken: list[int] = []
    while size and len(taken) < count:
        if not store.get("left"):
            store["left"] = context.rng(part).permutation(size).tolist()
        taken.append(store["left"].pop(0))
    return taken
