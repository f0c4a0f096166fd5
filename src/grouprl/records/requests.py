"""What is requested of the policy: a prompt, shown in some form, with so many completions, sampled in some way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grouprl.core.batch import SOURCES
from grouprl.records.examples import Example, Prompt


@dataclass(frozen=True)
class RolloutRequest:
    """A prompt that gets completions; data parts change it with `dataclasses.replace`.

    The seed of a completion follows from (run, `ordinal`, number of the completion), so it depends on nothing else.
    """

    ordinal: int
    """Number of the prompt in this run; the group of its completions."""
    index: int
    """Number of the prompt in the task's training split."""
    example: Example
    completions: int
    """How many completions are sampled."""
    first: int = 0
    """Number of the first completion: further completions of the same ordinal need numbers of their own."""
    prompt: Prompt | None = None
    """The prompt that the policy sees; None: the example's own."""
    prefix: tuple[int, ...] = ()
    """Token ids that every completion begins with. They are scored with the completion and never trained on."""
    prefix_turns: tuple[tuple[int, ...], ...] = ()
    """Token ids of the first turns of every episode: acted out in its environment before the policy continues."""
    opening: Prompt | None = None
    """What an episode shows in the place of its first observation, such as the same with advice; None: nothing else."""
    prefix_observations: tuple[str, ...] = ()
    """What those turns showed when they were first played, one text each; another one is an error. (): unchecked."""
    train_prefix: bool = False
    """Whether `prefix_turns` count as the policy's own tokens, with the log-probs that it has for them now."""
    luck: int | None = None
    """Number of the completion with whose seed the environments begin; None: every completion has a seed of its own."""
    temperature: float | None = None
    """None: the run's."""
    max_new_tokens: int | None = None
    """None: the run's."""
    max_turns: int | None = None
    """Turns of an episode at most; None: the task's."""
    source: int = SOURCES["sampled"]
    """Code of `grouprl.core.batch.SOURCES` for the rows."""
    keys: Mapping[str, int] = field(default_factory=dict)
    """Groupings of the rows: `variant`, `budget`, `plan` …"""

    @property
    def shown(self) -> Prompt:
        """The prompt that the policy sees."""
        return self.example.prompt if self.prompt is None else self.prompt
