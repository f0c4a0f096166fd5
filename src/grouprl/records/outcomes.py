"""Results of whole completions or episodes, for an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grouprl.records.joining import join_scores
from grouprl.records.scores import Scores


@dataclass(frozen=True)
class Outcomes:
    """R whole completions or episodes with their scores; an episode counts with the reward of its first agent."""

    texts: tuple[str, ...]
    """[R] the completion, or the whole exchange of an episode, for readers."""
    openings: tuple[str, ...]
    """[R] the first observation of an episode; "" if the prompt already holds it."""
    lengths: tuple[float, ...]
    """[R] number of actions or tokens that the policy wrote."""
    truncated: tuple[bool, ...]
    """[R] whether the budget ran out."""
    scores: Scores

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def join(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """Return the outcomes of all parts, one after the other."""
        return cls(
            tuple(text for part in parts for text in part.texts),
            tuple(opening for part in parts for opening in part.openings),
            tuple(length for part in parts for length in part.lengths),
            tuple(late for part in parts for late in part.truncated),
            join_scores([part.scores for part in parts]),
        )
