"""Protocols of trainable models, of scorers of actions, and of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from grouprl.core.answering import Answering

if TYPE_CHECKING:  # environment workers import this module and start much faster without torch
    from typing import Self

    import torch
    from torch import Tensor, nn

    from grouprl.core.json_types import State


Inputs_contra = TypeVar("Inputs_contra", contravariant=True)
Rows = TypeVar("Rows")
Found = TypeVar("Found")


@runtime_checkable
class PolicyInputs(Protocol, metaclass=Answering):
    """B rows of the inputs that a policy needs to score actions again: token ids, observations and actions, …

    A batch carries them (`Batch.inputs`), and no method looks inside them.
    """

    def __len__(self) -> int:
        """Return B, the number of rows."""
        ...

    @property
    def width(self) -> int:
        """T, the number of positions of the longest row; 0 without rows."""
        ...

    def rows(self, index: Iterable[int]) -> PolicyInputs:
        """Return the rows with the numbers `index`, in that order and cut to their longest."""
        ...

    def present_bt(self) -> Tensor:
        """Return [B,T] bool on the CPU: True where a row has a position. Rows begin at position 0 and have no gaps."""
        ...

    def joined(self, others: Sequence[Self]) -> Self:
        """Return these rows and those of `others`, one after the other."""
        ...

    def fingerprints(self) -> list[bytes]:
        """Return a digest of each row, [B]; rows with the same digest have the same log-probs under any policy."""
        ...


@runtime_checkable
class NumberedActions(Protocol, metaclass=Answering):
    """Inputs whose actions are numbered: tokens of a vocabulary, moves of a game."""

    @property
    def action_ids(self) -> tuple[tuple[int, ...], ...]:
        """[B] the number of each action of a row."""
        ...


@runtime_checkable
class FinalInputs(PolicyInputs, Protocol, metaclass=Answering):
    """Inputs that hold the observation after the last action, so that the return of a truncated episode can be
    bootstrapped.
    """

    def finals(self) -> PolicyInputs | None:
        """Return inputs with one position per row, which shows the row's final observation; None if it is not known.

        The action of such a position is meaningless: only its value is read.
        """
        ...


@runtime_checkable
class Scorer(Protocol[Inputs_contra], metaclass=Answering):
    """A model that returns the log-probs of given actions: a policy, or a reference that no longer learns."""

    def logp(self, inputs: Inputs_contra, /) -> Tensor:
        """Return the log-prob of every action, [B,T], without a graph and exactly 0 beyond a row's length."""
        ...


