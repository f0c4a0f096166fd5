"""Context parallelism: several ranks share each row, and every rank runs the model on its slice of the columns.

All but attention treats each token alone; attention gathers keys and values (`context_attention`). The outputs of all
slices are brought together, so that each rank of a group has those of its rows as if it had run them alone, computes
the same loss, and takes the gradients of its own slice. FSDP adds these up over all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grouprl.core.errors import InputError
from grouprl.policy.engine import Readout
from grouprl.policy.language.model_checks import accepts, stretched_rotation
from grouprl.policy.language.transformers_engine import (
    PassLayout,
    TransformersEngine,
    pack_sequences,
    pad_sequences,
)
from grouprl.policy.sharded.context_attention import NAME, SliceMask, masked, register
from grouprl.policy.sharded.context_group import ContextGroup
from grouprl.policy.sharded.context_slices import Slices, slice_of
from grouprl.records.tokens import Tokens

LAYERS = ("full_attention", "sliding_attention")
"""Kinds of layers whose tokens meet in attention alone."""


@dataclass(frozen=True)
class SharedReadout(Readout):
    """A readout of a rank's slice, whose outputs are brought together with those of the other ranks."""

    group: ContextGroup | None = None
    owner_m: Tensor | None = None
    """The rank that has the prediction of each response token."""

    def each(self, found_n: Tensor) -> Tensor:
        """Return values of this rank's predictions as values of all response tokens, [M]."""
        assert self.group is not None
        assert self.owner_m is not None
        return self.group.together(found_n, self.owner_m)

    @property
    def own_states(self) -> Tensor:
        """Last hidden states of this rank's slice."""
        return self.hidden_nd

    @property
    def own_logits(self) -> Tensor:
        """Raw logits of this rank's slice, where the model has no plain `head`."""
        return self._own_logits

    def taught_by(self, teacher: Readout) -> Readout:
        """Return a teacher's readout of this rank's slice; its rows may have been cut in another way."""
        assert isinstance(teacher, SharedReadout)
        assert self.owner_m is not None
        assert teacher.owner_m is not None
        hidden_nd, logits_nv = teacher.hidden_nd, teacher.logits_nv
        if not torch.equal(self.owner_m, teacher.owner_m):  # on one rank as on the others
            assert self.group is not None
            mine_m = (self.owner_m == self.group.rank).to(hidden_nd.device)
            hidden_nd = teacher.each(hidden_nd)[mine_m]
            logits_nv = None if logits_nv is None else teacher.each(logits_nv)[mine_m]
        return Readout(hidden_nd, self.target_n, teacher.head, logits_nv)

    def joined(self, found_n: Tensor) -> Tensor:
        """Return outputs of this rank's slice as outputs of all response tokens, [M]."""
        return self.each(found_n)


class ContextEngine:
    """An engine that runs a rank's slice of each row.

    Args:
        engine: the engine of whole rows; its model's attention is replaced.
        group: the ranks that share rows.

    Raises:
        InputError: the model's layers cannot be run on slices.
    """

    name = "transformers"

    def __init__(self, engine: TransformersEngine, group: ContextGroup) -> None:
        self._engine, self._group = engine, group
        obstacle = why_not_sliced(engine) or self._take_over()
        if obstacle is not None:
            raise InputError(
                f"model.context_parallel = {group.count}: {obstacle}",
                "",
                "Set it to 1: ranks then divide only rows and weights",
            )

    def split(self, tokens: Tokens, rows: Sequence[int], budget: int) -> list[list[int]]:
        """Divide `rows` into passes of which each rank has at most `budget` tokens."""
        return self._engine.split(tokens, rows, budget * self._group.count)

    def read(self, tokens: Tokens) -> Readout:
        """Run this rank's slice of the rows of `tokens` in one pass, together with the ranks that have the others."""
        return self._run(pack_sequences(tokens) if self._engine.packing_pays(tokens) else pad_sequences(tokens), tokens)

    def _run(self, whole: PassLayout, tokens: Tokens) -> SharedReadout:
        slices = Slices(whole.ids_bl.shape[1], self._group.count)
        own = slice_of(whole, slices, self._group.rank)
        target_m = tokens.targets()[own.owner_m == self._group.rank]
        with masked(SliceMask(self._group, slices, own.first_bl, self._engine.core.device)):
            read = self._engine.run(own.layout, target_m, math.ceil(sum(tokens.lengths) / self._group.count))
        return SharedReadout(
            read.hidden_nd, read.target_n, read.head, read.logits_nv, group=self._group, owner_m=own.owner_m
        )

    @torch.no_grad()
    def _take_over(self) -> str | None:
        """Replace the model's own attention; return why that does not give the same numbers, None if it does."""
        engine, kind = self._engine, type(self._engine.core).__name__
        probe = engine.probe()
        layouts = [pad_sequences(probe), *([pack_sequences(probe)] if engine.packs else [])]
        expected = [engine.run(each, probe.targets(), 1).hidden_nd.double() for each in layouts]
        register()
        engine.core.set_attn_implementation(NAME)
        try:
            found = [self._run(each, probe) for each in layouts]
        except (NotImplementedError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            return f"{kind} cannot be run on slices of rows: {error}"
        pairs = ((x[read.owner_m == self._group.rank], read.hidden_nd) for x, read in zip(expected, found, strict=True))
        wrong = [not engine.close(mine, own.double()) for mine, own in pairs if len(mine)]
        return f"{kind} gives other numbers on slices of rows" if self._group.any(any(wrong)) else None


def why_not_sliced(engine: TransformersEngine) -> str | None:
    """Return what keeps a model's layers from running on slices of rows, as far as its configuration shows."""
    kind, config = type(engine.core).__name__, engine.core.config.get_text_config()
    if not accepts(engine.core, "position_ids"):
        return f"{kind} takes no positions of its tokens"
    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(LAYERS))
    if others:
        return f"{kind} has layers of {', '.join(others)}, in which tokens meet in other ways than by keys and values"
    if (turned := stretched_rotation(config)) is not None:
        return f"{kind} has rotary embeddings of kind {turned}, which depend on the length of the whole row"
    return None
