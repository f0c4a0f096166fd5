"""Requests, samples, samplers, and the exchange of weights."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from grouprl.core.answering import Answering
from grouprl.core.errors import InputError

if TYPE_CHECKING:  # environment workers import this module and start much faster without torch
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


from grouprl.protocols.policies import Policy

Prompt_co = TypeVar("Prompt_co", covariant=True)
Prompt_contra = TypeVar("Prompt_contra", contravariant=True)
Action_co = TypeVar("Action_co", covariant=True)


NO_VERSION = -1
"""Version given to a position that no policy sampled."""


class EntropyScaling(Protocol):
    """A rule by which the temperature of each token follows the entropy of its distribution.

    Rules are frozen records that can be pickled; requests with equal rules are sampled together.
    """

    def factors(self, entropy_n: Tensor, /) -> Tensor:
        """Return the factors [N] by which the temperature is multiplied, for distributions with these entropies [N] in
        nats.
        """
        ...

    def __hash__(self) -> int:
        """Return a number that is the same for equal rules."""
        ...


@dataclass(frozen=True)
class Grammar:
    """A grammar that a completion of tokens must match, as llguidance reads it."""

    lark: str
    behind: int = 0
    """Number of tokens at the end of the prompt that were sampled under this grammar before: it continues after them.
    """


@dataclass(frozen=True)
class Request(Generic[Prompt_co]):
    """One requested sample: everything its outcome depends on besides the weights.

    A prompt is whatever the policy acts on: token ids of a language model, an observation of an environment, the
    condition of a denoising chain. Actions are the policy's, too: token ids, moves, vectors. Settings that a kind of
    policy cannot use (`top_p`, `stop_texts` …) keep their defaults, and its sampler refuses other values.

    Raises:
        InputError: a setting out of range.
    """

    prompt: Prompt_co
    budget: int
    """Largest number of actions (tokens), including the one that ends the sample."""
    seed: int = 0
    """The sample is a function of (prompt, settings, seed, weights), whatever else is sampled in the same call."""
    temperature: float = 1.0
    greedy: bool = False
    """Whether to take the most probable action each time; the seed then has no effect, and log-probs are those at
    `temperature`.
    """
    top_p: float = 1.0
    """Probability mass of nucleus sampling; 1 keeps every action."""
    top_k: int = 0
    """Number of the most probable actions that are sampled from; 0 for all."""
    stop: tuple[tuple[int, ...], ...] = ()
    """Token sequences that end the sample, in addition to the policy's end tokens; they stay in it."""
    stop_texts: tuple[str, ...] = ()
    """Texts that end the sample with the token that completes them; the whole token stays in the sample."""
    entropy_scaling: EntropyScaling | None = None
    """Rule that changes the temperature token by token. Log-probs are then those of the distribution sampled from,
    entropies those at `temperature`.
    """
    sampled: int = 0
    """Number of actions at the end of the prompt that were sampled with this seed before: its random numbers continue
    after them, so that a sample taken in pieces equals the sample taken at once.
    """
    name: Hashable = None
    """Within a session, a request continues the previous one with the same name; None: it continues none."""
    agent: int = 0
    """Number of the agent whose policy acts, if there are several."""
    grammar: Grammar | None = None
    """Grammar that the sample must match. Log-probs and entropies are then those of the distribution over the actions
    that the grammar allows, unlike a trainer's: such samples are for serving.
    """

    min_p: float = 0.0
    """Least probability of an action that is sampled from, as a share of the most probable one's; 0 for all."""

    def __post_init__(self) -> None:
        if self.budget < 1:
            raise InputError(f"budget={self.budget}", "A sample needs at least one action", "Give 1 or more")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise InputError(
                f"temperature={self.temperature}", "It must be positive", "Use greedy for the most probable token"
            )
        if not 0 < self.top_p <= 1:
            raise InputError(
                f"top_p={self.top_p}",
                "It must be a share of the probability, 0 < top_p <= 1",
                "Set it to 1 to keep everything",
            )
        if not 0 <= self.min_p <= 1:
            raise InputError(
                f"min_p={self.min_p}", "It must be a share, 0 <= min_p <= 1", "Set it to 0 to keep everything"
            )
        if self.top_k < 0:
            raise InputError(
                f"top_k={self.top_k}", "It must be a number of tokens, at least 0", "Set it to 0 to keep everything"
            )
        if not all(self.stop):
            raise InputError("An empty stop sequence", "It would end every completion at once", "Leave it out")
        if not all(self.stop_texts):
            raise InputError("An empty stop text", "It would end every completion at once", "Leave it out")
        if self.sampled < 0:
            raise InputError(
                f"sampled={self.sampled}",
                "It must be a number of actions, at least 0",
                "Set it to 0 for a sample that begins here",
            )


