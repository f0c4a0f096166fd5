"""Stored rows of a prompt, from a task of pairs, demonstrations or rollouts of another run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class StoredRow:
    """A stored completion, with its reward and any known token ids and log-probs."""

    completion: str
    reward: float
    correct: bool = False
    components: Mapping[str, float] = field(default_factory=dict)
    ids: tuple[int, ...] | None = None
    """Token ids as they were sampled; None: the text is encoded and an end token is appended."""
    prompt_ids: tuple[int, ...] | None = None
    """Token ids of the prompt that it was sampled for; None: the prompt is encoded."""
    behavior_logp: tuple[float, ...] | None = None
    """Log-prob of each of `ids` under the policy that sampled them; None if unknown: the policy in training scores
    them.
    """
    truncated: bool = False


@runtime_checkable
class StoredRows(Protocol):
    """A task whose completions are stored: pairs with a known winner, demonstrations, rollouts of another run.

    Nothing is sampled for such a task: the rows of a prompt are its group.
    """

    def stored_rows(self, example: object, /) -> Sequence[StoredRow]:
        """Return the rows of a prompt, at least one; a pair has its winner (reward 1) first, its loser (0) second."""
        ...
