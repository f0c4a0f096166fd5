"""Data that studies of preferences.py train on: pairs with a margin, and a file of answers whose steps are labelled."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grouprl.records.examples import Example
from grouprl.records.offline import StoredRow
from grouprl.rewards import Reward
from grouprl.tasks.builtin.single_turn.preferences import LETTERS, Preferences, mean_rating, ratings_of

HERE = Path(__file__).resolve()
RATED_PAIRS = f"{HERE}:RatedPairs"
STEPS = HERE.parents[1] / "runs" / "labelled_steps.jsonl"
ROWS, LENGTH, WRONG = 4000, 5, 0.15
"""Answers of the file, of which whole ones are left out; steps of an answer, and the chance that one is wrong."""
LONGEST = 6


class RatedPairs(Preferences):
    """Pairs of which the word with more wanted letters wins; its margin says how much shorter it is than the other.

    The true reward is the mean of both ratings.
    """

    @property
    def reward(self) -> Reward:
        """Return the mean of the ratings."""
        return rated

    def stored_rows(self, example: Example) -> Sequence[StoredRow]:
        """Return winner and loser with the pair's margin."""
        names, wanted = ("chosen", "rejected"), str(example.columns["wanted"])
        words = [str(example.columns[name]) for name in names]
        won, lost = (ratings_of(word, wanted, LONGEST)[1] for word in words)
        margin = {"margin": won - lost}
        return StoredRow(words[0], 1.0, correct=True, components=margin), StoredRow(words[1], 0.0, components=margin)


def rated(completion: str, *, wanted: str) -> float:
    """Return the mean of a word's true ratings."""
    return mean_rating(completion, wanted=wanted, longest=LONGEST)


def steps() -> Iterator[dict[str, Any]]:
    """Yield letters written backwards, a step each; from the first wrong letter on no step is right."""
    for number in range(ROWS):
        luck = random.Random(number)
        asked = "".join(luck.choices(LETTERS, k=LENGTH))
        answer = asked[::-1]
        said = [luck.choice(LETTERS) if luck.random() < WRONG else letter for letter in answer]
        right = ["".join(said[: at + 1]) == answer[: at + 1] for at in range(LENGTH)]
        if not all(right):
            yield {"id": str(number), "prompt": f"{asked}>", "completions": said, "labels": right}


def write_steps() -> None:
    """Write the file, the same each time."""
    STEPS.parent.mkdir(parents=True, exist_ok=True)
    STEPS.write_text("".join(f"{json.dumps(row)}\n" for row in steps()), encoding="utf-8")
