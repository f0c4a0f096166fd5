"""Letters that beat each other in a circle, so that no reward orders them: the smallest game of preferences."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample, Reward
from grouprl.rewards.judging.comparing import ComparedPair, ComparingReward
from grouprl.rewards.validation import TERMS, Terms, Verdict
from grouprl.tasks.builtin.single_turn.preferences import LETTERS, WANTED
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

HalfToOne = Annotated[float, Field(ge=0.5, le=1)]


@register_task("duels")
class Duels(GeneratedTask):
    """Write one of three letters: the first beats the second, the second the third, and the third the first.

    The prompt is "caf>", a completion "a". A judge that compares two completions prefers the better letter with the
    chance that `wins` says, and a wanted letter to any other always. What is best depends on what the policy writes
    otherwise: a policy that mixes the letters as the Nash policy does cannot be beaten. A completion's reward is its
    mean chance against the others of its group; components tell which letter it was.
    """

    levels = tuple({"wins": (chance,) * 3} for chance in (1.0, 0.95, 0.9, 0.8, 0.7, 0.6))

    wins: tuple[HalfToOne, HalfToOne, HalfToOne] = Field(
        (0.95, 0.95, 0.95),
        description="chances that the first letter beats the second, the second the third, and the third the first",
    )
    shown: tuple[float, float, float] = Field(
        (0.7, 0.2, 0.1), description="how often demonstrations show each letter, from which the policy starts"
    )

    max_new_tokens: ClassVar[int] = 2
    """The token budget: a letter and its end."""
    alphabet: ClassVar[str] = f"{LETTERS}>"
    """The letters a..h and '>'."""

    @property
    def reward(self) -> Reward:
        """The judge that compares."""
        return DuelJudge(self.wins)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return three letters."""
        wanted = "".join(rng.sample(LETTERS, WANTED))
        return f"{wanted}>", {"wanted": wanted}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Write a letter that is asked for, as often as `shown` says."""
        return rng.choices(str(example.columns["wanted"]), weights=self.shown)[0]

    def solve(self, example: Example) -> str:
        """Write the first letter that is asked for."""
        return str(example.columns["wanted"])[0]

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return no examples: by itself no letter is right."""
        return ()


@dataclass(frozen=True)
class DuelJudge(ComparingReward):
    """The judge of duels: exact chances, no noise; a completion is right if it is one of the wanted letters."""

    wins: tuple[float, float, float]
    tells_right: ClassVar[bool] = True

    def judged(self, questions: Sequence[ComparedPair]) -> list[float | None]:
        """Return the chance that the first letter is preferred."""
        return [self.chance(kind(q.first, q.columns), kind(q.second, q.columns)) for q in questions]

    def chance(self, one: int, other: int) -> float:
        """Return the chance of one kind against another; kind -1 is any other text, which loses to every letter."""
        if one == other:
            return 0.5
        if -1 in (one, other):
            return float(other == -1)
        return self.wins[one] if (one + 1) % WANTED == other else 1 - self.wins[other]

    def verdicts(
        self, completions: Sequence[str], columns: Sequence[Columns], ids: Sequence[str], terms: Terms = TERMS
    ) -> list[Verdict]:
        """Return each row's mean chance in its group, and which letter it is."""
        found = super().verdicts(completions, columns, ids, terms)
        kinds = [kind(text, own) for text, own in zip(completions, columns, strict=True)]
        return [_with_kind(verdict, own) for verdict, own in zip(found, kinds, strict=True)]


def kind(completion: str, columns: Columns) -> int:
    """Return the number of the wanted letter that a completion is; -1 for any other text."""
    return str(columns["wanted"]).find(completion) if len(completion) == 1 else -1


def _with_kind(verdict: Verdict, own: int) -> Verdict:
    marks = {f"letter_{number}": float(number == own) for number in range(WANTED)}
    return Verdict(verdict.status, verdict.reward, marks, own >= 0, what=verdict.what)
