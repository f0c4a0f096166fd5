"""The common base of the built-in environments: single use, a limit of turns, demonstrations."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.envs.environment import Observation, Step
from grouprl.records.examples import Columns

if TYPE_CHECKING:
    from grouprl.records.examples import Example


@dataclass(frozen=True)
class Outcome:
    """The result of an action, before turns are counted."""

    text: str
    """The text that the policy reads next."""
    reward: float = 0.0
    ended: bool = False
    valid: bool = True
    info: Mapping[str, object] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards by agent name, in addition to `reward`, which belongs to the agent that acted."""


class Game(ABC):
    """An environment whose subclasses define the beginning of an episode and the effect of an action; this class counts
    the turns.

    The example's prompt is the first observation and its columns determine the first state, so the completions of a
    group begin alike; the seed determines only later chance events.
    """

    def __init__(self, max_turns: int) -> None:
        """Prepare an episode that is cut off after `max_turns` actions."""
        self.max_turns = max_turns
        self.turns = 0
        self._phase = "new"

    @abstractmethod
    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Set up the state that the example's columns describe; `rng` supplies the episode's random numbers."""

    @abstractmethod
    def act(self, action: str) -> Outcome:
        """Change the state by the action; an action that is not understood also has an outcome."""

    @abstractmethod
    def demonstrate(self, rng: random.Random) -> str:
        """Return an action for the present state, imperfect on purpose."""

    @property
    @abstractmethod
    def state(self) -> str:
        """The key of the present state."""

    @property
    @abstractmethod
    def correct(self) -> bool:
        """True if the episode has succeeded so far."""

    @property
    def legal(self) -> tuple[str, ...]:
        """The legal actions; () if they cannot be listed."""
        return ()

    @property
    def agent(self) -> str:
        """The agent that acts next; '' if there is only one."""
        return ""

    @property
    def fresh(self) -> bool:
        """True if the next agent acts without anything that it saw before."""
        return False

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode.

        Raises:
            InputError: if the object was used before, or the example lacks a column.
        """
        if self._phase != "new":
            raise self._misuse("reset() was called twice")
        self._phase = "playing"
        try:
            self.begin(example.columns, random.Random(seed))
        except KeyError as error:
            raise InputError(
                f"{type(self).__name__} was given the example '{example.id}', which has no column {error}",
                "the columns describe where the episode begins",
                "Use the examples of the task that belongs to this environment.",
            ) from error
        return self._observe(str(example.prompt))

    def step(self, action: str) -> Step:
        """Apply an action.

        Raises:
            InputError: before `reset` and after the end.
        """
        if self._phase != "playing":
            raise self._misuse(f"step({action!r}) was called {_WHEN[self._phase]}")
        outcome = self.act(action.strip())
        self.turns += 1
        truncated = self.turns >= self.max_turns and not outcome.ended
        if outcome.ended or truncated:
            self._phase = "ended"
        return Step(
            observation=self._observe(outcome.text),
            reward=outcome.reward,
            terminated=outcome.ended,
            truncated=truncated,
            valid=outcome.valid,
            info=dict(outcome.info),
            rewards=dict(outcome.rewards),
        )

    def score(self) -> dict[str, float]:
        """Return `correct`; all rewards were given with their turns."""
        return {"correct": float(self.correct)}

    def close(self) -> None:
        """End the episode, which holds nothing else."""
        self._phase = "closed"

    def _observe(self, text: str) -> Observation:
        legal = () if self._phase == "ended" else self.legal
        return Observation(text, self.state, agent=self.agent, legal=legal, fresh=self.fresh)

    def _misuse(self, what: str) -> InputError:
        return InputError(
            f"{type(self).__name__}: {what}", "an object is one episode: reset, step until the end, score, close"
        )


_WHEN = {"new": "before reset()", "ended": "after the end of the episode", "closed": "after close()"}
