"""Observations and actions of a batch of episodes: what a policy that reads vectors needs to score them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grouprl.core.errors import InputError
from grouprl.records.serialize import keepable


@keepable
@dataclass(frozen=True)
class ArrayInputs:
    """B rows of actions, each with the observation it responds to; T is the length of the longest row, tensors on the
    CPU.

    Raises:
        InputError: shapes that do not belong together.
    """

    observation_btd: Tensor
    """[B,T,D] float: the observation before each action, 0 beyond a row's length."""
    action_bt: Tensor
    """[B,T] int64 numbers of actions, or [B,T,A] float vectors."""
    length_b: Tensor
    """[B] int64: actions of each row."""

    def __post_init__(self) -> None:
        shape = tuple(self.observation_btd.shape)
        if len(shape) != 3 or tuple(self.action_bt.shape[:2]) != shape[:2] or tuple(self.length_b.shape) != shape[:1]:
            raise InputError(
                f"observations {shape}, actions {tuple(self.action_bt.shape)}, lengths {tuple(self.length_b.shape)}",
                "they are [B,T,D], [B,T] or [B,T,A], and [B]",
            )
        longest = int(self.length_b.max()) if len(self.length_b) else 0
        if shape[1] != longest:
            raise InputError(f"T = {shape[1]}", f"the longest row has {longest} actions", "Cut or pad to it")

    @classmethod
    def of(cls, observations: Sequence[object], actions: Sequence[object]) -> ArrayInputs:
        """Build from one array [T_b,D] of observations and one [T_b] or [T_b,A] of actions for each row."""
        if len(observations) != len(actions):
            raise InputError(f"{len(observations)} rows of observations, {len(actions)} of actions", "one for each row")
        seen = [torch.as_tensor(np.asarray(row), dtype=torch.float32) for row in observations]
        done = [torch.as_tensor(np.asarray(row)) for row in actions]
        done = [row.to(torch.float32 if row.is_floating_point() else torch.int64) for row in done]
        length_b = torch.tensor([len(row) for row in done], dtype=torch.int64)
        return cls(_padded(seen), _padded(done), length_b)

    def __len__(self) -> int:
        return len(self.length_b)

    @property
    def width(self) -> int:
        """T, the length of the longest row."""
        return self.observation_btd.shape[1]

    def rows(self, index: Iterable[int]) -> ArrayInputs:
        """Return the rows of `index`, in its order and cut to the longest of them."""
        where = torch.as_tensor([int(i) for i in index], dtype=torch.int64)
        length_b = self.length_b[where]
        width = int(length_b.max()) if len(length_b) else 0
        return ArrayInputs(self.observation_btd[where, :width], self.action_bt[where, :width], length_b)

    @property
    def action_ids(self) -> tuple[tuple[int, ...], ...]:
        """[B] the number of each action; its place in the row where actions are vectors."""
        places_bt = torch.arange(self.width).expand(len(self), -1)
        number_bt = self.action_bt if self.action_bt.dim() == 2 else places_bt
        return tuple(tuple(row[:n].tolist()) for row, n in zip(number_bt, self.length_b.tolist(), strict=True))

    def present_bt(self) -> Tensor:
        """True where a row has an action, [B,T]."""
        return torch.arange(self.width) < self.length_b[:, None]

    def joined(self, others: Sequence[ArrayInputs]) -> ArrayInputs:
        """Return these rows and those of `others`, concatenated."""
        parts = [self, *others]
        width = max(part.width for part in parts)
        return ArrayInputs(
            torch.cat([_wider(part.observation_btd, width) for part in parts]),
            torch.cat([_wider(part.action_bt, width) for part in parts]),
            torch.cat([part.length_b for part in parts]),
        )


def _padded(rows: Sequence[Tensor]) -> Tensor:
    if not rows:
        return torch.zeros(0, 0, 0)
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def _wider(values: Tensor, width: int) -> Tensor:
    spare = [0, 0] * (values.dim() - 2)
    return torch.nn.functional.pad(values, (*spare, 0, width - values.shape[1]))
