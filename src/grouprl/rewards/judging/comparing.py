"""Rewards that compare completions two at a time: a row's reward is how often it is preferred in its group."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from grouprl.rewards.contract import Columns
from grouprl.rewards.judging.judge import PLACE, TrajectoryJudge
from grouprl.rewards.judging.measured import paid_reward
from grouprl.rewards.validation import TERMS, Terms, Verdict, VerdictReward

if TYPE_CHECKING:
    from grouprl.records.examples import Prompt

ALONE = 0.5
"""Reward of a completion that stands alone in its group."""


@dataclass(frozen=True)
class ComparedPair:
    """Two completions of a prompt, to be compared."""

    prompt: Prompt
    first: str
    second: str
    columns: Columns


@dataclass(frozen=True)
class FailedComparison:
    """A comparison that could not be made, unlike one about which the judge is unsure."""

    what: str
    late: bool = False
    """Whether it took too long."""


Judgement: TypeAlias = float | FailedComparison | None
"""The chance, 0 to 1, that the first completion is preferred, why there is none, or None: the judge abstains."""
Match: TypeAlias = tuple[int, int]
"""Two rows that are compared."""
Ask: TypeAlias = Callable[[Sequence[Match]], Sequence[Judgement]]
"""Says of each match the chance that its first row is preferred, or that there is no verdict."""


class ComparingReward(VerdictReward):
    """Base: a judge of pairs. Equal texts are never asked about: each is preferred half of the time."""

    sees_groups: ClassVar[bool] = True
    tells_right: ClassVar[bool] = False
    """Whether the verdict on a row says that its completion is right by itself, besides the comparisons."""

    @abstractmethod
    def judged(self, questions: Sequence[ComparedPair]) -> Sequence[Judgement]:
        """Return what is said of each question."""

    def compare(self, questions: Sequence[ComparedPair]) -> list[float | None]:
        """Return the chance that the first completion of each question is preferred; None: there is no verdict."""
        return [None if isinstance(each, FailedComparison) else each for each in self._compared(questions)]

    def _compared(self, questions: Sequence[ComparedPair]) -> list[Judgement]:
        asked = [question for question in questions if question.first != question.second]
        answers = iter(self.judged(asked) if asked else ())
        return [next(answers) if question.first != question.second else 0.5 for question in questions]

    def verdicts(
        self, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str], terms: Terms = TERMS
    ) -> list[Verdict]:
        """Return the verdict of each row within its group, as `standings` says; a row without a place is alone."""
        groups: dict[object, list[int]] = defaultdict(list)
        for row, each in enumerate(columns):
            groups[each[PLACE].group if PLACE in each else ids[row]].append(row)
        prompts = [each[PLACE].prompt if PLACE in each else "" for each in columns]

        def ask(pairs: Sequence[Match]) -> list[Judgement]:
            questions = [ComparedPair(prompts[i], completions[i], completions[j], columns[i]) for i, j in pairs]
            return self._compared(questions)

        found = self.standings(list(groups.values()), ask)
        return [found[row] for row in range(len(completions))]

    def standings(self, groups: Sequence[Sequence[int]], ask: Ask) -> dict[int, Verdict]:
        """Return each row's mean chance to be preferred to the others of its group, from all pairs.

        A row that is alone has 1/2. A row about which the judge abstained every time has no reward; it has failed only
        if none of its comparisons gave a verdict and one could not be made.
        """
        pairs = [pair for rows in groups for pair in combinations(rows, 2)]
        said: dict[int, list[Judgement]] = {rows[0]: [ALONE] for rows in groups if len(rows) == 1}
        for (i, j), judged in zip(pairs, ask(pairs), strict=True):
            said.setdefault(i, []).append(judged)
            said.setdefault(j, []).append(of_turned(judged))
        return {row: verdict_of(each) for row, each in said.items()}


def decided(said: Sequence[Judgement]) -> list[float]:
    """Return the chances, without abstentions and failures."""
    return [each for each in said if not (each is None or isinstance(each, FailedComparison))]


def of_turned(judged: Judgement) -> Judgement:
    """Return the judgement of a pair as that of the same pair in the other order."""
    return judged if judged is None or isinstance(judged, FailedComparison) else 1 - judged


def judges_groups(reward: object) -> bool:
    """Return whether what a completion is worth depends on the others of its group: it is compared or ranked."""
    return isinstance(paid_reward(reward), ComparingReward | TrajectoryJudge)


def comparing(reward: object) -> ComparingReward | None:
    """Return the judge of pairs that a reward is, or that it pays beside a measured one; None if there is no such
    judge.
    """
    paid = paid_reward(reward)
    return paid if isinstance(paid, ComparingReward) else None


def verdict_of(said: Sequence[Judgement]) -> Verdict:
    """Return the verdict on a row from the judgements on it: their mean chance, or why there is none."""
    if chances := decided(said):
        return Verdict("ok", sum(chances) / len(chances), {}, False, graded=True)
    for each in said:
        if isinstance(each, FailedComparison):
            return Verdict("timeout" if each.late else "error", what=each.what)
    return Verdict("not_applicable", what="the judge abstained on every comparison")
