"""What is trained, and what scores actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:  # workers of environments import this module, and start in a fraction of the time without torch
    import torch
    from torch import Tensor, nn
    from typing_extensions import Self


Inputs_contra = TypeVar("Inputs_contra", contravariant=True)
Rows = TypeVar("Rows")
Found = TypeVar("Found")


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

    def fingerprints(self) -> list[bytes]:
        """Return a digest of each row, [B]; rows with the same one have the same log-probs under any policy."""
        ...


@runtime_checkable
class NumberedActions(Protocol):
    """Inputs whose actions have numbers: tokens of a vocabulary, moves of a game."""

    @property
    def action_ids(self) -> tuple[tuple[int, ...], ...]:
        """[B] the number of each action of a row."""
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
class DistributedPolicy(Policy[Inputs_contra], Protocol[Inputs_contra]):
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
class DistributedOptimizer(Protocol):
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
