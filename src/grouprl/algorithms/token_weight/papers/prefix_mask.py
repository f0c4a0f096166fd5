"""Training only on the beginning of each completion, a longer one as the run proceeds (PPPO)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import PositiveShare


@part("token_weight")
class PrefixMask(TokenWeight):
    """PPPO: only the first ⌊η|y|⌋ tokens of each completion are trained; denominators keep all tokens
    (arXiv:2512.15274).

    The share η grows from `start` by `grow` up to `limit`, in equal parts of the run. A completion whose prefix is
    empty gives no gradient.
    """

    start: PositiveShare = 0.15
    grow: Annotated[float, Field(ge=0)] = 0.05
    limit: PositiveShare = 0.35

    def __post_init__(self) -> None:
        """Raise InputError if the limit is below the start."""
        if self.limit < self.start:
            raise InputError(
                f"prefix_mask: limit {self.limit:g} < start {self.start:g}", "the share of trained tokens only grows"
            )

    def __call__(self, batch: Batch) -> Tensor:
        """Return [t ≤ ⌊η|y|⌋]."""
        last_b = (self.share(batch) * batch.length_b.to(torch.float64) + 1e-9).floor()
        return (batch.mask_bt & (batch.mask_bt.cumsum(1) <= last_b[:, None])).to(batch.dtype)

    @override
    def code(self) -> str:
        share = repr(self.start)
        if self.sizes > 1:
            done = f"int(min(step / max(steps, 1), 1.0) * {self.sizes} + 1e-9)"
            share = f"min({self.start!r} + {self.grow!r} * {done}, {self.limit!r})"
        return (
            f"share = {share}\n"
            "last_b = (share * mask_bt.sum(1).double() + 1e-9).floor()\n"
            "factor_bt = factor_bt * (mask_bt.cumsum(1) <= last_b[:, None])"
        )

    @property
    def sizes(self) -> int:
        """Return the number of different shares."""
        return 1 if self.grow == 0 else 1 + math.ceil((self.limit - self.start) / self.grow - 1e-9)

    def share(self, batch: Batch) -> float:
        """Return η at this step of the run."""
        if self.sizes == 1:
            return self.start
        done = batch.need("step", self.name) / max(batch.need("steps", self.name), 1)
        return min(self.start + self.grow * int(min(done, 1.0) * self.sizes + 1e-9), self.limit)

    @override
    def needs(self) -> tuple[str, ...]:
        return () if self.sizes == 1 else ("step", "steps")

    @override
    def words(self) -> str:
        grows = "" if self.sizes == 1 else f", growing to {self.limit:.0%} over the run"
        return f"train only on the first {self.start:.0%} of each completion's tokens{grows}"

    @override
    def formula(self) -> str:
        grows = "" if self.sizes == 1 else f",  η from {self.start:g} to {self.limit:g}"
        return f"× [t ≤ ⌊η|y|⌋]{grows}" if grows else f"× [t ≤ ⌊{self.start:g}|y|⌋]"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if its share is 1, and that `limit` has none if the share never grows."""
        if self.start == 1:
            return ["prefix_mask has no effect: its share is 1"]
        stuck = self.grow == 0 and self.limit > self.start
        return ["prefix_mask.limit has no effect: the share never grows"] if stuck else []

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run in which no completion is long enough to have a prefix."""
        if run.max_length and int(self.limit * run.max_length + 1e-9) == 0:
            return [
                f"prefix_mask trains on ⌊{self.limit:g}·|y|⌋ tokens, which is none for completions of at most "
                f"{run.max_length} tokens. Allow longer completions or a larger share"
            ]
        return []
