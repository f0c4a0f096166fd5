"""The seams of the house: what a policy, its inputs, an environment, a task and a source of data must offer.

Each protocol has a conformance test in `grouprl.conformance` that any implementation can be held against. Nothing here
knows of text: token ids, action numbers and vectors are all *actions*, and a method only ever sees their log-probs.
This module imports torch and nothing of the package, so that everything may import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

Observed_co = TypeVar("Observed_co", covariant=True)
Action_contra = TypeVar("Action_contra", contravariant=True)
Prompted_co = TypeVar("Prompted_co", covariant=True)


# ---------------------------------------------------------------------------------------------------- policies


@dataclass(frozen=True)
class PolicyOutput:
    """What a policy says of each action, [B,T], exactly 0 beyond a row's length."""

    logp_bt: Tensor
    """Log-prob (or log-density) of the action that was taken."""
    entropy_bt: Tensor | None = None
    """Entropy in nats of the distribution it was drawn from."""
    value_bt: Tensor | None = None
    """Value of the state in which it was taken."""
    cross_bt: Tensor | None = None
    """Σ_a softmax(z/κ)_a log π(a), the first factor detached."""


@runtime_checkable
class PolicyInputs(Protocol):
    """B rows of what a policy needs in order to score actions again: token ids, observations and actions, …

    A batch carries them (`Batch.inputs`) and no method looks inside.
    """

    def __len__(self) -> int:
        """Return B, the number of rows."""
        ...

    @property
    def width(self) -> int:
        """T, the number of positions of the longest row; 0 without rows."""
        ...

    def rows(self, index: Any) -> PolicyInputs:
        """Return the rows of `index` (integers), in its order and cut to their own width."""
        ...

    def present_bt(self) -> Tensor:
        """[B,T] bool on the CPU: where a row has a position. Rows begin at position 0 and have no gaps."""
        ...

    def joined(self, others: Sequence[Any]) -> PolicyInputs:
        """Return these rows and those of `others`, one after the other."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """What can say how probable given actions are: a policy, or the frozen reference of a KL term."""

    def logp(self, tokens: Any, /, *, entropy: bool = False) -> PolicyOutput:
        """Score rows without a graph, [B,T]."""
        ...


@runtime_checkable
class Policy(Protocol):
    """What is trained. It draws nothing: a `Sampler` does.

    `value_bt` needs a value head, `cross_bt` a distribution with logits, `PolicyStatistics` is on demand: a policy that
    has none raises InputError, in words, when it is asked for them.
    """

    @property
    def device(self) -> torch.device:
        """Where the parameters live; results come back there."""
        ...

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of log-probs, entropies and values: float32 or float64."""
        ...

    def logp(
        self,
        inputs: Any,
        /,
        *,
        grad: bool = False,
        entropy: bool = False,
        values: bool = False,
        cross: float | None = None,
    ) -> PolicyOutput:
        """Score rows, [B,T]; a row's numbers depend on that row alone.

        `grad` keeps the graph; `entropy`, `values` and `cross` (a temperature) ask for more than log-probs.
        """
        ...

    def backward(
        self,
        inputs: Any,
        grad_logp_bt: Tensor,
        grad_entropy_bt: Tensor | None = None,
        grad_value_bt: Tensor | None = None,
        grad_cross_bt: Tensor | None = None,
        /,
        *,
        cross: float | None = None,
    ) -> None:
        """Add the parameter gradients of sum(cotangent * output) to `.grad`, bounding memory by passes.

        A row whose cotangents are all exactly zero is never run; cotangents beyond a row's length are ignored.

        Raises:
            InputError: a cotangent that is not [B,T] of `inputs`, or one for what the policy does not have.
        """
        ...

    def passes(self, inputs: Any, rows: Sequence[int], /) -> list[list[int]]:
        """Cut `rows` into passes that fit into memory; each row is in exactly one. Results do not depend on it."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter with its name; those of a critic of its own begin with `value_head.`."""
        ...

    def parameters(self) -> list[nn.Parameter]:
        """Return every trainable parameter, in the order of `named_parameters`."""
        ...

    def owners(self) -> list[list[nn.Parameter]]:
        """Return the parameters by who owns them: gradients are clipped and steps taken owner by owner."""
        ...

    def trainable_state(self) -> dict[str, Tensor]:
        """Return copies of all trainable parameters on the CPU, by name."""
        ...

    def load_trainable_state(self, state: Mapping[str, Tensor], /) -> None:
        """Copy what `trainable_state` returned into the parameters; InputError where names or shapes differ."""
        ...

    def reference(self) -> Scorer:
        """Return the policy as training began, for KL terms (what the adapters of one with adapters sit on)."""
        ...

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> Policy:
        """Return a copy as it is now, that shares no weights; `value_head`: with a fresh critic."""
        ...

    def save(self, folder: Path, /) -> None:
        """Write the final model as files; `folder` is made if it does not exist."""
        ...


