"""Prompts, stored rows, and sources of what is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:  # environment workers import this module and start much faster without torch
    from typing import Self

    from grouprl.core.json_types import State

from grouprl.core.answering import Answering
from grouprl.protocols.sampling import EntropyScaling

Prompted_co = TypeVar("Prompted_co", covariant=True)
Requested_co = TypeVar("Requested_co", covariant=True)
Rows_co = TypeVar("Rows_co", covariant=True)
Step_contra = TypeVar("Step_contra", contravariant=True)
Request_contra = TypeVar("Request_contra", contravariant=True)
Rows = TypeVar("Rows")
Outcomes_co = TypeVar("Outcomes_co", covariant=True)


@runtime_checkable
class SampleSource(Protocol[Rows_co, Step_contra], metaclass=Answering):
    """A source of a run's scored samples, which are sampled step by step, ahead of training, or by a cluster.

    The loop calls `begin` once, then for every step `round` until it has enough, and `advance` after the update. It
    does not need to know which kind of source it has.
    """

    @property
    def asynchronous(self) -> bool:
        """True if samples may be older than the weights they are trained on."""

    def begin(self, say: Callable[[str], None]) -> None:
        """Get ready, with the weights as they are; `say` shows a sentence to the user."""

    def round(self, count: int) -> Rows_co | None:
        """Return the samples of `count` prompts, fewer if the prompts run out; None if no prompt is left."""

    def advance(self, step: Step_contra | None) -> Mapping[str, float]:
        """End a step whose samples were `step` (None: it had none) after its update; return the metrics of the step."""

    def state(self) -> State:
        """Return the state for a checkpoint: plain values, empty if nothing is in progress between steps."""

    def restore(self, state: State) -> None:
        """Continue from what `state` returned, at the next `begin`."""

    def close(self) -> None:
        """Stop everything that this source runs; may be called twice."""


@runtime_checkable
class RowSource(Protocol[Request_contra, Rows, Outcomes_co], metaclass=Answering):
    """A source of scored rows: completions, episodes over text or vectors, or stored rows.

    A run resolves once which source its task needs; training, asynchronous sampling and evaluation call it alike, and
    never ask which one it is. Rows follow from requests, seeds, the weights, and what `state` returns.
    """

    acts: ClassVar[bool]
    """Whether rows are episodes in environments."""
    samples: ClassVar[bool]
    """Whether rows are sampled and scored by the reward, not stored."""
    text: ClassVar[bool]
    """Whether prompts and completions are text."""

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
        """Apply the error policy to rows that were sampled with `count_failures` off; return those that are kept."""

    def outcomes(self, requests: Sequence[Request_contra], /, *, greedy: bool = False) -> Outcomes_co:
        """Return the results of the requested completions or episodes, each as a whole, for an evaluation."""

    def held_out(self) -> Self:
        """Return a source for evaluations: the same policy and environments with the settings of an evaluation."""

    def state(self) -> State:
        """Return what the source carries from step to step: plain values, empty if rows follow from requests alone."""

    def restore(self, state: State, /) -> None:
        """Continue from what `state` returned."""

    def close(self) -> None:
        """Stop the processes that run environments."""


@runtime_checkable
class PromptTask(Protocol[Prompted_co], metaclass=Answering):
    """A task's numbered prompts. A prompt is what `example` returns: text, chat messages, or the beginning of an
    episode.
    """

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
        """Return a hash of everything that determines the prompts; a run cannot be resumed with a different one."""
        ...


class PromptSource(Protocol[Requested_co]):
    """Deals out a task's training prompts as requests of a run, and continues from a checkpoint."""

    size: int | None
    """Number of prompts; None if the source is endless."""
    sampled: int
    """Number of prompts dealt out so far in this run."""

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
        """Continue from what `state` returned."""
        ...
