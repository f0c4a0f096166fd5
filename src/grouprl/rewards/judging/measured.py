"""A reward that is paid beside one that is only measured, so that what was learned can be compared with the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from grouprl.rewards.contract import Columns, Reward
from grouprl.rewards.judging.judge import PLACE
from grouprl.rewards.validation import TERMS, Terms, Verdict, VerdictReward, verdicts_of

GOLD = "gold"
"""The component that holds the measured reward."""


@dataclass(frozen=True)
class MeasuredReward(VerdictReward):
    """A reward, `paid`, with another one beside it, `gold`, as its component that tells which completions are right.

    A completion on which either fails has failed.

    Args:
        paid: a judge, a reward model, or any other reward.
        gold: a reward that is not paid.
    """

    paid: Reward
    gold: Reward
    sees_groups: ClassVar[bool] = True

    def verdicts(
        self, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str], terms: Terms = TERMS
    ) -> list[Verdict]:
        """Return the paid reward of every sample, with the measured one beside it."""
        paid = verdicts_of(self.paid, completions, columns, ids, terms)
        bare = [{name: value for name, value in each.items() if name != PLACE} for each in columns]
        gold = verdicts_of(self.gold, completions, bare, ids, replace(terms, weights=None))
        return [_beside(*pair) for pair in zip(paid, gold, strict=True)]

    def notes(self) -> Mapping[str, float]:
        """Return the notes of the paid reward."""
        return self.paid.notes() if isinstance(self.paid, VerdictReward) else {}


def paid_reward(reward: object) -> object:
    """Return the reward that is paid: the `paid` one of a `MeasuredReward`, else the reward itself."""
    return reward.paid if isinstance(reward, MeasuredReward) else reward


def _beside(paid: Verdict, gold: Verdict) -> Verdict:
    if paid.status != "ok" or gold.status == "not_applicable":
        return paid
    if gold.status != "ok":
        return replace(gold, what=f"in '{GOLD}', {gold.what}")
    components = {**paid.components, GOLD: gold.reward}
    return replace(paid, components=components, correct=gold.correct, graded=gold.graded)
