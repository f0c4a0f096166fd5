"""Environments, and the spaces of their observations and actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

from grouprl.core.answering import Answering
from grouprl.core.errors import InputError

Observed_co = TypeVar("Observed_co", covariant=True)
Action_contra = TypeVar("Action_contra", contravariant=True)
Failed_co = TypeVar("Failed_co", covariant=True)


@dataclass(frozen=True)
class Discrete:
    """Whole numbers 0 … count - 1."""

    count: int
    shape: ClassVar[tuple[int, ...]] = ()
    dtype: ClassVar[str] = "int64"


@dataclass(frozen=True)
class MultiDiscrete:
    """Vectors of whole numbers: number i is one of 0 … counts[i] - 1."""

    counts: tuple[int, ...]
    dtype: ClassVar[str] = "int64"

    @property
    def shape(self) -> tuple[int, ...]:
        """(how many numbers,)."""
        return (len(self.counts),)


@dataclass(frozen=True)
class Box:
    """Arrays of one shape whose numbers are finite and within bounds."""

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -math.inf
    """Lower bound: one for all numbers, or one for each in row-major order."""
    high: float | tuple[float, ...] = math.inf
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            bounds = getattr(self, name)
            if isinstance(bounds, tuple) and len(bounds) != self.size:
                raise InputError(
                    f"{name} has {len(bounds)} numbers", f"a Box of {self.shape} has {self.size}", "Give one for each"
                )

    @property
    def size(self) -> int:
        """Number of numbers in a value."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Image:
    """Pictures [height, width, channels] of bytes."""

    height: int
    width: int
    channels: int = 3
    dtype: ClassVar[str] = "uint8"

    @property
    def shape(self) -> tuple[int, ...]:
        """(height, width, channels)."""
        return (self.height, self.width, self.channels)


ArraySpace: TypeAlias = Discrete | MultiDiscrete | Box | Image
"""A space whose values are single arrays."""


@dataclass(frozen=True)
class DictSpace:
    """Several named spaces; a value has one array for each name."""

    spaces: Mapping[str, ArraySpace] = field(default_factory=dict)


Space: TypeAlias = ArraySpace | DictSpace


ActionSpace: TypeAlias = Discrete | MultiDiscrete | Box


@dataclass(frozen=True)
class Spaces:
    """Observation and action spaces of an environment without text.

    Raises:
        InputError: actions that are pictures or dicts of arrays, or a chain of less than one action.
    """

    observation: Space
    action: ActionSpace
    context: DictSpace = DictSpace()
    """Arrays that apply to a whole episode (a map, a graph), shown once with its first observation."""
    chain: int = 1
    """Largest number of actions that the policy takes by its own dynamics before the environment gets them."""

    def __post_init__(self) -> None:
        if not isinstance(self.action, ActionSpace):
            raise InputError(f"actions are {self.action}", "they must be Discrete, MultiDiscrete or a Box")
        if self.chain < 1:
            raise InputError(
                f"chain={self.chain}",
                "it must be a number of actions, at least 1",
                "Set it to 1 if the environment sees every action",
            )


@runtime_checkable
class Environment(Protocol[Observed_co, Action_contra], metaclass=Answering):
    """An environment that plays one episode: `reset` once, `step` until the end, `score`, `close`. Objects are
    single-use.

    Text is one instance, `Environment[grouprl.envs.Observation, str]`. With `Spaces`, observations are arrays or
    `grouprl.envs.ArrayObservation`, actions numbers or arrays: `Environment[np.ndarray, int]`; where `Spaces.chain` is
    above 1, `step` is given the array of all actions of a chain.
    """

    def reset(self, example: object, seed: int, /) -> Observed_co:
        """Begin the episode that the prompt and the seed determine; return the first observation."""
        ...

    def step(self, action: Action_contra, /) -> object:
        """Take an action; return a `grouprl.envs.Step`: observation, reward, terminated, truncated, valid, info."""
        ...

    def score(self) -> Mapping[str, float]:
        """Return the reward components of the whole episode, in addition to the rewards of its steps; `correct` is 0 or
        1.
        """
        ...

    def close(self) -> None:
        """Release what the environment holds; may be called twice."""
        ...


@runtime_checkable
class GroupScored(Protocol[Failed_co], metaclass=Answering):
    """A task that may reward an episode by comparing it with the others of its group."""

    scores_groups: bool
    """Whether rewards are compared within groups; if so, the environments run in the trainer's process."""

    async def score_group(self, names: Sequence[tuple[str, int]], /) -> Sequence[dict[str, float] | Failed_co | None]:
        """Return the reward components of a group's episodes, each named by (id of the prompt, seed), in this order.

        An entry may instead be a `grouprl.rewards.contract.Failure`, or None for an episode that did not reach its end.
        """
        ...
