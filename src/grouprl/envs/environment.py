"""The protocol of an environment: everything that is acted in over turns maps onto it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from grouprl.core.json_types import JsonMapping

if TYPE_CHECKING:  # tasks are built on environments, so environments import no task
    from grouprl.records.examples import Example


@dataclass(frozen=True)
class Observation:
    """What the policy is shown before it acts.

    The first one of an episode is the prompt; each later one is appended behind the agent's own words.
    """

    text: str
    state: str = ""
    """Key of the state in which the policy acts: equal keys are equal states. '' where states cannot be compared."""
    agent: str = ""
    """Who acts next, where there are several: one of the task's `agents`. Each has a context of its own, in which its
    first observation is the prompt and later ones follow its own words."""
    legal: tuple[str, ...] = ()
    """The legal actions, where they can be listed."""
    fresh: bool = False
    """Whether the agent begins anew with this as its prompt and sees nothing of what was said to it before: a
    sub-agent's new call."""
    messages: tuple[JsonMapping, ...] = ()
    """The same as chat messages, any roles, for policies that have a chat template; they go before `text` there."""
    tools: tuple[JsonMapping, ...] = ()
    """JSON schemas of tools that the chat template announces, with a first or fresh observation of `messages`."""
    variables: Mapping[str, object] = field(default_factory=dict)
    """Variables of the chat template, such as `enable_thinking`, for all observations of a context alike."""


@dataclass(frozen=True)
class ArrayObservation:
    """What a policy over arrays is shown before it acts. An array alone is an observation without the rest."""

    values: object
    """The array of the observation space, or arrays by name where that is a `DictSpace`."""
    legal: object = None
    """[count] bool, which actions are legal; of MultiDiscrete the masks of its numbers, concatenated. None: all."""
    context: Mapping[str, object] = field(default_factory=dict)
    """The arrays of the context space, with the first observation of an episode."""


@dataclass(frozen=True)
class Step:
    """What an action led to."""

    observation: Observation
    """What the policy is shown next, or last; of environments of arrays an array or an `ArrayObservation`."""
    reward: float = 0.0
    """Reward of this turn, for who acted."""
    terminated: bool = False
    """The episode reached its end."""
    truncated: bool = False
    """The episode was cut off by a limit."""
    valid: bool = True
    """Whether the action could be understood and was allowed."""
    info: Mapping[str, object] = field(default_factory=dict)
    """`seconds`: how long the action took, for methods that weigh by that; anything else is the environment's own."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards to agents by name, beside `reward`: each is added to the agent's latest turn, or to its first one if it
    has not acted yet."""


@runtime_checkable
class Environment(Protocol):
    """One episode. Objects are single-use: `reset` once, `step` until the end, `score`, `close`.

    Each of the methods may be a coroutine (`async def`): thousands of episodes then wait in one process at a time.
    """

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode that (example, seed) determine; the first observation is the prompt."""
        ...

    def step(self, action: str) -> Step:
        """Act."""
        ...

    def score(self) -> dict[str, float]:
        """Return the reward components of the whole episode, beside the rewards of its turns; `correct` is 0 or 1.

        A name that begins with '#' is a count: it reaches the metrics and adds nothing to the reward.
        """
        ...

    def close(self) -> None:
        """Give back what the environment holds; may be called twice."""
        ...


COUNT = "#"
"""What the names of components begin with that are counts."""


def worth(components: Mapping[str, float]) -> float:
    """Return the sum of the components that are neither `correct` nor counts."""
    return sum(value for name, value in components.items() if name != "correct" and not name.startswith(COUNT))


def unwritable(text: str) -> str | None:
    """Return the first half of a character (a lone surrogate) in a text: no tokenizer, file or screen takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start]
    return None


@runtime_checkable
class Judging(Protocol):
    """An environment whose agents have scores of their own; `scores` is then called in place of `score`."""

    def scores(self) -> dict[str, dict[str, float]]:
        """Return the reward components of each agent by its name; an agent that is not named has none."""
        ...


@runtime_checkable
class Patient(Protocol):
    """An environment that waits for something outside this process.

    Where many are called at once, each receives its call before any is waited for, so that they wait together.
    """

    def begin_call(self, method: str, *arguments: object) -> None:
        """Begin what `method`, 'reset' or 'step', is going to wait for; it is called next, with the same arguments."""
        ...


@runtime_checkable
class Demonstrator(Protocol):
    """An environment that can show an imperfect next action."""

    def demonstrate(self, rng: random.Random) -> str:
        """Return an action for the present state, imperfect on purpose."""
        ...
