"""Further examples of a warm-up besides demonstrations, made from pairs of them."""

from __future__ import annotations

from dataclasses import dataclass

from grouprl.records.episode_records import Turn
from grouprl.records.examples import Prompt


@dataclass(frozen=True)
class Lesson:
    """A row to imitate: a prompt, the tokens after it, and which of them the policy wrote."""

    prompt: Prompt
    response_ids: tuple[int, ...]
    own: tuple[bool, ...]


@dataclass(frozen=True)
class Shown:
    """A demonstrated episode: the row, its turns, their reward, and whether it ended well."""

    row: Lesson
    turns: tuple[Turn, ...]
    reward: float
    correct: bool
