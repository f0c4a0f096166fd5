"""The seams of the house: policies, environments, sources of data, samplers, exchanges of weights.

Everything may import this module; it imports nothing heavy and knows no engine, no tokenizer and no text: token ids,
action numbers and vectors are all *actions*, and a method only ever sees their log-probs. What crosses a seam is data:
a `Request` says what is to be sampled, `Samples` say what was, and neither holds a function. So the local decoder, a
server in another process and a policy that is not a language model implement the same names. `grouprl.testing` holds
any implementation to what is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from grouprl.core.errors import InputError

if TYPE_CHECKING:  # workers of environments import this module, and start in a fraction of the time without torch
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn
    from typing_extensions import Self

    from grouprl.core.json_types import State
    from grouprl.records.requests import RolloutRequest
    from grouprl.rewards.contract import Failure

NO_VERSION = -1
"""Version of a position that no policy wrote."""

Observed_co = TypeVar("Observed_co", covariant=True)
Action_contra = TypeVar("Action_contra", contravariant=True)
Prompted_co = TypeVar("Prompted_co", covariant=True)
Prompt_co = TypeVar("Prompt_co", covariant=True)
Prompt_contra = TypeVar("Prompt_contra", contravariant=True)
Action_co = TypeVar("Action_co", covariant=True)
Rows_co = TypeVar("Rows_co", covariant=True)
Step_contra = TypeVar("Step_contra", contravariant=True)
Inputs_contra = TypeVar("Inputs_contra", contravariant=True)
Request_contra = TypeVar("Request_contra", contravariant=True)
Rows = TypeVar("Rows")
Outcomes_co = TypeVar("Outcomes_co", covariant=True)
Found = TypeVar("Found")


@dataclass(frozen=True)
class EntropyScaling:
    """A temperature that follows the entropy H of each token's distribution: T·(1 + tau·ĥ) (HAPO, arXiv:2509.16591).

    ĥ in [-1, 1] is log H less `pivot`, divided by `above` where that is positive and by `below` where it is negative
    (both in nats, infinite where a side has no width: ĥ is 0 there). `released` divides the negative side by its signed
    minimum, as the authors' code does, so that ĥ is never negative.
    """

    tau: float
    pivot: float
    above: float
    below: float
    released: bool = False


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


# ---------------------------------------------------------------------------------------------------- policies


@runtime_checkable
class PolicyInputs(Protocol):
    """B rows of what a policy needs to score actions again: token ids, observations and actions, …

    A batch carries them (`Batch.inputs`) and no method looks inside.
    """

    def __len__(self) -> int:
        """Return B, the number of rows."""
        ...

    @property
    def width(self) -> int:
        """T, the number of positions of the longest row; 0 without rows."""
        ...

    def rows(self, index: Iterable[int]) -> PolicyInputs:
        """Return the rows of `index` (integers), in its order and cut to their own width."""
        ...

    def present_bt(self) -> Tensor:
        """[B,T] bool on the CPU: where a row has a position. Rows begin at position 0 and have no gaps."""
        ...

    def joined(self, others: Sequence[Self]) -> Self:
        """Return these rows and those of `others`, one after the other."""
        ...


@runtime_checkable
class FinalInputs(PolicyInputs, Protocol):
    """Inputs that know what was observed after the last action, so that a cut episode can be bootstrapped."""

    def finals(self) -> PolicyInputs | None:
        """Return one position for each row, which shows its final observation; None where that is not known.

        The action in it means nothing: only its value is read.
        """
        ...


@runtime_checkable
class Scorer(Protocol[Inputs_contra]):
    """What can say how probable given actions are: a policy, or a reference that no longer learns."""

    def logp(self, inputs: Inputs_contra, /) -> Tensor:
        """Return the log-prob of every action, [B,T], without a graph and exactly 0 beyond a row's length."""
        ...


