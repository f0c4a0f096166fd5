"""What is asked of the policy: a question, shown in some form, answered so many times, in some way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from grouprl.core.batch import SOURCES
from grouprl.tasks.task import Message, Question

Prompt = str | tuple[Message, ...]


@dataclass(frozen=True)
class Ask:
    """A question that gets answers; data parts change it with `dataclasses.replace`.

    The seed of an answer follows from (run, `ordinal`, number of the answer), so it depends on nothing else.
    """

    ordinal: int
    """Number of the question in this run; the group of its answers."""
    index: int
    """Number of the question in the task's training split."""
    question: Question
    answers: int
    """How many answers are drawn."""
    first: int = 0
    """Number of the first answer: further answers to the same ordinal need numbers of their own."""
    prompt: Prompt | None = None
    """What the policy is shown; None: the question's own prompt."""
    lead: tuple[int, ...] = ()
    """Token ids that every answer begins with. They are scored with the answer and never trained on."""
    lead_turns: tuple[tuple[int, ...], ...] = ()
    """Token ids of the first turns of every episode: acted out in its environment before the policy goes on."""
    opening: Prompt | None = None
    """What an episode shows in the place of its first observation, such as the same with advice; None: that itself."""
    lead_seen: tuple[str, ...] = ()
    """What those turns showed when they were first played, one text each; another one now is an error. () unchecked."""
    lead_trained: bool = False
    """Whether `lead_turns` count as the policy's own tokens, with the log-probs that it has for them now."""
    luck: int | None = None
    """Number of the answer with whose seed the environments begin; None: every answer has a seed of its own."""
    temperature: float | None = None
    """None: the run's."""
    max_new_tokens: int | None = None
    """None: the run's."""
    max_turns: int | None = None
    """Turns of an episode at most; None: the task's."""
    source: int = SOURCES["drawn"]
    """Code of `grouprl.core.batch.SOURCES` for the rows."""
    keys: Mapping[str, int] = field(default_factory=dict)
    """Groupings of the rows: `variant`, `budget`, `plan` …"""

    @property
    def shown(self) -> Prompt:
        """The prompt that the policy sees."""
        return self.question.prompt if self.prompt is None else self.prompt
