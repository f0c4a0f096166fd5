"""The protocol of environments: everything in which an agent acts over several turns is adapted to it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from grouprl.core.answering import Answering
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping

if TYPE_CHECKING:  # tasks are built on environments, so environments import no task
    from grouprl.records.examples import Example


@dataclass(frozen=True)
class Observation:
    """The text or messages that the policy is shown before it acts.

    The first observation of an episode is the prompt; each later one is appended after the agent's own text.
    """

    text: str
    state: str = ""
    """The key of the state in which the policy acts: equal keys mean equal states. '' if states cannot be compared."""
    agent: str = ""
    """The agent that acts next, if there are several: one of the task's `agents`. Each has its own context, in which
    its first observation is the prompt and later ones follow its own text.
    """
    legal: tuple[str, ...] = ()
    """The legal actions, if they can be listed."""
    fresh: bool = False
    """Whether the agent begins a new context with this observation as its prompt and without its earlier texts, as for
    a new call of a sub-agent.
    """
    messages: tuple[JsonMapping, ...] = ()
    """The observation as chat messages, with any roles, for policies that have a chat template; they precede `text`
    there.
    """
    tools: tuple[JsonMapping, ...] = ()
    """JSON schemas of tools that the chat template announces, with a first or fresh observation that has `messages`."""
    variables: Mapping[str, object] = field(default_factory=dict)
    """Variables of the chat template, such as `enable_thinking`, equal for all observations of a context."""
    counting: bool = False
    """Whether the next action is passed with the numbers of tokens read and sampled for it (`Spoken.counted`)."""


@dataclass(frozen=True)
class ArrayObservation:
    """The arrays that a policy over arrays is shown before it acts. An array alone is an observation without the other
    fields.
    """

    values: object
    """An array of the observation space, or arrays by name if the space is a `DictSpace`."""
    legal: object = None
    """[count] bool: the legal actions; for MultiDiscrete, the masks of its numbers, concatenated. None: all."""
    context: Mapping[str, object] = field(default_factory=dict)
    """The arrays of the context space, given with the first observation of an episode."""
    agent: str = ""
    """The agent that acts next, if there are several: one of the task's `agents`."""
    text: str | None = None
    """The text that readers are shown in place of the numbers; "" for none. The policy never sees it."""


@dataclass(frozen=True)
class Step:
    """The result of an action."""

    observation: Observation
    """The next or last observation; in environments of arrays, an array or an `ArrayObservation`."""
    reward: float = 0.0
    """The reward of this turn, for the agent that acted."""
    terminated: bool = False
    """Whether the episode reached its end."""
    truncated: bool = False
    """Whether the episode was cut off by a limit."""
    valid: bool = True
    """Whether the action was understood and allowed."""
    info: Mapping[str, object] = field(default_factory=dict)
    """`seconds` is the duration of the action, for methods that weight by it. `finals`, in environments of arrays with
    several agents, are the last observations by agent of those that a limit cuts off here, `ArrayObservation` where
    some of their actions would not be legal. All other entries are the environment's own.
    """
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards by agent name, in addition to `reward`: each is added to the agent's latest turn, or to its first turn if
    it has not acted yet.
    """


@runtime_checkable
class Environment(Protocol, metaclass=Answering):
    """One episode. Objects are single-use: `reset` once, `step` until the end, `score`, `close`.

    Each method may be a coroutine (`async def`); thousands of episodes can then wait in one process at the same time.
    """

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode determined by (example, seed), and return its first observation, which is the prompt."""
        ...

    def step(self, action: str) -> Step:
        """Apply an action and return its result."""
        ...

    def score(self) -> dict[str, float]:
        """Return the reward components of the whole episode, in addition to the rewards of its turns; `correct` is 0 or
        1.

        A component whose name begins with '#' is a count, which appears in the metrics and adds nothing to the reward.
        """
        ...

    def close(self) -> None:
        """Release all resources of the environment; may be called twice."""
        ...


COUNT = "#"
"""The first character of the names of components that are counts."""
COST = "#cost"
"""The component that environments state a cost by: measured and not paid, for methods that hold a limit of it."""


def misused(what: str) -> InputError:
    """Return the error for a call that an environment does not take at this point of its episode."""
    return InputError(what, "an object is one episode: reset, step until the end, score, close")


def worth(components: Mapping[str, float]) -> float:
    """Return the sum of all components except `correct` and counts."""
    return sum(value for name, value in components.items() if name != "correct" and not name.startswith(COUNT))


def stated(components: Mapping[str, float]) -> dict[str, float]:
    """Return components, with their `worth` as the reward where some are counts, which a sum of all would pay.

    Counts beside anything that is not a number are left as they are, for scoring to refuse.
    """
    counted = any(isinstance(name, str) and name.startswith(COUNT) for name in components)
    if counted and all(isinstance(value, Real) for value in components.values()):
        return {"reward": worth(components), **components}
    return dict(components)


def unwritable(text: str) -> str | None:
    """Return the first lone surrogate (half of a character) in a text, which no tokenizer, file or screen accepts; None
    without one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start]
    return None


@runtime_checkable
class Judging(Protocol, metaclass=Answering):
    """An environment whose agents have their own scores; `scores` is called instead of `score`."""

    def scores(self) -> dict[str, dict[str, float]]:
        """Return the reward components of each agent by its name; an agent that is missing has none."""
        ...


@runtime_checkable
class Patient(Protocol, metaclass=Answering):
    """An environment that waits for something outside this process.

    If many are called at once, each receives its call before any is waited for, so that they wait at the same time.
    """

    def begin_call(self, method: str, *arguments: object) -> None:
        """Begin the call of `method`, 'reset' or 'step', without waiting; the method is called next, with the same
        arguments.
        """
        ...


@runtime_checkable
class Demonstrator(Protocol, metaclass=Answering):
    """An environment that can demonstrate an imperfect next action."""

    def demonstrate(self, rng: random.Random) -> str:
        """Return an action for the present state, imperfect on purpose."""
        ...