@runtime_checkable
class Trainable(Protocol[Inputs_contra]):
    """What is trained: outputs of rows by name, and parameters that take the gradients of these outputs.

    A policy is one whose outputs include log-probs; a reward model, a value learner or a velocity field is one, too.
    """

    @property
    def device(self) -> torch.device:
        """Where the parameters live; results come back there."""
        ...

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of all outputs: float32 or float64."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs (`grouprl.core.outputs`); "cross@" stands for that name with any positive number."""
        ...

    def evaluate(self, inputs: Inputs_contra, names: Sequence[str], /, *, grad: bool = False) -> dict[str, Tensor]:
        """Return the outputs `names` of rows; a row's numbers depend on that row alone.

        An output has a number for every position, [B,T] and exactly 0 beyond a row's length, or one for every row, [B].
        `grad` keeps the graph, where an output has one.

        Raises:
            InputError: a name of which there is no output.
        """
        ...

    def backward(self, inputs: Inputs_contra, cotangents: Mapping[str, Tensor], /) -> None:
        """Add the parameter gradients of sum(cotangent * output) over all names to `.grad`, bounding memory by passes.

        A row whose cotangents are all exactly zero is never run; cotangents beyond a row's length are ignored.

        Raises:
            InputError: a cotangent that does not have the shape of its output, or a name of which there is no output.
        """
        ...

    def passes(self, inputs: Inputs_contra, rows: Sequence[int], /) -> list[list[int]]:
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

    def copied(self, *, trainable: bool = True) -> Trainable[Inputs_contra]:
        """Return a copy as it is now, that shares no weights."""
        ...

    def save(self, folder: Path, /) -> None:
        """Write the final model as files; `folder` is made if it does not exist."""
        ...


@runtime_checkable
class Policy(Trainable[Inputs_contra], Scorer[Inputs_contra], Protocol[Inputs_contra]):
    """What acts and is trained by the log-probs of its actions. It samples nothing: a `Sampler` does.

    `log_prob` and `entropy` are among its outputs, `value` where it has a critic.
    """

    def reference(self) -> Scorer[Inputs_contra]:
        """Return the policy as training began, for KL terms (what the adapters of one with adapters sit on)."""
        ...

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> Policy[Inputs_contra]:
        """Return a copy as it is now, that shares no weights; `value_head`: with a fresh critic."""
        ...


@runtime_checkable
class SpreadPolicy(Policy[Inputs_contra], Protocol[Inputs_contra]):
    """A policy whose weights lie on several processes: what goes through all of them is requested of it."""

    def run_passes(
        self,
        function: Callable[..., Mapping[str, float]],
        common: object,
        inputs: Inputs_contra,
        rows: Sequence[int],
        piece: Callable[[list[int]], object],
        names: Sequence[str],
        /,
    ) -> list[Mapping[str, float]]:
        """Go through `rows` pass by pass, somewhere: `function` is given a policy, `common` and a pass's `piece`.

        The function, which can be pickled by name, goes forward and backward once, through the outputs `names`.
        Returns what it found of each pass.
        """
        ...

    def clip(self, limit: float, /) -> float:
        """Scale the gradient to a norm of at most `limit`; return its norm before."""
        ...

    def save_parts(self, folder: Path, /) -> None:
        """Write weights and optimiser state from wherever they lie; OSError where that failed."""
        ...

    def load_parts(self, folder: Path, /) -> None:
        """Go on with what `save_parts` wrote, from whatever number of processes."""
        ...

    def snapshot(self) -> Scorer[Inputs_contra]:
        """Return the policy as it is now, frozen."""
        ...


@runtime_checkable
class SpreadOptimizer(Protocol):
    """The optimiser of a spread policy, in as many pieces."""

    def measured(self, measure: Callable[[torch.optim.Optimizer], Found], /) -> list[Found]:
        """Return what `measure`, which can be pickled by name, finds of the optimiser of each piece."""
        ...


@runtime_checkable
class GroupInfluence(Protocol[Inputs_contra]):
    """A policy that can say how training on one completion would move the others of its group."""

    def influence(
        self, inputs: Inputs_contra, group_b: Tensor, correct_b: Tensor, mask_bt: Tensor | None = None, /
    ) -> Tensor:
        """Return each token's influence on the log-probs of the correct completions of its group, [B,T]."""
        ...


# ------------------------------------------------------------------------------------- environments and their spaces


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
    """Arrays of finite numbers of one shape, each within its bounds."""

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -math.inf
    """Least value: one for all numbers, or one for each in row-major order."""
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
        """How many numbers a value has."""
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
    """One array by name for each of several spaces."""

    spaces: Mapping[str, ArraySpace] = field(default_factory=dict)


