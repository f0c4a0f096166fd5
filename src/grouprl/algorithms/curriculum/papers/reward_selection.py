"""Training prompts chosen once, by what the policy earns on them, or how sure it is, as the run begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.curriculum.papers.curriculum import Chooser, pool_size
from grouprl.algorithms.curriculum.papers.probe import probe_prompts, rows_of
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import RunError
from grouprl.core.numbers import Count
from grouprl.records.samples import ScoredSamples

Which = Literal["hard", "medium", "easy"]
Kept = TypeVar("Kept")


class Selection(Chooser):
    """Base of curricula that measure every prompt once, before the first step, and deal out the kept ones in epochs."""

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Deal out the next prompts of the epoch."""
        store = context.state_of(self)
        if "kept" not in store:
            store["kept"] = self.selected(self._measured(context), context)
        picked: list[int] = []
        while len(picked) < count:
            if not store.get("left"):
                store["left"] = rng.permutation(store["kept"]).tolist()
            missing = count - len(picked)
            picked, store["left"] = picked + store["left"][:missing], store["left"][missing:]
        return picked

    def probed(self) -> int:
        """Return how many completions of each prompt are measured."""
        return 1

    def measure(self, rows: ScoredSamples) -> np.ndarray:
        """Return [B] what is measured of each completion; a prompt has the mean of its completions."""
        raise NotImplementedError

    def selected(self, mean: Mapping[int, float], context: RunContext) -> list[int]:
        """Return the numbers of the prompts to sample, of which `mean` holds the measure."""
        raise NotImplementedError

    def _measured(self, context: RunContext) -> dict[int, float]:
        """Return the measure of each prompt. Raises RunError if no completion could be scored."""
        rows = probe_prompts(context, range(pool_size(context)), self.probed())
        measure_b = self.measure(rows)
        mean = {index: float(measure_b[where].mean()) for index, where in rows_of(rows.index_b).items()}
        if not mean:
            raise RunError(
                f"{self.name} has nothing to choose from: not one completion to the {pool_size(context)} prompts "
                "could be "
                "scored before the first step. Fix the reward, or leave the part out"
            )
        return mean

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled before the first step."""
        return f"{self.probed()} to each of {run.examples} prompts before the first step, to choose among them"


@part("curriculum")
class RewardSelection(Selection):
    """Sample only the `keep` prompts whose completions earn least as the run begins (BLEUBERI, arXiv:2505.11080).

    Before the first step each prompt gets `completions` completions of the policy. `which` "hard" keeps the prompts
    with the lowest mean reward, "easy" those with the highest, "medium" those in the middle; of equal ones the first.
    They are dealt out in shuffled epochs. A prompt is left out if none of its completions could be scored.
    """

    keep: Count = 5000
    which: Which = "hard"
    completions: Count = 1

    @override
    def probed(self) -> int:
        return self.completions

    def measure(self, rows: ScoredSamples) -> np.ndarray:
        """Return [B] rewards."""
        return rows.scores.reward_b

    def selected(self, mean: Mapping[int, float], context: RunContext) -> list[int]:
        """Return the `keep` prompts at the chosen end of the order by rewards."""
        order = sorted(mean, key=lambda index: (mean[index], index))
        found = selected(order, self.keep, self.which)
        context.note("selected_reward", float(np.mean([mean[index] for index in found])))
        return found

    @override
    def words(self) -> str:
        end = {"hard": "least", "easy": "most", "medium": "middlingly"}[self.which]
        return f"only the {self.keep:,} prompts that earn {end} as the run begins, in epochs"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if it keeps all prompts."""
        if run.examples is not None and self.keep >= run.examples:
            return [f"{self.name} has no effect: it keeps {self.keep:,} of {run.examples:,} prompts"]
        return []


@part("curriculum")
class OpenPrompts(Selection):
    """Sample only the `share` of prompts about whose completion the policy is least sure as the run begins (FD-RL).

    The measure is the mean entropy of the tokens of one completion, sampled before the first step. Differs from
    the paper: its entropies are those of the formatted regions alone, and its threshold is not known to us.
    """

    share: Annotated[float, Field(gt=0, le=1)] = 0.5
    says = "only the share {share:g} of prompts that the policy is least sure of as the run begins, in epochs"
    idle_at = ("share", 1, "{name} has no effect: it keeps all prompts")

    def measure(self, rows: ScoredSamples) -> np.ndarray:
        """Return [B] mean entropies, in nats."""
        length_b = np.array([len(ids) for ids in rows.rollout.action_ids])
        return np.asarray(rows.rollout.entropy_bt.sum(1).numpy() / np.maximum(length_b, 1))

    def selected(self, mean: Mapping[int, float], context: RunContext) -> list[int]:
        """Return the prompts with the highest entropies, at least one."""
        order = sorted(mean, key=lambda index: (-mean[index], index))
        found = order[: max(1, round(self.share * len(order)))]
        context.note("selected_entropy", float(np.mean([mean[index] for index in found])))
        return found


def selected(order: Sequence[Kept], keep: int, which: Which) -> list[Kept]:
    """Return `keep` of prompts that are ordered by rising reward: the first, the last, or those in the middle."""
    left = max(0, len(order) - keep)
    start = {"hard": 0, "medium": left // 2, "easy": left}[which]
    return list(order[start : start + keep])
