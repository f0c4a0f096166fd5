"""Observations and actions of a batch of episodes, from which a policy over arrays scores them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from grouprl.core.errors import InputError
from grouprl.policy.vectors.array_columns import (
    SEEDS,
    Arrays,
    all_or_none,
    each,
    full,
    joined,
    listed,
    origins,
    padded,
    signed,
    some,
    tensor,
    tensors,
    together,
    wider,
)
from grouprl.records.serialize import keepable


@keepable
@dataclass(frozen=True)
class ArrayInputs:
    """B rows of actions, each with the observation it responds to; T is the length of the longest row. Tensors are on
    the CPU.

    Raises:
        InputError: shapes that do not match.
    """

    observation_bt: Arrays
    """[B,T,…]: the observation before each action, 0 beyond a row's length."""
    action_bt: Tensor
    """[B,T] int64 numbers of actions, or [B,T,A] vectors."""
    length_b: Tensor
    """[B] int64: number of actions in each row."""
    context_b: Mapping[str, Tensor] = field(default_factory=dict)
    """[B,…] by name: context that applies to a whole row (a map, a graph)."""
    legal_bta: Tensor | None = None
    """[B,T,A] bool: True for legal actions; None: all are."""
    final_b: Arrays | None = None
    """[B,…]: the observation after the last action; None: not known."""
    final_legal_ba: Tensor | None = None
    """[B,A] bool: True for actions that are legal after the last one; None: all are, or it is not known."""
    seed_b: Tensor | None = None
    """[B] int64: seed of the first action of each row, which increases by one with each action. A stochastic likelihood
    draws its noise from it, so that a row is scored with the same noise whenever it is scored."""
    origin_bta: Tensor | None = None
    """[B,T,A] what each action was made of, where that cannot be read back from it (`sample_with_origin` of policies);
    NaN where only the action is known; None: nowhere."""

    def __post_init__(self) -> None:
        rows, longest = len(self.length_b), int(self.length_b.max()) if len(self.length_b) else 0
        by_step = [*listed(self.observation_bt), self.action_bt, *listed(self.legal_bta), *listed(self.origin_bta)]
        by_row = [self.length_b, *self.context_b.values(), *listed(self.final_b), *listed(self.final_legal_ba)]
        by_row += listed(self.seed_b)
        if any(tuple(x.shape[:2]) != (rows, longest) for x in by_step) or any(len(x) != rows for x in by_row):
            raise InputError(
                f"shapes by step {[tuple(x.shape) for x in by_step]}, by row {[tuple(x.shape) for x in by_row]}",
                f"{rows} rows, of which the longest has {longest} actions, make [{rows},{longest},…] and [{rows},…]",
                "Truncate or pad them to these shapes",
            )

    @classmethod
    def of(
        cls,
        observations: Sequence[object],
        actions: Sequence[object],
        *,
        context_b: Sequence[object] | None = None,
        legal_bta: Sequence[object] | None = None,
        final_b: Sequence[object] | None = None,
        final_legal_ba: Sequence[object] | None = None,
        seed_b: Sequence[int] | None = None,
        origin_bta: Sequence[Sequence[object]] | None = None,
    ) -> ArrayInputs:
        """Build from the observations [T_b,…] (arrays, or arrays by name) and actions [T_b] or [T_b,A] of each row.

        Further arguments, one entry per row, become the fields of the same names; if a row's mask [T_b,A], or the one
        after its last action, [A], is None, all actions are legal there.
        """
        if len(observations) != len(actions):
            raise InputError(
                f"{len(observations)} rows of observations, {len(actions)} of actions", "every row needs both"
            )
        done = tensors(actions)
        lengths = [len(row) for row in done]
        masks, ends = (
            [None if mask is None else tensor(mask) for mask in given or ()] for given in (legal_bta, final_legal_ba)
        )
        return cls(
            together(observations, padded),
            padded(done),
            torch.tensor(lengths, dtype=torch.int64),
            cast("Mapping[str, Tensor]", together(context_b, torch.stack)) if context_b else {},
            padded(full(masks, [(length,) for length in lengths])) if some(masks) else None,
            together(final_b, torch.stack) if final_b else None,
            torch.stack(full(ends, [()] * len(ends))) if some(ends) else None,
            None if seed_b is None else torch.tensor([signed(seed) for seed in seed_b], dtype=torch.int64),
            padded(origins(done, origin_bta)) if any(x is not None for row in origin_bta or () for x in row) else None,
        )

    @classmethod
    def apart(cls, observation_n: Tensor, action_n: Tensor) -> ArrayInputs:
        """Return a row for each of N observations [N,…] and actions [N] or [N,A]."""
        return cls(observation_n[:, None], action_n[:, None], torch.ones(len(action_n), dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.length_b)

    @property
    def width(self) -> int:
        """T, the length of the longest row."""
        return self.action_bt.shape[1]

    def rows(self, index: Iterable[int]) -> ArrayInputs:
        """Return the rows with the numbers `index`, in that order and truncated to the longest of them."""
        where = index if isinstance(index, Tensor) else torch.as_tensor([int(i) for i in index], dtype=torch.int64)
        length_b = self.length_b.index_select(0, where)
        width = int(length_b.max()) if len(length_b) else 0

        def taken(x: Tensor) -> Tensor:
            return x.index_select(0, where)

        def cut(x: Tensor) -> Tensor:
            return taken(x if width == x.shape[1] else x[:, :width])

        return ArrayInputs(
            each(self.observation_bt, cut),
            cut(self.action_bt),
            length_b,
            {name: taken(x) for name, x in self.context_b.items()},
            None if self.legal_bta is None else cut(self.legal_bta),
            None if self.final_b is None else each(self.final_b, taken),
            None if self.final_legal_ba is None else taken(self.final_legal_ba),
            None if self.seed_b is None else taken(self.seed_b),
            None if self.origin_bta is None else cut(self.origin_bta),
        )

    @property
    def action_ids(self) -> tuple[tuple[int, ...], ...]:
        """[B] the number of each action; its position in the row if actions are vectors."""
        places_bt = torch.arange(self.width).expand(len(self), -1)
        number_bt = self.action_bt if self.action_bt.dim() == 2 else places_bt
        return tuple(tuple(row[:n].tolist()) for row, n in zip(number_bt, self.length_b.tolist(), strict=True))

    def present_bt(self) -> Tensor:
        """Return a mask [B,T] that is True where a row has an action."""
        return self._present_bt

    @cached_property
    def _present_bt(self) -> Tensor:
        return torch.arange(self.width) < self.length_b[:, None]

    @cached_property
    def full(self) -> bool:
        """True if all rows have the same length."""
        return bool((self.length_b == self.width).all())

    def by_position(self, value_bt: Tensor) -> Tensor:
        """Return values [B,T,…] of all positions [N,…], row after row."""
        return value_bt.flatten(0, 1) if self.full else value_bt[self.present_bt()]

    def fingerprints(self) -> list[bytes]:
        """Return a digest of each row, which covers everything but its final observation and masks that allow all
        actions.
        """
        by_step = [*listed(self.observation_bt), self.action_bt]
        by_row = [*self.context_b.values(), *listed(self.seed_b)]
        found = []
        for row, length in enumerate(self.length_b.tolist()):
            # Joined with rows that have masks, a row without one gets one that allows all: its digest must not change.
            masks = [mask[row, :length] for mask in listed(self.legal_bta) if not bool(mask[row, :length].all())]
            made = [x[row, :length] for x in listed(self.origin_bta) if not bool(x[row, :length].isnan().all())]
            own = [*(x[row, :length] for x in by_step), *(x[row] for x in by_row), *masks, *made]
            parts = [f"{tuple(x.shape)}".encode() + x.contiguous().numpy().tobytes() for x in own]
            found.append(hashlib.sha256(b"|".join(parts)).digest())
        return found

    def joined(self, others: Sequence[ArrayInputs]) -> ArrayInputs:
        """Return these rows and those of `others`, concatenated.

        Raises:
            InputError: only some rows have a context, a final observation or seeds.
        """
        parts = [self, *others]
        width = max(part.width for part in parts)
        legal, ends = [part.legal_bta for part in parts], [part.final_legal_ba for part in parts]
        if some(legal):
            legal = [*full(legal, [tuple(part.action_bt.shape[:2]) for part in parts])]
        if some(ends):
            ends = [*full(ends, [(len(part),) for part in parts])]
        return ArrayInputs(
            joined([each(part.observation_bt, partial(wider, width=width)) for part in parts]),
            joined([wider(part.action_bt, width) for part in parts]),
            torch.cat([part.length_b for part in parts]),
            joined([part.context_b for part in parts]),
            all_or_none("legal_bta", [None if mask is None else wider(mask, width) for mask in legal]),
            all_or_none("final_b", [part.final_b for part in parts]),
            all_or_none("final_legal_ba", ends),
            all_or_none("seed_b", [part.seed_b for part in parts]),
            self._joined_origins(parts, width),
        )

    @staticmethod
    def _joined_origins(parts: Sequence[ArrayInputs], width: int) -> Tensor | None:
        """Return what actions were made of, NaN in rows that do not know it; None if no row does."""
        if not some([part.origin_bta for part in parts]):
            return None
        known = (torch.full_like(p.action_bt, torch.nan) if p.origin_bta is None else p.origin_bta for p in parts)
        return torch.cat([wider(each_bta, width) for each_bta in known])

    def finals(self) -> ArrayInputs | None:
        """Return inputs with one position per row, which shows the row's final observation; None if it is not known."""
        if self.final_b is None:
            return None
        return ArrayInputs(
            each(self.final_b, lambda x: x[:, None]),
            # No action follows a final observation: a zero stands in its place, and only the value is read.
            torch.zeros_like(self.action_bt[:, :1]) if self.width else self.action_bt.new_zeros(len(self), 1),
            torch.ones_like(self.length_b),
            self.context_b,
            None if self.final_legal_ba is None else self.final_legal_ba[:, None],
            seed_b=None if self.seed_b is None else self.seed_b + self.length_b,
        )

    def extended(self) -> ArrayInputs | None:
        """Return the rows with their final observation as one position more, whose action is 0; None if not known."""
        if self.final_b is None:
            return None
        row_b, width = torch.arange(len(self)), self.width + 1

        def ended(value_bt: Tensor, final_b: Tensor) -> Tensor:
            wider_bt = wider(value_bt, width).clone()
            wider_bt[row_b, self.length_b] = final_b.to(value_bt)
            return wider_bt

        observation, final = self.observation_bt, self.final_b
        return replace(
            self,
            observation_bt=ended(observation, cast("Tensor", final))
            if isinstance(observation, Tensor)
            else {name: ended(x, cast("Mapping[str, Tensor]", final)[name]) for name, x in observation.items()},
            action_bt=wider(self.action_bt, width),
            length_b=self.length_b + 1,
            legal_bta=self._extended_masks(),
            origin_bta=None if self.origin_bta is None else wider(self.origin_bta, width),
            final_b=None,
            final_legal_ba=None,
        )

    def _extended_masks(self) -> Tensor | None:
        """Return the masks [B,T+1,A] of the rows and of what follows them; None: all actions are legal."""
        legal, final = self.legal_bta, self.final_legal_ba
        if legal is None and final is None:
            return None
        shapes = [tuple(self.action_bt.shape[:2]), (len(self), 1)]
        legal_bta, final_bta = full([legal, None if final is None else final[:, None]], shapes)
        wider_bta = wider(legal_bta, self.width + 1).clone()
        wider_bta[torch.arange(len(self)), self.length_b] = final_bta[:, 0]
        return wider_bta

    def positions(self) -> ArrayInputs:
        """Return every position as a row of its own, row after row; final observations are left out."""
        present_bt = self.present_bt()
        row_n, step_n = self._places()
        return ArrayInputs(
            each(self.observation_bt, lambda x: x[present_bt][:, None]),
            self.action_bt[present_bt][:, None],
            torch.ones_like(row_n),
            {name: x[row_n] for name, x in self.context_b.items()},
            None if self.legal_bta is None else self.legal_bta[present_bt][:, None],
            seed_b=None if self.seed_b is None else self.seed_b[row_n] + step_n,
            origin_bta=None if self.origin_bta is None else self.origin_bta[present_bt][:, None],
        )

    def _places(self) -> tuple[Tensor, Tensor]:
        """Return the row and the step of every position, [N] each."""
        if self.full and self.width == 1:
            return torch.arange(len(self)), torch.zeros_like(self.length_b)
        row_n, step_n = self.present_bt().nonzero(as_tuple=True)
        return row_n, step_n

    def seen(self, device: torch.device, dtype: torch.dtype) -> Seen:
        """Return all positions, row after row, on a device, with floating-point numbers as `dtype`."""
        row_n, step_n = self._places()

        def placed(x: Tensor) -> Tensor:
            return x.to(device, dtype if x.is_floating_point() else None)

        return Seen(
            each(self.observation_bt, lambda x: placed(self.by_position(x))),
            {name: placed(x) for name, x in self.context_b.items()},
            row_n.to(device),
            None if self.legal_bta is None else placed(self.by_position(self.legal_bta)),
            None if self.seed_b is None else self.seed_b[row_n] + step_n,
            origin_na=None if self.origin_bta is None else placed(self.by_position(self.origin_bta)),
        )


@dataclass(frozen=True)
class Seen:
    """N positions of R rows, from which a policy computes distributions or values."""

    observation: Any
    """[N,…] tensor, or tensors by name if the space is a `DictSpace`."""
    context: Mapping[str, Tensor]
    """[R,…] by name, once for each row; `context[name][row_n]` gives it for each position."""
    row_n: Tensor
    """[N] int64: the row of each position."""
    legal_na: Tensor | None = None
    """[N,A] bool: True for legal actions; None: all are."""
    seed_n: Tensor | None = None
    """[N] int64 on the CPU: the seed of each action."""
    memory: Tensor | None = None
    """[R,M] what a policy remembers from before the first position of each row; None: rows begin there."""
    origin_na: Tensor | None = None
    """[N,A] what the actions were made of; see `ArrayInputs.origin_bta`."""

    def of_rows(self, index: Tensor) -> Seen:
        """Return the rows with the numbers `index` ([N'] int64); every row must have exactly one position."""
        return replace(
            self,
            observation=each(self.observation, lambda x: x[index]),
            context={name: x[index] for name, x in self.context.items()},
            row_n=torch.arange(len(index), device=index.device),
            legal_na=None if self.legal_na is None else self.legal_na[index],
            seed_n=None if self.seed_n is None else self.seed_n[index.cpu()],
            memory=None if self.memory is None else self.memory[index],
            origin_na=None if self.origin_na is None else self.origin_na[index],
        )


def noise(seen: Seen, *shape: int) -> Tensor:
    """Return uniform numbers [N,*shape] in [0,1), float64 on the CPU; those of a position depend only on its seed.

    They come from a different stream than the numbers with which the action itself is sampled.

    Raises:
        InputError: the rows have no seeds.
    """
    if seen.seed_n is None:
        raise InputError(
            "the rows have no seeds", "a stochastic likelihood needs them to draw its noise", "Give seed_b"
        )
    drawn = [np.random.default_rng((seed % SEEDS, 1)).random(shape) for seed in seen.seed_n.tolist()]
    return torch.as_tensor(np.stack(drawn)) if drawn else torch.zeros(0, *shape, dtype=torch.float64)
