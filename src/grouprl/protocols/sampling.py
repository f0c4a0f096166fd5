"""Requests, samples, what samples them, and how new weights get there."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from grouprl.core.errors import InputError

if TYPE_CHECKING:  # workers of environments import this module, and start in a fraction of the time without torch
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


from grouprl.protocols.policies import Policy

Prompt_co = TypeVar("Prompt_co", covariant=True)
Prompt_contra = TypeVar("Prompt_contra", contravariant=True)
Action_co = TypeVar("Action_co", covariant=True)


NO_VERSION = -1
"""Version of a position that no policy wrote."""


class EntropyScaling(Protocol):
    """A rule by which the temperature of each token follows the entropy of its distribution.

    A frozen record: requests of equal rules are sampled together, and a rule can be pickled.
    """

    def factors(self, entropy_n: Tensor, /) -> Tensor:
        """Return the factors [N] of the temperature for distributions of these entropies [N] in nats."""
        ...

    def __hash__(self) -> int:
        """Return a number that is the same for equal rules."""
        ...


@dataclass(frozen=True)
class Grammar:
    """What a completion of tokens may be, as llguidance reads it."""

    lark: str
    behind: int = 0
    """How many tokens at the end of the prompt were sampled under it before: the grammar continues after them."""


@dataclass(frozen=True)
class Request(Generic[Prompt_co]):
    """One requested sample: everything its outcome depends on besides the weights.

    A prompt is whatever the policy acts on: token ids of a language model, an observation of an environment, the
    condition of a denoising chain. Actions are the policy's, too: token ids, moves, vectors. What a policy of another
    kind has no use for (`top_p`, `stop_texts` …) keeps its default, and such a sampler refuses other values.

    Raises:
        InputError: a setting out of range.
    """

    prompt: Prompt_co
    budget: int
    """Actions (tokens) at most, the one that ends the sample included."""
    seed: int = 0
    """The sample is a function of (prompt, settings, seed, weights), whatever is sampled beside it."""
    temperature: float = 1.0
    greedy: bool = False
    """The most probable action each time; the seed has no effect, log-probs are those at `temperature`."""
    top_p: float = 1.0
    """Nucleus sampling; 1 keeps everything."""
    top_k: int = 0
    """Sampling from the k most probable actions; 0: from all."""
    stop: tuple[tuple[int, ...], ...] = ()
    """Token sequences that end the sample beside the policy's end tokens; they stay in it."""
    stop_texts: tuple[str, ...] = ()
    """Texts that end the sample with the token that completes them, which stays in it whole."""
    entropy_scaling: EntropyScaling | None = None
    """Changes the temperature token by token. Log-probs are then those of the distribution sampled from, entropies
    those at `temperature`."""
    sampled: int = 0
    """How many actions at the end of the prompt were sampled with this seed before: its random numbers continue after
    them, so that a sample taken in pieces is the sample taken at once."""
    name: Hashable = None
    """Within a session a request continues the one of the same name before it; None: it is on its own."""
    agent: int = 0
    """Whose policy acts, where there are several."""
    grammar: Grammar | None = None
    """What the sample may be. Log-probs and entropies are then those of the distribution over what the grammar allows,
    which a trainer's are not: such samples are for serving."""

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise InputError(f"budget={self.budget}", "A sample has at least one action", "Give 1 or more")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise InputError(
                f"temperature={self.temperature}", "It is positive", "For the most probable token use greedy"
            )
        if not 0 < self.top_p <= 1:
            raise InputError(
                f"top_p={self.top_p}", "It is a share of the probability, 0 < top_p <= 1", "1 keeps everything"
            )
        if self.top_k < 0:
            raise InputError(f"top_k={self.top_k}", "It is a number of tokens", "0 keeps everything")
        if not all(self.stop):
            raise InputError("An empty stop sequence", "It would end every completion at once", "Leave it out")
        if not all(self.stop_texts):
            raise InputError("An empty stop text", "It would end every completion at once", "Leave it out")
        if self.sampled < 0:
            raise InputError(f"sampled={self.sampled}", "It is a number of actions", "0 for a sample that begins here")