@runtime_checkable
class Trainable(Protocol[Inputs_contra], metaclass=Answering):
    """A trainable model: it computes outputs of rows by name, and its parameters take the gradients of these outputs.

    A policy is a trainable model whose outputs include log-probs. Reward models, value learners and velocity fields are
    others.
    """

    @property
    def device(self) -> torch.device:
        """The device of the parameters and of all results."""
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
        """Return the outputs `names` of all rows; the numbers of a row depend on that row alone.

        An output has a number for every position, [B,T] and exactly 0 beyond a row's length, or one for every row, [B].
        `grad` keeps the graph, if an output has one.

        Raises:
            InputError: a name that is not an output.
        """
        ...

    def backward(self, inputs: Inputs_contra, cotangents: Mapping[str, Tensor], /) -> None:
        """Add the gradients of sum(cotangent * output) over all names to the parameters' `.grad`, pass by pass to bound
        memory.

        A row whose cotangents are all exactly zero is never run; cotangents beyond a row's length are ignored.

        Raises:
            InputError: a cotangent that does not have the shape of its output, or a name that is not an output.
        """
        ...

    def passes(self, inputs: Inputs_contra, rows: Sequence[int], /) -> list[list[int]]:
        """Divide `rows` into passes that fit into memory; each row is in exactly one. Results do not depend on the
        division.
        """
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every trainable parameter with its name; those of a critic of its own begin with `value_head.`."""
        ...

    def parameters(self) -> list[nn.Parameter]:
        """Return every trainable parameter, in the order of `named_parameters`."""
        ...

    def owners(self) -> list[list[nn.Parameter]]:
        """Return the parameters in groups by owner: gradients are clipped and steps are taken separately for each
        owner.
        """
        ...

    def trainable_state(self) -> dict[str, Tensor]:
        """Return copies of all trainable parameters on the CPU by name, followed by whatever else training changes
        (statistics of observations)."""
        ...

    def load_trainable_state(self, state: Mapping[str, Tensor], /) -> None:
        """Copy what `trainable_state` returned into the parameters. Raises InputError if names or shapes differ."""
        ...

    def copied(self, *, trainable: bool = True) -> Trainable[Inputs_contra]:
        """Return a copy of the model as it is now, which shares no weights with it."""
        ...

    def save(self, folder: Path, /) -> None:
        """Write the final model as files; `folder` is made if it does not exist."""
        ...


@runtime_checkable
class Policy(Trainable[Inputs_contra], Scorer[Inputs_contra], Protocol[Inputs_contra], metaclass=Answering):
    """A model that is trained by the log-probs of its actions. It does not sample; a `Sampler` does that.

    `log_prob` and `entropy` are among its outputs, and `value` if it has a critic.
    """

    def reference(self) -> Scorer[Inputs_contra]:
        """Return the policy as it was when training began, for KL terms; of a policy with adapters, the model without
        them.
        """
        ...

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> Policy[Inputs_contra]:
        """Return a copy of the policy as it is now, which shares no weights; `value_head` adds a fresh critic."""
        ...


@runtime_checkable
class FollowingScorer(Scorer[Inputs_contra], Protocol[Inputs_contra], metaclass=Answering):
    """A copy of a policy whose weights move towards those of the policy: a reference that follows it."""

    def move(self, share: float, /) -> None:
        """Move the weights by `share` of the way towards the policy's current ones; 1 makes them equal."""
        ...

    def trainable_state(self) -> dict[str, Tensor]:
        """Return copies of the weights on the CPU, by name, without those of a critic."""
        ...

    def load_trainable_state(self, state: Mapping[str, Tensor], /) -> None:
        """Copy what `trainable_state` returned into the weights."""
        ...


class PassHelpers(Protocol[Inputs_contra]):
    """Several processes that each take a share of the passes of one model."""

    def evaluate(self, inputs: Inputs_contra, names: Sequence[str], /) -> dict[str, Tensor]:
        """Return the outputs `names` of rows without a graph; see `Trainable.evaluate`."""
        ...

    def backward(self, inputs: Inputs_contra, cotangents: Mapping[str, Tensor], /) -> None:
        """Add the gradients of sum(cotangent * output) of the rows; see `Trainable.backward`."""
        ...

    def run_passes(
        self,
        function: Callable[..., Found],
        common: object,
        inputs: Inputs_contra,
        rows: Sequence[int],
        piece: Callable[[list[int]], object],
        names: Sequence[str],
        /,
    ) -> list[Found]:
        """Process `rows` pass by pass, in any process: `function` gets a model, `common` and the `piece` of a pass.

        The function must be picklable by name and runs forward and backward once, through the outputs `names`. Return
        its result for each pass.
        """
        ...