@dataclass(frozen=True)
class Samples(Generic[Action_co]):
    """The samples of B requests, in their order; T is the length of the longest sample.

    Raises:
        InputError: arrays whose shapes do not fit the actions.
    """

    actions: tuple[tuple[Action_co, ...], ...]
    """[B] the actions of each sample; for a language model its token ids, including the end token if it was sampled."""
    logp_bt: NDArray[np.floating]
    """[B,T] log-prob of each action at the request's temperature, before top-k and top-p; 0 beyond the end."""
    truncated_b: NDArray[np.bool_]
    """[B] True where the budget ran out before the sample ended by itself."""
    exact: bool
    """Whether `logp_bt` equal, up to rounding in single precision, what the policy in training computes for the same
    actions under the weights of their version. If not, the trainer computes old log-probs itself, and these are only
    those of the behaviour policy.
    """
    entropy_bt: NDArray[np.floating] | None = None
    """[B,T] entropy in nats of the distribution at the request's temperature, 0 beyond the end; None: not known."""
    version_bt: NDArray[np.int64] | None = None
    """[B,T] version of the weights that sampled each action, `NO_VERSION` beyond the end; None if no version was
    published.
    """
    states: tuple[tuple[object, ...], ...] | None = None
    """[B] the state before each action, for a policy with its own dynamics; None: the prompt determines the states."""
    origins: tuple[tuple[NDArray[np.floating] | None, ...], ...] | None = None
    """[B] the numbers that each action was made of, where they cannot be read back from it, as those that are squashed
    into bounds; None: every action is what was sampled.
    """

    def __post_init__(self) -> None:
        rows, longest = len(self.actions), max(map(len, self.actions), default=0)
        for name in ("logp_bt", "entropy_bt", "version_bt"):
            array = getattr(self, name)
            if array is not None and tuple(array.shape) != (rows, longest):
                raise InputError(
                    f"{name} has the shape {tuple(array.shape)}",
                    f"the longest of {rows} samples has {longest} actions, so it must be ({rows}, {longest})",
                )
        if self.states is not None and [len(x) for x in self.states] != [len(x) for x in self.actions]:
            raise InputError("states and actions differ in number", "every action needs the state before it")
        if self.origins is not None and [len(x) for x in self.origins] != [len(x) for x in self.actions]:
            raise InputError("origins and actions differ in number", "every action has its own, or None")
        if tuple(self.truncated_b.shape) != (rows,):
            raise InputError(f"truncated_b has the shape {tuple(self.truncated_b.shape)}", f"there are {rows} samples")

    def __len__(self) -> int:
        return len(self.actions)


@runtime_checkable
class SamplingSession(Protocol[Prompt_contra, Action_co], metaclass=Answering):
    """A sampler, or a session of one."""

    def sample(self, requests: Sequence[Request[Prompt_contra]]) -> Samples[Action_co]:
        """Return the samples that `requests` ask for, in their order.

        Raises:
            InputError: a request that this sampler cannot honour. It never leaves a setting out silently.
        """


@runtime_checkable
class Sampler(Protocol[Prompt_contra, Action_co], metaclass=Answering):
    """Samples from a policy. Every sample of a run comes through one: training, episodes, evaluation, serving.

    A sample depends on its request and the weights alone: not on other requests, their number or their order.
    """

    @property
    def exact(self) -> bool:
        """True if samples are expected to be `exact`; each `Samples` states whether its own are."""

    def sample(self, requests: Sequence[Request[Prompt_contra]]) -> Samples[Action_co]:
        """Return the samples that `requests` ask for, in their order. Names have no effect outside a session.

        Raises:
            InputError: a request that this sampler cannot honour. It never leaves a setting out silently.
        """

    def session(self) -> AbstractContextManager[SamplingSession[Prompt_contra, Action_co]]:
        """Open a session, in which requests with the same name continue each other (the turns of an episode).

        What the sampler keeps for them (such as the keys and values of tokens that it has read) is released with the
        session, and weights do not change while a session is open. A sampler that keeps nothing returns itself.
        """


@runtime_checkable
class WeightSync(Protocol, metaclass=Answering):
    """Transfer of weights from the trainer to the sampler."""

    @property
    def version(self) -> int:
        """The version of the weights that the next samples come from; `NO_VERSION` before the first one."""

    def publish(self, version: int, policy: Policy) -> None:
        """Publish the current weights of `policy` as version `version`; they replace those published before.

        `policy` is the one in training (`trainable_state()` are its weights). Versions never decrease.

        Raises:
            InputError: a version lower than the last one.
        """


@runtime_checkable
class Engine(Sampler[Prompt_contra, Action_co], WeightSync, Protocol[Prompt_contra, Action_co], metaclass=Answering):
    """A run's sampler, which can receive new weights between requests."""


RunSampler: TypeAlias = Sampler[Any, Any]
"""A sampler whose prompts and actions are those of the run's task: token ids, or vectors and numbers."""


RunEngine: TypeAlias = Engine[Any, Any]
"""An engine with such prompts and actions."""
