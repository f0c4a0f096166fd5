"""What a warm-up shows besides demonstrations, made of pairs of them."""

from __future__ import annotations

from dataclasses import dataclass

from grouprl.records.episode_records import Turn
from grouprl.records.examples import Prompt


@dataclass(frozen=True)
class Lesson:
    """A row to imitate: a prompt, the tokens behind it, and which of them are the policy's own."""

    prompt: Prompt
    response_ids: tuple[int, ...]
    own: tuple[bool, ...]


@dataclass(frozen=True)
class Shown:
    """A demonstrated episode: the row, its turns, what they earned, and whether it ended well."""

    row: Lesson
    turns: tuple[Turn, ...]
    reward: float
    correct: bool