@runtime_checkable
class DistributedModel(
    Trainable[Inputs_contra], PassHelpers[Inputs_contra], Protocol[Inputs_contra], metaclass=Answering
):
    """A model whose weights are divided among several processes; operations on all of them are its methods."""

    def clip(self, limit: float, /) -> float:
        """Scale the gradient to a norm of at most `limit`; return the norm that it had before."""
        ...

    def look(self, every: int, /, *, first: bool) -> tuple[float, float]:
        """Add one entry in `every` of the gradient to the sum of those looked at, which the `first` one begins; return
        the squared norms of these entries and of the sum.
        """
        ...

    def gradient_aside(self) -> AbstractContextManager[Callable[[], float]]:
        """Set the gradient aside within this context, whose function returns its product with the gradient accumulated
        meanwhile, and zeroes the latter.
        """
        ...

    def each_weight(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the trainable weights in the order of `named_parameters`; this process holds a few at a time."""
        ...

    def save_parts(self, folder: Path, /) -> None:
        """Write weights and optimiser state from every process that holds some; raise OSError if that fails."""
        ...

    def load_parts(self, folder: Path, /) -> None:
        """Continue from what `save_parts` wrote, whatever the number of processes was."""
        ...

    def load_file(self, path: Path, /) -> None:
        """Have every process read its part of the trainable weights from a safetensors file that all of them see."""
        ...


@runtime_checkable
class DistributedPolicy(
    DistributedModel[Inputs_contra], Policy[Inputs_contra], Protocol[Inputs_contra], metaclass=Answering
):
    """A policy whose weights are divided among several processes, which also keep copies of it."""

    def snapshot(self) -> Scorer[Inputs_contra]:
        """Return a frozen copy of the policy as it is now."""
        ...

    def follower(self, name: str, /) -> FollowingScorer[Inputs_contra]:
        """Return a copy of the policy as it is now that can follow it; another one of the same name is given up."""
        ...

    def vectors(self, store: State, /) -> AbstractContextManager[object]:
        """Open the vectors over the weights, a `VectorSpace` in parts; `store` may hold some of one process, whole."""
        ...


def has_memory(model: object) -> bool:
    """Return whether the actions of a policy over arrays depend on earlier positions of their row, so that none can be
    scored alone (`grouprl.policy.ArrayPolicy.has_memory`).
    """
    return bool(getattr(model, "has_memory", False))


def distributed(model: object) -> DistributedModel[PolicyInputs] | None:
    """Return the model as one whose weights are divided among processes; None if this process has them all.

    It is the only place that asks, so that training, references and checkpoints cannot disagree on it.
    """
    return model if hasattr(model, "run_passes") and isinstance(model, DistributedModel) else None


def pass_helpers(model: object) -> PassHelpers[PolicyInputs] | None:
    """Return the processes that share a model's passes: those among which it is divided, or those that hold copies of
    it (`helpers`); None if this process makes them all.
    """
    return distributed(model) or getattr(model, "helpers", None)


def distributed_policy(policy: Policy[PolicyInputs]) -> DistributedPolicy[PolicyInputs] | None:
    """Return the policy as `distributed` does, with the copies of it that the processes keep."""
    found = distributed(policy)
    assert found is None or isinstance(found, DistributedPolicy)
    return found


@runtime_checkable
class DistributedOptimizer(Protocol, metaclass=Answering):
    """The optimiser of a distributed policy, divided as its weights are."""

    def measured(self, measure: Callable[[torch.optim.Optimizer], Found], /) -> list[Found]:
        """Return the result of `measure`, which must be picklable by name, for the optimiser of each piece."""
        ...


@runtime_checkable
class ComparablePolicy(Policy[Inputs_contra], Protocol[Inputs_contra], metaclass=Answering):
    """A policy that knows the divergence of its whole distributions from those of an earlier copy, not only of the
    actions taken.
    """

    def kl_from(self, earlier: Self, inputs: Inputs_contra, /, *, grad: bool = False) -> Tensor:
        """Return KL(earlier || policy) at every position, [B,T] and exactly 0 beyond a row's length.

        `grad` keeps the graph of the policy's own side; the earlier one is a constant.

        Raises:
            InputError: distributions whose divergence has no closed form.
        """
        ...


@runtime_checkable
class GroupInfluence(Protocol[Inputs_contra], metaclass=Answering):
    """A policy that can estimate how training on one completion would change log-probs of others in its group."""

    def influence(
        self, inputs: Inputs_contra, group_b: Tensor, correct_b: Tensor, mask_bt: Tensor | None = None, /
    ) -> Tensor:
        """Return each token's influence on the log-probs of the correct completions of its group, [B,T]."""
        ...


@runtime_checkable
class ValueLearner(Policy[Inputs_contra], Protocol[Inputs_contra], metaclass=Answering):
    """A policy that acts by the values of actions, and keeps a follower of these values, from which targets are made.

    Its outputs are `action_value`, [B,T], the value of the action taken, with a gradient; and `best_after`, [B,T], the
    follower's value of the best action after each one, without: 0 where the observation after it is not known.
    """

    def follow(self) -> None:
        """Let the follower take the values as they are now."""

    def explore(self, share: float) -> None:
        """Set the share of random actions; it is part of the weights, as the follower is."""
