"""Prompts, stored rows, and sources of what is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:  # workers of environments import this module, and start in a fraction of the time without torch
    from typing_extensions import Self

    from grouprl.core.json_types import State

from grouprl.protocols.sampling import EntropyScaling

Prompted_co = TypeVar("Prompted_co", covariant=True)
Requested_co = TypeVar("Requested_co", covariant=True)
Rows_co = TypeVar("Rows_co", covariant=True)
Step_contra = TypeVar("Step_contra", contravariant=True)
Request_contra = TypeVar("Request_contra", contravariant=True)
Rows = TypeVar("Rows")
Outcomes_co = TypeVar("Outcomes_co", covariant=True)


@runtime_checkable
class SampleSource(Protocol[Rows_co, Step_contra]):
    """Where a run's scored samples come from: sampled step by step, ahead of training, or by a cluster.

    The loop calls `begin` once, then for every step `round` until it has enough, and `advance` after the update. It
    does not need to know which kind of source it has.
    """

    @property
    def asynchronous(self) -> bool:
        """Whether samples may be older than the weights they are trained on."""

    def begin(self, say: Callable[[str], None]) -> None:
        """Get ready, with the weights as they are; `say` shows a sentence to the user."""

    def round(self, count: int) -> Rows_co | None:
        """Return the samples of `count` prompts, fewer where there are no more; None when no prompt is left."""

    def advance(self, step: Step_contra | None) -> Mapping[str, float]:
        """End a step whose samples were `step` (None: it had none) and whose update is done; return its metrics."""

    def state(self) -> State:
        """Return what a checkpoint keeps: plain values, empty where nothing is under way between steps."""

    def restore(self, state: State) -> None:
        """Go on where `state` was taken, at the next `begin`."""

    def close(self) -> None:
        """End what it runs; may be called twice."""


@runtime_checkable
class RowSource(Protocol[Request_contra, Rows, Outcomes_co]):
    """Where scored rows come from: completions, episodes over text or vectors, rows that are stored.

    A run resolves once which source its task needs; training, asynchronous sampling and evaluation call it alike, and
    never ask which one it is. Rows follow from requests, seeds and the weights alone.
    """

    acts: ClassVar[bool]
    """Whether environments act."""
    samples: ClassVar[bool]
    """Whether anything is sampled, and the reward called."""
    text: ClassVar[bool]
    """Whether prompts and completions are made of text."""

    def rows(
        self,
        requests: Sequence[Request_contra],
        /,
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> Rows:
        """Return the scored rows that `requests` ask for, to train on."""

    def counted(self, samples: Rows, /) -> Rows:
        """Return rows that were sampled with `count_failures` off, as if it had been on."""

    def outcomes(self, requests: Sequence[Request_contra], /, *, greedy: bool = False) -> Outcomes_co:
        """Return what the requested completions or episodes came to, each as a whole, for an evaluation."""

    def held_out(self) -> Self:
        """Return the source of an evaluation: the same policy and environments, with settings of its own."""

    def close(self) -> None:
        """End the processes in which environments act."""


@runtime_checkable
class PromptTask(Protocol[Prompted_co]):
    """Prompts by number. A prompt is what `example` returns: text, chat messages, or the beginning of an episode."""

    @property
    def name(self) -> str:
        """The name in messages and records."""
        ...

    def size(self, split: Literal["train", "eval"], /) -> int | None:
        """Return how many prompts a split has; None if it is endless."""
        ...

    def example(self, split: Literal["train", "eval"], index: int, /) -> Prompted_co:
        """Return prompt number `index` (from 0) of a split, always the same one; it has an `id` and `columns`.

        Raises:
            InputError: an unknown split, or an index beyond the size.
        """
        ...

    def fingerprint(self) -> str:
        """Return a hash of everything that decides what the prompts are; a resumed run refuses another one."""
        ...


class PromptSource(Protocol[Requested_co]):
    """Deals out a task's training prompts as requests of a run, and continues from a checkpoint."""

    size: int | None
    """How many there are; None: they never end."""
    sampled: int
    """How many have been dealt out in this run."""

    def requests(self, count: int, completions: int, /) -> Sequence[Requested_co]:
        """Return the next `count` prompts in the source's own order, each to be sampled `completions` times."""
        ...

    def request(self, index: int, completions: int, /) -> Requested_co:
        """Return prompt number `index` of the task under the next ordinal of this run."""
        ...

    def state(self) -> State:
        """Return plain data for a checkpoint."""
        ...

    def restore(self, state: State, /) -> None:
        """Go on where `state` was taken."""
        ...
