"""Stored trajectories sampled by their returns (trajectory weighting)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from typing_extensions import override

from grouprl.algorithms.curriculum.papers.curriculum import Chooser, pool_size
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.numbers import Positive
from grouprl.records.offline import stored_of

Against = Literal["nothing", "beginning"]


@part("curriculum")
class StoredReturns(Chooser):
    """Sample stored trajectories with p_i ∝ exp(x_i/α), x_i the return between 0 and 1 (Hong et al., ICLR 2023).

    `against` 'nothing' (RW): x is the return, scaled from the smallest to the largest; 'beginning' (AW): the same of
    the return less what a linear regression on the first observation expects. A trajectory has all its actions in the
    loss, so that with a mean over tokens an action weighs as in the paper, where transitions are drawn with exp(x_i/α).
    Trajectories are drawn with replacement; if all x are the same, uniformly.
    """

    async_safe: ClassVar[bool] = True

    temperature: Positive = 0.1
    against: Against = "beginning"
    equation = "p_i ∝ exp(x_i/{temperature:g})"

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Draw trajectories, also those drawn before."""
        p_n = self._chances(context)
        context.note("effective_trajectories", float(1 / (p_n**2).sum()), "most")
        return [int(i) for i in rng.choice(len(p_n), size=count, p=p_n)]

    def _chances(self, context: RunContext) -> np.ndarray:
        kept = context.cache_of(self)
        if "p" not in kept:
            examples = [context.task.example("train", index) for index in range(pool_size(context))]
            rows = [row for example in examples for row in stored_of(context.task, example)]
            return_n = np.array([row.total for row in rows])
            start_nd = np.array([row.beginning for row in rows]) if self.against == "beginning" else None
            kept["p"] = chances(return_n, start_nd, self.temperature)
        found: np.ndarray = kept["p"]
        return found

    @override
    def words(self) -> str:
        less = "" if self.against == "nothing" else ", less what is expected from its first observation,"
        return (
            f"stored trajectories drawn with exp(x/{self.temperature:g}), x the return{less} scaled to between 0 and 1"
        )

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse rows that are sampled, and groups of several rows."""
        if not run.stored:
            return [
                f"{self.name} draws stored rows by their rewards, but this task's are sampled. Set task: trajectories:…"
            ]
        if run.group_size > 1:
            return [
                f"{self.name} draws trajectories one by one, but batch.group_size is {run.group_size}. Leave the "
                "column 'group' out, and set it to 1"
            ]
        return []


def chances(return_n: np.ndarray, start_nd: np.ndarray | None, temperature: float) -> np.ndarray:
    """Return p [N] ∝ exp(x/temperature), x the returns scaled to [0,1]; `start_nd` [N,D]: less their regression on it.

    All ones over N where the returns do not differ.
    """
    x_n = return_n.astype(np.float64)
    if start_nd is not None:
        design_nd = np.concatenate([np.ones((len(x_n), 1)), start_nd], axis=1)
        x_n = x_n - design_nd @ np.linalg.lstsq(design_nd, x_n, rcond=None)[0]
    span = x_n.max() - x_n.min()
    if span <= 1e-9 * max(1.0, float(np.abs(return_n).max())):
        return np.full(len(x_n), 1 / len(x_n))
    weight_n = np.exp((x_n - x_n.max()) / span / temperature)
    found: np.ndarray = weight_n / weight_n.sum()
    return found
