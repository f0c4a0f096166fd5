"""Requests for completions: a prompt in some form, the number of completions, and how they are sampled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grouprl.core.batch import SOURCES
from grouprl.records.examples import Example, Prompt


@dataclass(frozen=True)
class RolloutRequest:
    """A prompt to be completed; data parts change it with `dataclasses.replace`.

    The seed of a completion follows from (run, `ordinal`, number of the completion), and from nothing else.
    """

    ordinal: int
    """Number of the prompt in this run, which is also the group of its completions."""
    index: int
    """Number of the prompt in the task's training split."""
    example: Example
    completions: int
    """Number of completions to sample."""
    first: int = 0
    """Number of the first completion: further completions of the same ordinal need numbers of their own."""
    prompt: Prompt | None = None
    """The prompt that the policy sees; None: the example's own."""
    prefix: tuple[int, ...] = ()
    """Token ids that every completion begins with. They are scored with the completion and never trained on."""
    prefix_turns: tuple[tuple[int, ...], ...] = ()
    """Token ids of the first turns of every episode, played in its environment before the policy continues."""
    opening: Prompt | None = None
    """Shown in place of the episode's first observation, such as the same observation with advice; None: no change."""
    prefix_observations: tuple[str, ...] = ()
    """Observations after those turns when they were first played, one text each; a different one is an error. (): not
    checked.
    """
    train_prefix: bool = False
    """Whether `prefix_turns` count as the policy's own tokens, with its current log-probs."""
    luck: int | None = None
    """Number of the completion whose seed all environments begin with; None: every completion has its own seed."""
    temperature: float | None = None
    """Sampling temperature; None: the run's."""
    max_new_tokens: int | None = None
    """Largest number of tokens of a completion, or of a turn; None: the run's."""
    max_turns: int | None = None
    """Largest number of turns of an episode; None: the task's."""
    source: int = SOURCES["sampled"]
    """Code of `grouprl.core.batch.SOURCES` for the rows."""
    keys: Mapping[str, int] = field(default_factory=dict)
    """Numbers by which the rows can be grouped: `variant`, `budget`, `plan` …"""

    @property
    def shown(self) -> Prompt:
        """The prompt that the policy sees."""
        return self.example.prompt if self.prompt is None else self.prompt
