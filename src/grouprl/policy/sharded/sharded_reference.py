"""Policies beside one on several ranks, which do not learn: references, each rank with its own part of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from grouprl.core.outputs import LOG_PROB
from grouprl.policy.language.reference import no_initial_policy, no_teacher
from grouprl.policy.sharded import guide_work
from grouprl.policy.sharded import rank_work as work
from grouprl.policy.sharded.ranks import Ranks
from grouprl.policy.state import check_state
from grouprl.records.tokens import Tokens
from grouprl.storage.model_files import write_tensors
from grouprl.storage.tensors import described_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

HEAD = "value_head."
"""Beginning of the names of a critic's parameters, which no reference has."""


class KeepsOthers(Protocol):
    """A policy on several ranks, which also keep copies of it and other models by name."""

    ranks: Ranks

    def score(self, tokens: Tokens, names: tuple[str, ...], *, name: str, base: bool) -> dict[str, Tensor]:
        """Return outputs of rows from the model called `name`; `base` switches adapters off."""
        ...

    def gathered(self, names: Iterable[str], name: str) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters of the model called `name`, whole and on the CPU, a few at a time in memory."""
        ...

    def load_state_of(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Distribute `state` over the model called `name`."""
        ...

    def changed(self) -> None:
        """Note that weights have changed, so that full copies are out of date."""
        ...


class ShardedReference:
    """A model on the ranks that does not learn: the reference of KL terms.

    Args:
        policy: the policy whose ranks keep it.
        name: the name under which they do.
        base: whether it is the policy without its adapters.
    """

    def __init__(self, policy: KeepsOthers, name: str, *, base: bool = False) -> None:
        self._policy, self._name, self._base = policy, name, base

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the model."""
        found: PreTrainedTokenizerBase = self._policy.ranks.station.kept[self._name].tokenizer
        return found

    def logp(self, tokens: Tokens) -> Tensor:
        """Return the log-prob of every response token, [B,T], without a graph."""
        return self._policy.score(tokens, (LOG_PROB,), name=self._name, base=self._base)[LOG_PROB]

    def whole(self) -> ShardedActor:
        """Return the model as a policy to sample from.

        Raises:
            InputError: it has no weights of its own.
        """
        if self._base:
            raise no_initial_policy()
        return ShardedActor(self._policy, self._name)

    def teach(self) -> None:
        """Have the policy compare its distributions with those of this model, on every rank.

        Raises:
            InputError: it has no weights of its own.
        """
        if self._base:
            raise no_teacher()
        self._policy.ranks.each(guide_work.teach, self._name)

    def parts(self) -> dict[str, nn.Parameter]:
        """Return rank 0's part of each weight by name, with the shape of the whole; a critic has none here."""
        own = dict(self._policy.ranks.station.kept[self._name].named_parameters())
        return {name: each for name, each in own.items() if not name.startswith(HEAD)}

    def read(self, path: Path) -> None:
        """Have every rank read its part of the weights from a safetensors file.

        Raises:
            InputError: the file holds other weights.
            RunError: it is not a whole safetensors file.
        """
        check_state(self.parts(), described_tensors(path))
        self._policy.ranks.each(guide_work.read_file, guide_work.FromFile(self._name, path))
        self._policy.changed()

    def write(self, path: Path) -> None:
        """Write the weights to a safetensors file, tensor by tensor.

        Raises:
            OSError: the file could not be written.
        """
        own = self.parts()
        described = [(name, each.dtype, tuple(each.shape)) for name, each in own.items()]
        write_tensors(path, described, self._policy.gathered(list(own), self._name))


class ShardedActor:
    """A reference on several ranks as a policy to sample from, in full copies; all else is that of its parts.

    Args:
        policy: the policy whose ranks keep it.
        name: the name under which they do.
    """

    def __init__(self, policy: KeepsOthers, name: str) -> None:
        self.policy, self.name = policy, name

    def __getattr__(self, name: str) -> object:
        return getattr(self.policy.ranks.station.kept[self.name], name)

    @property
    def alike(self) -> bool:
        """True if it is a copy of the policy, so that a full copy of the policy can take its weights."""
        return work.BUILD_REFERENCE not in self.policy.ranks.station.kept

    def evaluate(self, tokens: Tokens, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the outputs `names` of the responses of `tokens`, without a graph."""
        return self.policy.score(tokens, tuple(names), name=self.name, base=False)

    def copy_beside(self) -> None:
        """Have every rank keep a full copy of this model beside that of the policy."""
        self.policy.ranks.each(guide_work.copy_reference, self.name)


def add_to_average(policy: KeepsOthers, name: str, share: float) -> None:
    """Have each rank add its part of the weights of the model called `name`, times `share`, to those of an average."""
    policy.ranks.each(guide_work.add_to_average, guide_work.Addend(name, share))


def averaged(policy: KeepsOthers) -> ShardedReference:
    """Return the reference that the ranks have built, with the weights that were added up."""
    policy.ranks.each(guide_work.keep_average)
    policy.changed()
    return ShardedReference(policy, work.REFERENCE)


class ShardedFollower(ShardedReference):
    """A copy of a sharded policy that follows it, without the critic's parameters in its state."""

    def move(self, share: float) -> None:
        """Move the weights by `share` of the way towards the policy's."""
        self._policy.ranks.each(work.move, work.Move(self._name, share))

    def trainable_state(self) -> dict[str, Tensor]:
        """Return the weights, whole and on the CPU, by name."""
        return dict(self._policy.gathered(list(self.parts()), self._name))

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """Distribute what `trainable_state` returned."""
        self._policy.load_state_of(self._name, state)
