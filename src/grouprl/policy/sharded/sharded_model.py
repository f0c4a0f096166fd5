"""A model whose weights and optimiser are divided among several ranks, as rank 0 sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import Tensor, nn

from grouprl.core.spans import span, spanned
from grouprl.policy.autograd import Ctx
from grouprl.policy.devices import Precision
from grouprl.policy.language.statistics import refuse_readings
from grouprl.policy.language.text import TextModel
from grouprl.policy.lora import is_adapted
from grouprl.policy.microbatch import join_passes
from grouprl.policy.sharded import guide_work
from grouprl.policy.sharded import rank_work as work
from grouprl.policy.sharded.rank_checkpoint import load_parts, save_parts
from grouprl.policy.sharded.rank_model import RankModel
from grouprl.policy.sharded.rank_work import Builders, Passes, Pull, Scoring
from grouprl.policy.sharded.ranks import Ranks
from grouprl.policy.sharded.row_split import split_over_ranks
from grouprl.policy.sharded.sharded_weights import StoredTensor, checkpoint_tensors, entries, save_adapters
from grouprl.policy.state import check_cotangents, check_outputs, check_state, live_rows
from grouprl.protocols import Trainable
from grouprl.records.tokens import Tokens
from grouprl.storage.tensors import described_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Cut = list[list[list[int] | None]]
"""The passes of each rank, the same number for all; None stands for an empty pass."""
PIECE = 2**24
"""Bytes of parameters that are gathered at a time; more if a single one is larger."""
Found = TypeVar("Found")


class ShardedModel(TextModel):
    """A transformers model, sharded over ranks by FSDP2: no process holds it whole, unless a copy is asked for.

    Rows are distributed over ranks by tokens, rows of one prompt together. Except for the order of sums, results do not
    depend on the number of ranks.

    Args:
        ranks: all ranks, led by this process.
        builders: builder of each rank's part, and of full copies; it is sent to every rank.
    """

    def __init__(self, ranks: Ranks, builders: Builders) -> None:
        self.ranks, self._builders = ranks, builders
        ranks.each(work.build, builders)
        self._part: RankModel = ranks.station.kept[work.POLICY]
        self.tokenizer, self.pass_settings = self._part.tokenizer, self._part.pass_settings
        self._held: str | None = None
        """The name of the model whose current weights full copies have; None: older ones."""
        self._drops = any(isinstance(m, nn.Dropout) and m.p > 0 for m in self._part.model.modules()) and is_adapted(
            self._part.model
        )

    # --------------------------------------------------------------------------- what is known without any exchange

    @property
    def model(self) -> PreTrainedModel:
        """Rank 0's part of the model, for its configuration and its names; it computes only with the other ranks."""
        return self._part.model

    @contextmanager
    def full_precision(self) -> Iterator[None]:
        """Change nothing: the products of a part are in one type for good."""
        yield

    @property
    def engine(self) -> str:
        """The engine of training passes."""
        return self._part.engine

    @property
    def precision(self) -> Precision:
        """The precision of products in training passes."""
        return self._part.precision

    @property
    def device(self) -> torch.device:
        """The device of results."""
        return self._part.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self._part.dtype

    @property
    def score_dtype(self) -> torch.dtype:
        """The type of log-probs, entropies and values."""
        return self._part.score_dtype

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        return self._part.eos_ids

    @property
    def widths(self) -> tuple[int, int]:
        """The hidden width of the model and its number of layers."""
        return self._part.widths

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model was built for; None if unknown."""
        return self._part.max_positions

    # ----------------------------------------------------------------------------------------- what all ranks compute

    def evaluate(self, tokens: Tokens, names: Sequence[str], /, *, grad: bool = False) -> dict[str, Tensor]:
        """Return the outputs `names` of the rows; see `grouprl.protocols.Trainable`.

        With `grad` the graph ends here: its backward pass runs the rows again, on all ranks (`backward`).
        """
        check_outputs(cast("Trainable", self), names)
        if grad and names:
            return dict(zip(names, _Scored.apply(self._leaf(), self, tokens, tuple(names)), strict=True))
        return self.score(tokens, tuple(names)) if names else {}

    def _leaf(self) -> Tensor:
        # Autograd calls the backward pass of a node only if something that goes in requires a gradient.
        return torch.zeros((), dtype=self.score_dtype, requires_grad=True)

    @spanned("forward")
    def score(
        self, tokens: Tokens, names: tuple[str, ...], *, name: str = work.POLICY, base: bool = False
    ) -> dict[str, Tensor]:
        """Return outputs of rows without a graph, from the policy that ranks keep as `name`; `base` switches adapters
        off.
        """
        cut = self.cut(tokens, range(len(tokens)))
        shares = [
            Scoring([None if rows is None else tokens.rows(rows) for rows in own], names, name, base) for own in cut
        ]
        # Ranks of a team have the same rows, and return the same: those of the first are enough.
        found = self.ranks.call(work.score, shares)[:: self.ranks.team] if len(tokens) else []
        parts = [part for each in found for part in each]
        passes = [rows for own in cut[:: self.ranks.team] for rows in own if rows is not None]
        joined = {output: self._joined(tokens, passes, [part[output] for part in parts]) for output in names}
        return {output: x.to(self.device, self.score_dtype) for output, x in joined.items()}

    def _joined(self, tokens: Tokens, passes: Sequence[Sequence[int]], parts: Sequence[Tensor]) -> Tensor:
        """Join an output of the passes into that of all rows."""
        return join_passes(tokens, passes, parts)

    def backward(self, tokens: Tokens, cotangents: Mapping[str, Tensor], /) -> None:
        """Add the parameter gradients of sum(cotangent * output) to `.grad`; see `CausalPolicy.backward`."""
        check_cotangents(cast("Trainable", self), tokens, cotangents)
        refuse_readings(cotangents)
        cut = self.cut(tokens, live_rows(tokens, cotangents))

        def piece(rows: list[int] | None) -> tuple[Tokens, dict[str, Tensor]] | None:
            return None if rows is None else (tokens.rows(rows), {n: c[rows].cpu() for n, c in cotangents.items()})

        seed, names = self._seed(), tuple(cotangents)
        with span("backward"):
            self.ranks.call(work.pull, [Pull([piece(rows) for rows in own], names, seed) for own in cut])

    def run_passes(
        self,
        function: Callable[..., Found],
        common: object,
        tokens: Tokens,
        rows: Sequence[int],
        piece: Callable[[list[int]], object],
        names: Sequence[str],
        /,
    ) -> list[Found]:
        """Have the ranks process `rows` pass by pass; see `grouprl.protocols.DistributedPolicy`."""
        seed = self._seed()
        cut = self.cut(tokens, rows)
        shares = [
            Passes(function, common, [None if own is None else piece(own) for own in passes], tuple(names), seed)
            for passes in cut
        ]
        done = self.ranks.call(work.run_passes, shares)[:: self.ranks.team]
        return [cast("Found", each) for found in done for each in found]

    def cut(self, tokens: Tokens, rows: Sequence[int]) -> Cut:
        """Distribute `rows` over ranks, and divide each rank's into passes, the same number on each.

        Ranks that split matrices or rows among themselves get the same rows.
        """
        prompts, own = [tokens.prompt_ids[i] for i in rows], [len(tokens.response_ids[i]) for i in rows]
        shares = split_over_ranks(prompts, [len(p) for p in prompts], own, self.ranks.teams)
        passes = [self._part.cut(tokens, [rows[i] for i in share]) for share in shares]
        # A pass gathers weights from all ranks: one that had fewer passes would leave the others waiting.
        most = max(map(len, passes))
        return [[*own, *[None] * (most - len(own))] for own in passes for _ in range(self.ranks.team)]

    def passes(self, tokens: Tokens, rows: Sequence[int]) -> list[list[int]]:
        """Divide `rows` into passes that fit the token budget of one rank."""
        return self._part.cut(tokens, rows)

    def clip(self, limit: float) -> float:
        """Scale the gradient to a norm of at most `limit`; return the norm that it had before."""
        return self.ranks.each(work.clip, limit)[0]

    def look(self, every: int, *, first: bool) -> tuple[float, float]:
        """Add the gradient to the sum of those looked at; see `grouprl.protocols.DistributedModel`."""
        return self.ranks.each(work.look, work.GradientLook(every, first))[0]

    @contextmanager
    def gradient_aside(self) -> Iterator[Callable[[], float]]:
        """Put the gradient aside within this context; see `grouprl.protocols.DistributedModel`."""
        self.ranks.each(work.put_aside)
        try:
            yield lambda: self.ranks.each(work.along_aside)[0]
        finally:
            self.ranks.each(work.take_back)

    def _seed(self) -> int | None:
        return int(torch.randint(2**62, ())) if self._drops else None

    # ------------------------------------------------------------------------------------------------- its parameters

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield rank 0's part of every trainable parameter with its name; shapes are those of the full tensors."""
        return self._part.named_parameters()

    def trainable_state(self) -> dict[str, Tensor]:
        """Return all trainable parameters, whole and on the CPU, by name."""
        return self.state_of(work.POLICY)

    def each_weight(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the trainable parameters, whole and on the CPU, a few at a time in memory."""
        return self.gathered(name for name, _ in self.named_parameters())

    def gathered(self, names: Iterable[str], name: str = work.POLICY) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters of the policy, or of the copy called `name`, one after the other, whole and on the CPU: this
        process holds a few of them at a time.
        """
        own = self.ranks.station.kept[name].every_parameter()
        for part in in_parts(list(names), {each: own[each].numel() * own[each].element_size() for each in own}):
            found = self.ranks.each(work.gather, work.Gather(name, tuple(part)))[0]
            assert found is not None
            # Each is taken out before it is handed on, so that nothing here keeps what the caller has released.
            while part:
                yield (each := part.pop(0)), found.pop(each)

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """Distribute what `trainable_state` returned. Raises InputError if names or shapes are not the policy's."""
        check_state(dict(self.named_parameters()), state)
        self.load_state_of(work.POLICY, state)
        self._held = None

    def state_of(self, name: str) -> dict[str, Tensor]:
        """Return all trainable parameters of the copy that the ranks keep as `name`, whole and on the CPU."""
        return dict(self.gathered((each for each, _ in self.named_parameters()), name))

    def load_state_of(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Distribute `state` over the copy that the ranks keep as `name`."""
        names, others = tuple(state), self.ranks.count - 1
        self.ranks.call(work.load, [work.Load(name, names, state), *[work.Load(name, names, None)] * others])

    def load_file(self, path: Path) -> None:
        """Have every rank read its part of the weights from a safetensors file. Raises InputError as
        `load_trainable_state` does, RunError if it is not such a file.
        """
        check_state(dict(self.named_parameters()), described_tensors(path))
        self.ranks.each(guide_work.read_file, guide_work.FromFile(work.POLICY, path))
        self._held = None

    def save_parts(self, folder: Path) -> None:
        """Write weights and optimiser state from all ranks; raises OSError if one of them could not."""
        save_parts(self.ranks, folder)

    def load_parts(self, folder: Path) -> None:
        """Load what `save_parts` wrote, on any number of ranks. Raises RunError or InputError if it cannot be
        loaded.
        """
        load_parts(self.ranks, dict(self.named_parameters()), folder)
        self.changed()

    def changed(self) -> None:
        """Note that weights have changed, so that full copies are out of date."""
        self._held = None

    def checkpoint_entries(self, *, merged: bool = True) -> list[StoredTensor]:
        """Return the tensors of the model's checkpoint, without their numbers; see `sharded_weights.entries`."""
        return entries(self.model, merged=merged)

    def checkpoint_tensors(self, given: list[StoredTensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors of the model's checkpoint, whole and on the CPU, a few at a time in memory."""
        return checkpoint_tensors(self, given)

    def save_adapters(self, folder: Path) -> None:
        """Write the adapters alone, as peft does."""
        save_adapters(self, folder)


def in_parts(names: list[str], sizes: Mapping[str, int]) -> list[list[str]]:
    """Split `names` into runs of at most `PIECE` bytes each; a name that is larger is a run of its own."""
    parts: list[list[str]] = []
    room = 0
    for name in names:
        room -= sizes[name]
        if not parts or room < 0:
            parts.append([])
            room = PIECE - sizes[name]
        parts[-1].append(name)
    return parts


def as_sharded_model(model: object) -> ShardedModel:
    """Return the model of a process with ranks, which is spread over them."""
    assert isinstance(model, ShardedModel)
    return model


class _Scored(torch.autograd.Function):
    """Outputs as a graph of one node, whose backward pass is the policy's."""

    @staticmethod
    def forward(
        ctx: Ctx, leaf: Tensor, policy: ShardedModel, tokens: Tokens, names: tuple[str, ...]
    ) -> tuple[Tensor, ...]:
        ctx.policy, ctx.tokens, ctx.names = policy, tokens, names
        ctx.set_materialize_grads(False)
        return tuple(policy.score(tokens, names).values())

    @staticmethod
    def backward(ctx: Ctx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given = {name: x for name, x in zip(ctx.names, grads, strict=True) if x is not None}
        ctx.policy.backward(ctx.tokens, given)
        return torch.zeros((), dtype=next(iter(given.values())).dtype), None, None, None
