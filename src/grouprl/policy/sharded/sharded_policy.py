"""A policy whose weights and optimiser are divided among several ranks, as rank 0 sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from grouprl.core.spans import span, spanned
from grouprl.policy.autograd import Ctx
from grouprl.policy.devices import Precision
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.statistics import is_reading, refuse_readings
from grouprl.policy.language.text import TextModel
from grouprl.policy.lora import is_adapted
from grouprl.policy.microbatch import join_passes
from grouprl.policy.passes import PassSettings
from grouprl.policy.sharded import guide_work
from grouprl.policy.sharded import rank_work as work
from grouprl.policy.sharded.rank_checkpoint import load_parts, save_parts
from grouprl.policy.sharded.rank_policy import RankPolicy
from grouprl.policy.sharded.rank_work import Builders, Passes, Pull, Scoring
from grouprl.policy.sharded.ranks import Ranks
from grouprl.policy.sharded.row_split import split_over_ranks
from grouprl.policy.sharded.sharded_reference import ShardedFollower, ShardedReference
from grouprl.policy.sharded.sharded_weights import (
    StoredTensor,
    checkpoint_tensors,
    entries,
    save_adapters,
    save_sharded,
)
from grouprl.policy.state import LogProbs, check_cotangents, check_outputs, check_state, live_rows
from grouprl.records.tokens import Tokens
from grouprl.storage.tensors import described_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Cut = list[list[list[int] | None]]
"""The passes of each rank, the same number for all; None stands for an empty pass."""


Copies = Literal["none", "leader", "everywhere"]
"""Which ranks have a full copy."""
PIECE = 2**24
"""Bytes of parameters that are gathered at a time; more if a single one is larger."""


class ShardedPolicy(TextModel, LogProbs):
    """A transformers causal LM, sharded over ranks by FSDP2: no process holds it whole, unless it is asked for `whole`.

    Rows are distributed over ranks by tokens, rows of one prompt together. Except for the order of sums, results do not
    depend on the number of ranks.

    Args:
        ranks: all ranks, led by this process.
        builders: builder of each rank's part, and of full copies; it is sent to every rank.
    """

    def __init__(self, ranks: Ranks, builders: Builders) -> None:
        self.ranks = ranks
        ranks.each(work.build, builders)
        self._part: RankPolicy = ranks.station.kept[work.POLICY]
        self.tokenizer = self._part.tokenizer
        self._copies: Copies = "none"
        self._stale = False
        """Whether the full copies have older weights."""
        self._drops = any(isinstance(m, nn.Dropout) and m.p > 0 for m in self._part.model.modules()) and is_adapted(
            self._part.model
        )

    # --------------------------------------------------------------------------- what is known without any exchange

    @property
    def model(self) -> PreTrainedModel:
        """Rank 0's part of the model, for its configuration and its names; it computes only with the other ranks."""
        return self._part.model

    @property
    def temperature(self) -> float:
        """The temperature of log-probs, which are those of softmax(logits / temperature)."""
        return self._part.temperature

    @temperature.setter
    def temperature(self, temperature: float) -> None:
        self.ranks.each(work.set_temperature, temperature)

    def full_precision(self) -> AbstractContextManager[None]:
        """Change nothing: the products of a part are in one type for good."""
        return nullcontext()

    @property
    def whole_precision(self) -> Precision:
        """The precision with which a full copy computes products."""
        return self._part.whole_precision

    @property
    def engine(self) -> str:
        """The engine of training passes."""
        return self._part.engine

    @property
    def pass_settings(self) -> PassSettings:
        """Packing, shared prompts and checkpointing of passes."""
        return self._part.pass_settings

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

    def language_models(self) -> dict[str, CausalPolicy]:
        """Return rank 0's full copy of the model, if it has one."""
        return {} if self._copies == "none" else {"": self.whole}

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model was built for; None if unknown."""
        return self._part.max_positions

    @property
    def value_head(self) -> nn.Linear | None:
        """Rank 0's part of the value head."""
        return self._part.value_head

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs; see `CausalPolicy.outputs`."""
        return self._part.outputs

    # ------------------------------------------------------- what a full copy provides: it is built when it is needed

    @property
    def whole(self) -> CausalPolicy:
        """A full copy of the current policy on rank 0, for inspection but not for training."""
        self._copy_on(everywhere=False)
        found: CausalPolicy = self.ranks.station.kept[work.WHOLE]
        return found

    def copy_everywhere(self) -> None:
        """Have every rank keep a full copy to sample from, with the current weights."""
        self._copy_on(everywhere=True)

    def _copy_on(self, *, everywhere: bool) -> None:
        wanted: Copies = "everywhere" if everywhere else "leader"
        if self._copies not in (wanted, "everywhere"):
            self.ranks.each(work.build_whole, everywhere)
            self._copies, self._stale = wanted, True  # of the files, not of the current weights
        if self._stale:
            self.ranks.each(work.renew_whole)
            self._stale = False

    def influence(self, tokens: Tokens, group_b: Tensor, correct_b: Tensor, mask_bt: Tensor | None = None) -> Tensor:
        """Return each token's influence on the correct completions of its group, [B,T], computed on rank 0."""
        return self.whole.influence(tokens, group_b, correct_b, mask_bt)

    def hidden(self, tokens: Tokens) -> list[Tensor]:
        """Return each row's last hidden states, [T_b,H], computed on rank 0."""
        return self.whole.hidden(tokens)

    def top(self, tokens: Tokens, k: int) -> tuple[Tensor, Tensor]:
        """Return ids and log-probs of the `k` likeliest tokens, [B,T,k], computed on rank 0."""
        return self.whole.top(tokens, k)

    # ----------------------------------------------------------------------------------------- what all ranks compute

    def evaluate(self, tokens: Tokens, names: Sequence[str], /, *, grad: bool = False) -> dict[str, Tensor]:
        """Return the outputs `names` of the responses of `tokens`; see `CausalPolicy.evaluate`.

        With `grad` the graph ends here: its backward pass runs the rows again, on all ranks (`backward`). Statistics
        are computed on rank 0.
        """
        check_outputs(self, names)
        own = tuple(name for name in names if not is_reading(name))
        read = [name for name in names if is_reading(name)]
        found = self.whole.evaluate(tokens, read) if read else {}
        if own and grad:
            found |= dict(zip(own, _Scored.apply(self._leaf(), self, tokens, own), strict=True))
        elif own:
            found |= self.score(tokens, own)
        return {name: found[name] for name in names}

    def _leaf(self) -> Tensor:
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
        found = self.ranks.call(work.score, shares)[:: self.ranks.team] if len(tokens) else []
        parts = [part for each in found for part in each]
        passes = [rows for own in cut[:: self.ranks.team] for rows in own if rows is not None]
        joined = {output: join_passes(tokens, passes, [part[output] for part in parts]) for output in names}
        return {output: x.to(self.device, self.score_dtype) for output, x in joined.items()}

    def backward(self, tokens: Tokens, cotangents: Mapping[str, Tensor], /) -> None:
        """Add the parameter gradients of sum(cotangent * output) to `.grad`; see `CausalPolicy.backward`."""
        check_cotangents(self, tokens, cotangents)
        refuse_readings(cotangents)
        cut = self.cut(tokens, live_rows(tokens, cotangents))

        def piece(rows: list[int] | None) -> tuple[Tokens, dict[str, Tensor]] | None:
            return None if rows is None else (tokens.rows(rows), {n: c[rows].cpu() for n, c in cotangents.items()})

        seed, names = self._seed(), tuple(cotangents)
        with span("backward"):
            self.ranks.call(work.pull, [Pull([piece(rows) for rows in own], names, seed) for own in cut])

    def run_passes(
        self,
        function: Callable[..., Mapping[str, float]],
        common: object,
        tokens: Tokens,
        rows: Sequence[int],
        piece: Callable[[list[int]], object],
        names: Sequence[str],
        /,
    ) -> list[Mapping[str, float]]:
        """Have the ranks process `rows` pass by pass; see `grouprl.protocols.DistributedPolicy`."""
        seed = self._seed()
        cut = self.cut(tokens, rows)
        shares = [
            Passes(function, common, [None if own is None else piece(own) for own in passes], tuple(names), seed)
            for passes in cut
        ]
        return [record for found in self.ranks.call(work.run_passes, shares)[:: self.ranks.team] for record in found]

    def cut(self, tokens: Tokens, rows: Sequence[int]) -> Cut:
        """Distribute `rows` over ranks, and divide each rank's into passes, the same number on each.

        Ranks that split matrices or rows among themselves get the same rows.
        """
        prompts, own = [tokens.prompt_ids[i] for i in rows], [len(tokens.response_ids[i]) for i in rows]
        shares = split_over_ranks(prompts, [len(p) for p in prompts], own, self.ranks.teams)
        passes = [self._part.cut(tokens, [rows[i] for i in share]) for share in shares]
        most = max(map(len, passes))
        return [[*own, *[None] * (most - len(own))] for own in passes for _ in range(self.ranks.team)]

    def passes(self, tokens: Tokens, rows: Sequence[int]) -> list[list[int]]:
        """Divide `rows` into passes that fit the token budget of one rank."""
        return self._part.cut(tokens, rows)

    def clip(self, limit: float) -> float:
        """Scale the gradient to a norm of at most `limit`; return the norm that it had before."""
        return self.ranks.each(work.clip, limit)[0]

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
            while part:
                yield (each := part.pop(0)), found.pop(each)

    def load_trainable_state(self, state: Mapping[str, Tensor]) -> None:
        """Distribute what `trainable_state` returned. Raises InputError if names or shapes are not the policy's."""
        check_state(dict(self.named_parameters()), state)
        self.load_state_of(work.POLICY, state)
        self._stale = True

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
        self._stale = True

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
        """Note that weights have changed, so that the full copies are out of date."""
        self._stale = True

    def reference(self) -> ShardedReference:
        """Return the frozen policy for KL terms: the base model if there are adapters, else a copy of the current
        policy.
        """
        if is_adapted(self._part.model):
            return ShardedReference(self, work.POLICY, base=True)
        return self.snapshot()

    def snapshot(self) -> ShardedReference:
        """Return a frozen copy of the current policy, adapters included."""
        self.ranks.each(work.keep_copy, work.REFERENCE)
        return ShardedReference(self, work.REFERENCE)

    def other(self, builders: Builders) -> ShardedReference:
        """Return another model as the frozen reference, of which each rank builds its own part."""
        self.ranks.each(guide_work.build_reference, builders)
        return ShardedReference(self, work.REFERENCE)

    def follower(self, name: str) -> ShardedFollower:
        """Return a copy of the current policy, in parts on the ranks, whose weights can move towards the policy's."""
        kept = f"follower {name}"
        self.ranks.each(work.keep_copy, kept)
        return ShardedFollower(self, kept)

    def copied(self, *, trainable: bool = True, value_head: bool = False) -> CausalPolicy:
        """Return a full copy of the current policy, only on rank 0."""
        found, names = self.whole.copied(value_head=value_head), {name for name, _ in self.named_parameters()}
        for name, parameter in found.model.named_parameters():
            parameter.requires_grad_(trainable and name in names)
        return found

    def gradient_norms(self, tokens: Tokens, block: Literal["embedding", "head", "trainable"] = "embedding") -> Tensor:
        """Return the gradient norm of each completion's log-prob, [B], computed on rank 0."""
        return self.copied().gradient_norms(tokens, block)

    def checkpoint_entries(self, *, merged: bool = True) -> list[StoredTensor]:
        """Return the tensors of the model's checkpoint, without their numbers; see `sharded_weights.entries`."""
        return entries(self.model, merged=merged)

    def checkpoint_tensors(self, given: list[StoredTensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield tensors of the model's checkpoint, whole and on the CPU, a few at a time in memory."""
        return checkpoint_tensors(self, given)

    def save_adapters(self, folder: Path) -> None:
        """Write the adapters alone, as peft does."""
        save_adapters(self, folder)

    def save(self, folder: str | Path, *, adapter_only: bool = False) -> None:
        """Write an ordinary Hugging Face folder from rank 0, tensor by tensor; see `CausalPolicy.save`."""
        save_sharded(self, Path(folder), adapter_only=adapter_only)


def in_parts(names: list[str], sizes: Mapping[str, int]) -> list[list[str]]:
    """Return `names` in parts of neighbours of at most `PIECE` bytes, or of one that is larger."""
    parts: list[list[str]] = []
    room = 0
    for name in names:
        room -= sizes[name]
        if not parts or room < 0:
            parts.append([])
            room = PIECE - sizes[name]
        parts[-1].append(name)
    return parts


def as_sharded(policy: object) -> ShardedPolicy:
    """Return the policy of a process with ranks, which is spread over them."""
    assert isinstance(policy, ShardedPolicy)
    return policy


class _Scored(torch.autograd.Function):
    """Outputs as a graph of one node, whose backward pass is the policy's."""

    @staticmethod
    def forward(
        ctx: Ctx, leaf: Tensor, policy: ShardedPolicy, tokens: Tokens, names: tuple[str, ...]
    ) -> tuple[Tensor, ...]:
        ctx.policy, ctx.tokens, ctx.names = policy, tokens, names
        ctx.set_materialize_grads(False)
        return tuple(policy.score(tokens, names).values())

    @staticmethod
    def backward(ctx: Ctx, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given = {name: x for name, x in zip(ctx.names, grads, strict=True) if x is not None}
        ctx.policy.backward(ctx.tokens, given)
        return torch.zeros((), dtype=next(iter(given.values())).dtype), None, None, None
