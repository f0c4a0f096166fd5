"""Steps that failed, drawn again from where they began: groups of single turns (THOR)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from grouprl.algorithms.data_part import Desk, Exploration
from grouprl.algorithms.exploration.branching import between_turns
from grouprl.algorithms.exploration.prefix_turns import led
from grouprl.algorithms.exploration.resampling import drawn_rows, groups, splice
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.rollout.requests import Ask
from grouprl.rollout.samples import Collected

Count = Annotated[int, Field(ge=1)]


@part("explore")
class FailedSteps(Exploration):
    """THOR: a turn that failed is drawn again, as a group of its own; it earns 1 if it is valid (arXiv:2509.13761).

    Of each question up to `most` invalid turns are chosen at random. What came before is acted out again and not
    trained on; then the policy acts `answers` times (None: as often as the run answers questions), one turn each. The
    new rows are of source 'extra' and form groups apart from the episodes.
    """

    most: Count = 1
    answers: Annotated[int, Field(ge=2)] | None = None

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows with the groups of single turns."""
        asks, numbers = self._asks(collected, desk)
        if not asks:
            return collected
        drawn = desk.draw(asks)
        wanted = dict(zip(((ask.ordinal, ask.first) for ask in asks), numbers, strict=True))
        group_b = [self._group(wanted, *x) for x in zip(drawn.ordinal_b.tolist(), drawn.answer_b.tolist(), strict=True)]
        steps = replace(self._judged(drawn), group_b=np.array(group_b, dtype=np.int64))
        return splice(collected, np.zeros(len(collected), dtype=bool), [steps])

    def _asks(self, collected: Collected, desk: Desk) -> tuple[list[Ask], list[int]]:
        """Return an ask for each failed turn that is drawn again, and the number of its group."""
        rng, asks, numbers = desk.rng(self), [], []
        for rows in groups(collected, drawn_rows(collected)):
            failed, size = failures(collected, rows), self.answers or desk.answers
            chosen = rng.permutation(len(failed))[: self.most]
            for place, which in enumerate(chosen.tolist()):
                row, turn = failed[which]
                asked = {"answers": size, "max_turns": turn + 1, "source": SOURCES["extra"]}
                asks.append(led(collected, row, turn, skip=place * size, **asked))
                numbers.append(desk.ask(int(collected.index_b[row])).ordinal)
        return asks, numbers

    def _group(self, wanted: dict[tuple[int, int], int], ordinal: int, answer: int) -> int:
        """Return the group of an answer: that of the last ask of its question that begins at or before it."""
        first = max(first for (own, first) in wanted if own == ordinal and first <= answer)
        return wanted[ordinal, first]

    def _judged(self, steps: Collected) -> Collected:
        """Let each row earn whether its one turn was valid."""
        turn_bt = np.where(steps.acted_bt, steps.extras["turn_bt"][:, : steps.acted_bt.shape[1]], -1)
        last_b = turn_bt.max(1)
        valid_b = steps.extras["valid_bs"][np.arange(len(steps)), last_b.clip(min=0)] & (last_b >= 0)
        reward_bs = np.zeros_like(steps.extras["turn_reward_bs"])
        reward_bs[np.arange(len(steps)), last_b.clip(min=0)] = valid_b
        scores = replace(steps.scores, reward_b=valid_b.astype(steps.scores.reward_b.dtype), correct_b=valid_b)
        return replace(steps, scores=scores).with_extras(turn_reward_bs=reward_bs)

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        size = self.answers or run.group_size
        return f"up to {self.most * size} single turns for each question in which a turn failed; they are trained on"

    def words(self) -> str:
        """Describe."""
        return (
            f"of each question draw up to {self.most} failed turn{'s' if self.most > 1 else ''} again, as groups of "
            "single turns that earn 1 where they are valid"
        )

    def formula(self) -> str:
        """Formula."""
        return "step groups: R = [valid], from the turn that failed"

    def refuse(self, run: RunFacts) -> list[str]:
        """Turns are needed."""
        return between_turns(self.name, run)


def failures(collected: Collected, rows: Sequence[int] | np.ndarray) -> list[tuple[int, int]]:
    """Return (row, turn) of each invalid turn of `rows`."""
    turn_bt, valid_bs = collected.extras["turn_bt"], collected.extras["valid_bs"]
    return [
        (row, turn)
        for row in np.asarray(rows).tolist()
        for turn in range(int(turn_bt[row].max()) + 1)
        if not valid_bs[row, turn]
    ]