@runtime_checkable
class PolicyStatistics(Protocol):
    """A policy that can say more of the distributions it drew from than their log-probs."""

    def statistics(self, inputs: Any, names: Sequence[str], /, **given: Tensor | None) -> dict[str, Tensor]:
        """Return statistics by name, [B,T]; InputError for a name that it does not know."""
        ...


# ------------------------------------------------------------------------------------- environments and their spaces


@dataclass(frozen=True)
class Discrete:
    """Actions 0 … count - 1."""

    count: int


@dataclass(frozen=True)
class Vector:
    """Vectors of `size` finite numbers."""

    size: int


@dataclass(frozen=True)
class Spaces:
    """What an environment that is not made of text shows, and what it is acted on with."""

    observation: Vector
    action: Discrete | Vector


@runtime_checkable
class Environment(Protocol[Observed_co, Action_contra]):
    """One episode: `reset` once, `step` until the end, `score`, `close`. Objects are single-use.

    Text is one instance, `Environment[grouprl.envs.Observation, str]`; with `Spaces`, observations are vectors and
    actions numbers or vectors, `Environment[np.ndarray, int]` or `Environment[np.ndarray, np.ndarray]`.
    """

    def reset(self, question: Any, seed: int, /) -> Observed_co:
        """Begin the episode that (prompt, seed) determine; returns the first observation."""
        ...

    def step(self, action: Action_contra, /) -> Any:
        """Act; returns a `grouprl.envs.Step`: observation, reward, terminated, truncated, valid, info."""
        ...

    def score(self) -> Mapping[str, float]:
        """Return the reward components of the whole episode, beside its steps' rewards; `correct` is 0 or 1."""
        ...

    def close(self) -> None:
        """Give back what the environment holds; may be called twice."""
        ...


# ------------------------------------------------------------------------------------------ what is trained on


@runtime_checkable
class PromptTask(Protocol[Prompted_co]):
    """Prompts by number. A prompt is what `question` returns: text, chat messages, or the beginning of an episode."""

    @property
    def name(self) -> str:
        """The name in messages and records."""
        ...

    def size(self, split: Literal["train", "eval"], /) -> int | None:
        """Return how many prompts a split has; None if it is endless."""
        ...

    def question(self, split: Literal["train", "eval"], index: int, /) -> Prompted_co:
        """Return prompt number `index` (from 0) of a split, always the same one; it has an `id` and `columns`.

        Raises:
            InputError: an unknown split, or an index beyond the size.
        """
        ...

    def fingerprint(self) -> str:
        """Return a hash of everything that decides what the prompts are; a resumed run refuses another one."""
        ...


@dataclass(frozen=True)
class StoredRow:
    """A completion that lies ready, with what is known of it."""

    completion: str
    reward: float
    correct: bool = False
    components: Mapping[str, float] = field(default_factory=dict)
    ids: tuple[int, ...] | None = None
    """Token ids as they were sampled; None: the text is encoded and an end token put behind it."""
    prompt_ids: tuple[int, ...] | None = None
    """Token ids of the prompt it was sampled behind; None: the prompt is encoded."""
    behavior_logp: tuple[float, ...] | None = None
    """Log-prob of each of `ids` under what sampled them; None: nobody did, the policy scores them itself."""
    truncated: bool = False


@runtime_checkable
class StoredRows(Protocol):
    """A task whose completions lie ready: pairs with a known winner, demonstrations, rollouts of another run.

    Nothing is sampled for it: the rows of a prompt are its group.
    """

    def stored_rows(self, question: Any, /) -> Sequence[StoredRow]:
        """Return the rows of a prompt, at least one; a pair has its winner (reward 1) first, its loser (0) second."""
        ...


class PromptSource(Protocol):
    """Deals out a task's training prompts, and goes on where a checkpoint was taken."""

    size: int | None
    """How many there are; None: they never end."""
    drawn: int
    """How many have been dealt out in this run."""

    def asks(self, count: int, answers: int, /) -> Sequence[Any]:
        """Return the next `count` prompts in the source's own order, each to be sampled `answers` times."""
        ...

    def ask(self, index: int, answers: int, /) -> Any:
        """Return prompt number `index` of the task under the next ordinal of this run."""
        ...

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        ...

    def restore(self, state: dict[str, Any], /) -> None:
        """Go on where `state` was taken."""
        ...