Space: TypeAlias = ArraySpace | DictSpace
ActionSpace: TypeAlias = Discrete | MultiDiscrete | Box


@dataclass(frozen=True)
class Spaces:
    """Observation and action spaces of an environment that is not made of text.

    Raises:
        InputError: actions that are pictures or several arrays, or a chain without a step.
    """

    observation: Space
    action: ActionSpace
    context: DictSpace = DictSpace()
    """Arrays that hold for a whole episode (a map, a graph), shown once, with its first observation."""
    chain: int = 1
    """Actions at most that the policy takes by its own dynamics before the environment is called, with all of them."""

    def __post_init__(self) -> None:
        if not isinstance(self.action, ActionSpace):
            raise InputError(f"actions are {self.action}", "they are Discrete, MultiDiscrete or a Box")
        if self.chain < 1:
            raise InputError(f"chain={self.chain}", "it is a number of actions", "1: the environment sees each")


@runtime_checkable
class Environment(Protocol[Observed_co, Action_contra]):
    """One episode: `reset` once, `step` until the end, `score`, `close`. Objects are single-use.

    Text is one instance, `Environment[grouprl.envs.Observation, str]`. With `Spaces`, observations are arrays or
    `grouprl.envs.ArrayObservation`, actions numbers or arrays: `Environment[np.ndarray, int]`; where `Spaces.chain` is
    above 1, `step` is given the array of all actions of a chain.
    """

    def reset(self, example: object, seed: int, /) -> Observed_co:
        """Begin the episode that (prompt, seed) determine; returns the first observation."""
        ...

    def step(self, action: Action_contra, /) -> object:
        """Act; returns a `grouprl.envs.Step`: observation, reward, terminated, truncated, valid, info."""
        ...

    def score(self) -> Mapping[str, float]:
        """Return the reward components of the whole episode, beside its steps' rewards; `correct` is 0 or 1."""
        ...

    def close(self) -> None:
        """Release what the environment holds; may be called twice."""
        ...


# ------------------------------------------------------------------------------------------ what is trained on


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


@runtime_checkable
class GroupScored(Protocol):
    """A task whose environments may leave the reward of an episode to a comparison with the others of its group."""

    scores_groups: bool
    """Whether they do; the environments then act in the trainer's process."""

    async def score_group(self, names: Sequence[tuple[str, int]], /) -> Sequence[dict[str, float] | Failure | None]:
        """Return the reward components of the episodes (prompt's id, seed) of a group, in this order.

        In place of components there may be a `grouprl.rewards.contract.Failure`, or None for an episode that did not
        reach its end.
        """
        ...


class PromptSource(Protocol):
    """Deals out a task's training prompts, and continues from a checkpoint."""

    size: int | None
    """How many there are; None: they never end."""
    sampled: int
    """How many have been dealt out in this run."""

    def requests(self, count: int, completions: int, /) -> Sequence[RolloutRequest]:
        """Return the next `count` prompts in the source's own order, each to be sampled `completions` times."""
        ...

    def request(self, index: int, completions: int, /) -> RolloutRequest:
        """Return prompt number `index` of the task under the next ordinal of this run."""
        ...

    def state(self) -> State:
        """Return plain data for a checkpoint."""
        ...

    def restore(self, state: State, /) -> None:
        """Go on where `state` was taken."""
        ...


__all__ = [
    "NO_VERSION",
    "ActionSpace",
    "ArraySpace",
    "Box",
    "DictSpace",
    "Discrete",
    "Engine",
    "EntropyScaling",
    "Environment",
    "FinalInputs",
    "GroupInfluence",
    "GroupScored",
    "Image",
    "MultiDiscrete",
    "Policy",
    "PolicyInputs",
    "PromptSource",
    "PromptTask",
    "Request",
    "RowSource",
    "SampleSource",
    "Sampler",
    "Samples",
    "SamplingSession",
    "Scorer",
    "Space",
    "Spaces",
    "SpreadOptimizer",
    "SpreadPolicy",
    "Trainable",
    "WeightSync",
]
