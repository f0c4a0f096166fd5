"""Rows that are stored already: what a task of pairs, demonstrations or rollouts of another run has of each prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class StoredRow:
    """A stored completion, with what is known of it."""

    completion: str
    reward: float
    correct: bool = False
    components: Mapping[str, float] = field(default_factory=dict)
    ids: tuple[int, ...] | None = None
    """Token ids as they were sampled; None: the text is encoded and an end token put behind it."""
    prompt_ids: tuple[int, ...] | None = None
    """Token ids of the prompt it was sampled for; None: the prompt is encoded."""
    behavior_logp: tuple[float, ...] | None = None
    """Log-prob of each of `ids` under what sampled them; None: unknown, the policy scores them itself."""
    truncated: bool = False


@runtime_checkable
class StoredRows(Protocol):
    """A task whose completions are stored: pairs with a known winner, demonstrations, rollouts of another run.

    Nothing is sampled for it: the rows of a prompt are its group.
    """

    def stored_rows(self, example: object, /) -> Sequence[StoredRow]:
        """Return the rows of a prompt, at least one; a pair has its winner (reward 1) first, its loser (0) second."""
        ...