@dataclass(frozen=True)
class Samples(Generic[Action_co]):
    """What came of B requests, in their order; T is the length of the longest sample.

    Raises:
        InputError: arrays whose shapes do not belong to the actions.
    """

    actions: tuple[tuple[Action_co, ...], ...]
    """[B] the actions of each sample; token ids of a language model, its end token included where it was sampled."""
    logp_bt: NDArray[np.floating]
    """[B,T] log-prob of each action at the request's temperature, before top-k and top-p; 0 beyond the end."""
    truncated_b: NDArray[np.bool_]
    """[B] True where the budget ran out before the sample ended by itself."""
    exact: bool
    """Whether `logp_bt` are, but for the rounding of single precision, what the policy in training computes for the
    same actions under the weights of their version. If not, the trainer computes old log-probs itself, and those here
    are the behaviour policy's alone."""
    entropy_bt: NDArray[np.floating] | None = None
    """[B,T] entropy in nats of the distribution at the request's temperature, 0 beyond the end; None: not known."""
    version_bt: NDArray[np.int64] | None = None
    """[B,T] version of the weights that sampled each action, `NO_VERSION` beyond the end; None: never published."""
    states: tuple[tuple[object, ...], ...] | None = None
    """[B] the state before each action, where the policy has dynamics of its own; None: the prompt decides."""

    def __post_init__(self) -> None:
        rows, longest = len(self.actions), max(map(len, self.actions), default=0)
        for name in ("logp_bt", "entropy_bt", "version_bt"):
            array = getattr(self, name)
            if array is not None and tuple(array.shape) != (rows, longest):
                raise InputError(
                    f"{name} has the shape {tuple(array.shape)}",
                    f"the longest of {rows} samples has {longest} actions, so it is ({rows}, {longest})",
                )
        if self.states is not None and [len(x) for x in self.states] != [len(x) for x in self.actions]:
            raise InputError("states and actions are of different numbers", "every action has the state before it")
        if tuple(self.truncated_b.shape) != (rows,):
            raise InputError(f"truncated_b has the shape {tuple(self.truncated_b.shape)}", f"there are {rows} samples")

    def __len__(self) -> int:
        return len(self.actions)


@runtime_checkable
class SamplingSession(Protocol[Prompt_contra, Action_co]):
    """Whatever samples requests: a sampler, or a session of one."""

    def sample(self, requests: Sequence[Request[Prompt_contra]]) -> Samples[Action_co]:
        """Return the samples that `requests` ask for, in their order.

        Raises:
            InputError: a request that this sampler cannot honour. It never leaves a setting out silently.
        """


@runtime_checkable
class Sampler(Protocol[Prompt_contra, Action_co]):
    """Samples from a policy. Every sample of a run comes through one: training, episodes, evaluation, serving.

    A sample depends on its request and the weights alone: not on the requests beside it, their number or their order.
    """

    @property
    def exact(self) -> bool:
        """Whether samples are `exact`, as far as it is known beforehand; each `Samples` states its own."""

    def sample(self, requests: Sequence[Request[Prompt_contra]]) -> Samples[Action_co]:
        """Return the samples that `requests` ask for, in their order. Names have no effect outside a session.

        Raises:
            InputError: a request that this sampler cannot honour. It never leaves a setting out silently.
        """

    def session(self) -> AbstractContextManager[SamplingSession[Prompt_contra, Action_co]]:
        """Open a session: requests of one name continue each other in it (the turns of an episode).

        What the sampler keeps for them (such as keys and values of what it has read) ends with the session, and
        weights do not change while one is open. A sampler that keeps nothing returns itself.
        """


@runtime_checkable
class WeightSync(Protocol):
    """Brings weights from the trainer to the sampler."""

    @property
    def version(self) -> int:
        """The version that samples are sampled with from now on; `NO_VERSION` before the first one."""

    def publish(self, version: int, policy: Policy) -> None:
        """Let the weights of `policy` as they are now be version `version`; a version published before is replaced.

        `policy` is the one in training (`trainable_state()` are its weights). Versions never go back.

        Raises:
            InputError: a version below the last one.
        """


@runtime_checkable
class Engine(Sampler[Prompt_contra, Action_co], WeightSync, Protocol[Prompt_contra, Action_co]):
    """A run's sampler: it receives new weights before the next requests."""


RunSampler: TypeAlias = Sampler[Any, Any]
"""A sampler whose prompts and actions are those of the run's task: token ids, or vectors and numbers."""


RunEngine: TypeAlias = Engine[Any, Any]
"""An engine of the same kind."""
