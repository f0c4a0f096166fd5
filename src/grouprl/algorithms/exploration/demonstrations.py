"""Right answers of the task among, or instead of, those of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from grouprl.algorithms.data_part import Desk, Exploration, Replay
from grouprl.algorithms.exploration.guidance import needs_solutions
from grouprl.algorithms.exploration.resampling import again, drawn_rows, groups, splice
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.errors import RunError
from grouprl.rollout.requests import Ask
from grouprl.rollout.samples import Collected


def demonstrated(asks: Sequence[Ask], desk: Desk) -> Collected | None:
    """Return one row with the right solution per ask, None where the task knows no solution for any of them."""
    known = [(ask, desk.task.solution(ask.question)) for ask in asks]
    pairs = [(ask, text) for ask, text in known if text]
    if not pairs:
        return None
    return desk.written([ask for ask, _ in pairs], [text for _, text in pairs])


@part("explore")
class DemonstrationRow(Exploration):
    """The right solution is one row of each group (TempSamp-R1, arXiv:2509.18056: three answers and the solution).

    It takes the place of the group's last answer, so that the group keeps its size; `replace=False` adds it.
    Questions without a solution are left as they are.
    """

    replace: bool = True

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows with a demonstration in each group."""
        asked = list(groups(collected, drawn_rows(collected)))
        shown = demonstrated([again(collected, rows[0]) for rows in asked], desk)
        if shown is None:
            return collected
        gone_b = np.zeros(len(collected), dtype=bool)
        last = [rows[-1] for rows in asked if collected.group_b[rows[0]] in shown.group_b]
        gone_b[last] = self.replace
        return splice(collected, gone_b, [shown])

    def words(self) -> str:
        """Describe."""
        return f"the right solution {'takes the place of the last answer of' if self.replace else 'joins'} each group"

    def refuse(self, run: RunFacts) -> list[str]:
        """Demonstrations are the task's solutions."""
        if self.replace and run.group_size == 1:
            return ["demonstration_row replaces the only answer. Use batch.group of 2 or more, or replace: false"]
        return needs_solutions(self.name, run)


@part("explore")
class DemonstrationSwitch(Exploration):
    """HPT: where a group's share of right answers is at most `gamma`, the solution replaces it (arXiv:2509.04419).

    A `gamma` below 0 switches never, 1 always. Questions without a solution are left as they are.
    """

    gamma: Annotated[float, Field(ge=-1, le=1)] = 0.0

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows with weak groups demonstrated."""
        right_b = collected.scores.correct_b
        weak = [rows for rows in groups(collected, drawn_rows(collected)) if right_b[rows].mean() <= self.gamma + 1e-9]
        shown = demonstrated([again(collected, rows[0]) for rows in weak], desk)
        switched = [] if shown is None else [r for r in weak if collected.group_b[r[0]] in shown.group_b]
        desk.note("groups_demonstrated", len(switched))
        if shown is None:
            return collected
        gone_b = np.zeros(len(collected), dtype=bool)
        gone_b[np.concatenate(switched)] = True
        return splice(collected, gone_b, [shown])

    def words(self) -> str:
        """Describe."""
        return f"the right solution replaces a group of which at most {self.gamma:.0%} are right"

    def idle(self, run: RunFacts) -> list[str]:
        """No share is below zero."""
        return ["demonstration_switch has no effect: gamma is below 0"] if self.gamma < 0 else []

    def refuse(self, run: RunFacts) -> list[str]:
        """Demonstrations are the task's solutions."""
        return needs_solutions(self.name, run)


@part("replay")
class Demonstrations(Replay):
    """Train on the task's right solutions alone: nothing is drawn (supervised variants: SFT, OTR, arXiv:2509.26313)."""

    def fresh(self, desk: Desk) -> int:
        """No new questions are answered."""
        return 0

    def mix(self, collected: Collected | None, desk: Desk) -> Collected:
        """Return one demonstration per question. Raises RunError if none of the step's questions has one."""
        shown = demonstrated(desk.take(desk.prompts), desk)
        if shown is None:
            raise RunError("none of this step's questions has a right solution, and the method trains on nothing else")
        return shown

    def words(self) -> str:
        """Describe."""
        return "train on the right solution of each question; nothing is drawn"

    def refuse(self, run: RunFacts) -> list[str]:
        """Demonstrations are the task's solutions."""
        return needs_solutions(self.name, run)
