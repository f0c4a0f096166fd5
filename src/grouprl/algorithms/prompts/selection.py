"""Training questions chosen once, by what the policy earns on them as the run begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from grouprl.algorithms.data_part import Desk
from grouprl.algorithms.exploration.probe import probe_questions, rows_of
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.prompts.curriculum import Chooser, pool_size
from grouprl.core.errors import RunError

Count = Annotated[int, Field(ge=1)]
Which = Literal["hard", "medium", "easy"]


@part("curriculum")
class RewardSelection(Chooser):
    """Ask only the `keep` questions whose answers earn least as the run begins (BLEUBERI, arXiv:2505.11080).

    Before the first step each question gets `answers` answers of the policy. `which` "hard" keeps the questions with
    the lowest mean reward, "easy" those with the highest, "medium" those in the middle; of equal ones the first. They
    are dealt out in shuffled epochs. A question none of whose answers could be scored is left out.
    """

    keep: Count = 5000
    which: Which = "hard"
    answers: Count = 1

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], desk: Desk) -> list[int]:
        """Deal out the next questions of the epoch."""
        store = desk.store(self)
        if "kept" not in store:
            store["kept"] = self._selected(desk)
        picked: list[int] = []
        while len(picked) < count:
            if not store.get("left"):
                store["left"] = rng.permutation(store["kept"]).tolist()
            missing = count - len(picked)
            picked, store["left"] = picked + store["left"][:missing], store["left"][missing:]
        return picked

    def _selected(self, desk: Desk) -> list[int]:
        """Numbers of the questions that are asked, by rising reward. Raises RunError where none could be scored."""
        rows = probe_questions(desk, range(pool_size(desk)), self.answers)
        mean = {index: float(rows.scores.reward_b[where].mean()) for index, where in rows_of(rows.index_b).items()}
        if not mean:
            raise RunError(
                f"{self.name} has nothing to choose from: not one answer to the {pool_size(desk)} questions could be "
                "scored before the first step. Mend the reward, or leave the part out"
            )
        order = sorted(mean, key=lambda index: (mean[index], index))
        found = selected(order, self.keep, self.which)
        desk.note("selected_reward", float(np.mean([mean[index] for index in found])))
        return found

    def further(self, run: RunFacts) -> str:
        """Answers before the first step."""
        return f"{self.answers} to each of {run.questions} questions before the first step, to choose among them"

    def words(self) -> str:
        """Describe."""
        end = {"hard": "least", "easy": "most", "medium": "middlingly"}[self.which]
        return f"only the {self.keep:,} questions that earn {end} as the run begins, in epochs"

    def idle(self, run: RunFacts) -> list[str]:
        """All questions are kept."""
        if run.questions is not None and self.keep >= run.questions:
            return [f"{self.name} has no effect: it keeps {self.keep:,} of {run.questions:,} questions"]
        return []


def selected(order: Sequence[Any], keep: int, which: Which) -> list[Any]:
    """Return `keep` of questions that are ordered by rising reward: the first, the last, or those in the middle."""
    left = max(0, len(order) - keep)
    start = {"hard": 0, "medium": left // 2, "easy": left}[which]
    return list(order[start : start + keep])
