"""Training prompts chosen once, by what the policy earns on them as the run begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
from typing_extensions import override

from grouprl.algorithms.curriculum.papers.curriculum import Chooser, pool_size
from grouprl.algorithms.curriculum.papers.probe import probe_prompts, rows_of
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import RunError
from grouprl.core.numbers import Count

Which = Literal["hard", "medium", "easy"]
Kept = TypeVar("Kept")


@part("curriculum")
class RewardSelection(Chooser):
    """Sample only the `keep` prompts whose completions earn least as the run begins (BLEUBERI, arXiv:2505.11080).

    Before the first step each prompt gets `completions` completions of the policy. `which` "hard" keeps the prompts
    with the lowest mean reward, "easy" those with the highest, "medium" those in the middle; of equal ones the first.
    They are dealt out in shuffled epochs. A prompt is left out if none of its completions could be scored.
    """

    keep: Count = 5000
    which: Which = "hard"
    completions: Count = 1

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Deal out the next prompts of the epoch."""
        store = context.state_of(self)
        if "kept" not in store:
            store["kept"] = self._selected(context)
        picked: list[int] = []
        while len(picked) < count:
            if not store.get("left"):
                store["left"] = rng.permutation(store["kept"]).tolist()
            missing = count - len(picked)
            picked, store["left"] = picked + store["left"][:missing], store["left"][missing:]
        return picked

    def _selected(self, context: RunContext) -> list[int]:
        """Return the numbers of the prompts to sample, by rising reward. Raises RunError if none could be scored."""
        rows = probe_prompts(context, range(pool_size(context)), self.completions)
        mean = {index: float(rows.scores.reward_b[where].mean()) for index, where in rows_of(rows.index_b).items()}
        if not mean:
            raise RunError(
                f"{self.name} has nothing to choose from: not one completion to the {pool_size(context)} prompts "
                "could be "
                "scored before the first step. Fix the reward, or leave the part out"
            )
        order = sorted(mean, key=lambda index: (mean[index], index))
        found = selected(order, self.keep, self.which)
        context.note("selected_reward", float(np.mean([mean[index] for index in found])))
        return found

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled before the first step."""
        return f"{self.completions} to each of {run.examples} prompts before the first step, to choose among them"

    @override
    def words(self) -> str:
        end = {"hard": "least", "easy": "most", "medium": "middlingly"}[self.which]
        return f"only the {self.keep:,} prompts that earn {end} as the run begins, in epochs"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if it keeps all prompts."""
        if run.examples is not None and self.keep >= run.examples:
            return [f"{self.name} has no effect: it keeps {self.keep:,} of {run.examples:,} prompts"]
        return []


def selected(order: Sequence[Kept], keep: int, which: Which) -> list[Kept]:
    """Return `keep` of prompts that are ordered by rising reward: the first, the last, or those in the middle."""
    left = max(0, len(order) - keep)
    start = {"hard": 0, "medium": left // 2, "easy": left}[which]
    return list(order[start : start + keep])
