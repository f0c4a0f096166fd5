"""The protocol of an environment: everything that is acted in over turns maps onto it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:  # tasks are built on environments, so environments import no task
    from grouprl.tasks.task import Question


@dataclass(frozen=True)
class Observation:
    """What the policy is shown before it acts.

    The first one of an episode is the prompt; each later one is appended behind the policy's own words.
    """

    text: str
    state: str = ""
    """Key of the state in which the policy acts: equal keys are equal states. '' where states cannot be compared."""
    agent: str = ""
    """Who acts next, where there are several."""
    legal: tuple[str, ...] = ()
    """The legal actions, where they can be listed."""


@dataclass(frozen=True)
class Step:
    """What an action led to."""

    observation: Observation
    reward: float = 0.0
    """Reward of this turn."""
    terminated: bool = False
    """The episode reached its end."""
    truncated: bool = False
    """The episode was cut off by a limit."""
    valid: bool = True
    """Whether the action could be understood and was allowed."""
    info: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Environment(Protocol):
    """One episode. Objects are single-use: `reset` once, `step` until the end, `score`, `close`."""

    def reset(self, question: Question, seed: int) -> Observation:
        """Begin the episode that (question, seed) determine; the first observation is the prompt."""
        ...

    def step(self, action: str) -> Step:
        """Act."""
        ...

    def score(self) -> dict[str, float]:
        """Return the reward components of the whole episode, beside the rewards of its turns; `correct` is 0 or 1."""
        ...

    def close(self) -> None:
        """Give back what the environment holds; may be called twice."""
        ...


@runtime_checkable
class Demonstrator(Protocol):
    """An environment that can show an imperfect next action."""

    def demonstrate(self, rng: random.Random) -> str:
        """Return an action for the present state, imperfect on purpose."""
        ...
