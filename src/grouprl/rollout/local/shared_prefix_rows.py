"""Rows with equal tokens so far share one row of the decoder, which is decoded once for all of them.

Why: the completions of a group begin with the same prompt, and a confident policy often samples the same first tokens.
    As long as two rows have the same history their logits are equal, so computing them once changes nothing; each row
    still has its own uniform number, and diverges from the others when that picks another token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from grouprl.rollout.local.decoder_protocol import Giving


class Forking(Giving, Protocol):
    """A decoder in which a row can be forked into several."""

    def start(
        self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int, rows: int | None = None
    ) -> torch.Tensor:
        """Begin as every decoder does, with memory for `rows` rows at a time; None: for those that begin now."""
        ...

    def keep(self, index_n: torch.Tensor, rows: int | None = None) -> None:
        """Continue as every decoder does, with memory for `rows` rows at a time; None: for those that continue."""
        ...

    def fork(self, parent_n: torch.Tensor) -> None:
        """Append a copy of each of the rows `parent_n`, which continues as that row does."""
        ...


class Branches:
    """A decoder of R rows over one of K branches: rows with the same prompt and the same tokens so far share one.

    Every row begins on its prompt's branch; if rows of a branch continue with different tokens, it forks. Results equal
    those of R separate rows, up to the rounding of products with fewer rows.
    """

    def __init__(self, decoder: Forking) -> None:
        self.decoder = decoder

    def start(self, prompts: Sequence[Sequence[int]], prompt_r: Sequence[int], room: int) -> torch.Tensor:
        """Begin one branch for each prompt."""
        logits_kv = self.decoder.start(prompts, range(len(prompts)), room, rows=len(prompt_r))
        self.width = self.decoder.width
        self.branches, self.vocabulary = logits_kv.shape
        self.branch_r = torch.as_tensor(prompt_r, device=logits_kv.device)
        self.lined_up = False
        return logits_kv[self.branch_r]

    def step(self, token_r: torch.Tensor) -> torch.Tensor:
        """Append one token to each row; fork the branches whose rows got different tokens."""
        if not self.lined_up:
            token_k = self._fork(token_r)
            # Branches never meet again, so once there are as many as rows the bookkeeping has nothing left to save.
            if self.branches < len(token_r):
                return self.decoder.step(token_k)[self.branch_r]
            self._line_up()
        return self.decoder.step(token_r)

    def _line_up(self) -> None:
        """Put the branches in the order of the rows; from now on each row has its own branch."""
        # There are as many branches as rows, so this is a permutation, and the decoder copies no more than it has.
        self.decoder.keep(self.branch_r)
        self.branch_r, self.lined_up = torch.arange(self.branches, device=self.branch_r.device), True

    def _fork(self, token_r: torch.Tensor) -> torch.Tensor:
        """Give each distinct token of each branch its own branch, the first of them the branch itself; return the
        tokens [K].
        """
        # One number per (branch, token): the unique ones are the branches of the next step. Sorted by branch, the first
        # token of each continues in its parent's row, which need not move; only further tokens copy a cache.
        key_r = (
            (self.branch_r * self.vocabulary + token_r).cpu().numpy()
        )  # for small arrays numpy takes a third of the time
        told, child_r = np.unique(key_r, return_inverse=True)
        parent_n, token_n = told // self.vocabulary, told % self.vocabulary
        new_n = np.append(False, parent_n[1:] == parent_n[:-1])
        place_n = np.where(new_n, self.branches - 1 + new_n.cumsum(), parent_n)
        if len(told) > self.branches:
            self.decoder.fork(self._tensor(parent_n[new_n]))
        self.branches, self.branch_r = len(told), self._tensor(place_n[child_r])
        token_k = np.empty_like(token_n)
        token_k[place_n] = token_n
        return self._tensor(token_k)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.branch_r.device)

    def keep(self, index_n: torch.Tensor) -> None:
        """Continue with the rows `index_n` and the branches that they need."""
        if self.lined_up:
            self.decoder.keep(index_n)
            self.branches, self.branch_r = len(index_n), self.branch_r[: len(index_n)]
            return
        # A branch stays as long as any of its rows does: ended rows leave without a copy while others stay.
        needed_k, self.branch_r = torch.unique(self.branch_r[index_n], return_inverse=True)
        if len(needed_k) < self.branches:
            self.decoder.keep(needed_k, rows=len(index_n))
            self.branches = len(needed_k)

    def written(self, index_n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the keys and values of the rows `index_n`."""
        return self.decoder.written(self.branch_r[index_n])
