"""Rows of different origin in one step: what is fixed, left out or averaged by where a row comes from."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantages.normalize import Normalize
from grouprl.algorithms.filters.selection import Selection
from grouprl.algorithms.part import part
from grouprl.algorithms.reductions.aggregate import Aggregate, ConstantLength, SequenceMean, TokenMean
from grouprl.algorithms.token_weights.weighting import Weighting
from grouprl.core.batch import Batch

Source = Literal["guided", "demonstration", "replay", "reference", "verification", "extra", "review"]
Inner = Literal["token_mean", "sequence_mean", "constant_length"]
_AGGREGATES: dict[str, type[Aggregate]] = {
    "token_mean": TokenMean,
    "sequence_mean": SequenceMean,
    "constant_length": ConstantLength,
}
PLURAL: dict[str, str] = {
    "guided": "guided completions",
    "demonstration": "demonstrations",
    "replay": "replayed completions",
    "reference": "completions of the initial policy",
    "verification": "verifications",
    "extra": "extra completions",
    "review": "reviews",
}


@part("filter")
class SourceApart(Selection):
    """Rows of one source do not count in group statistics; they stay in the loss."""

    source: Source = "demonstration"

    def __call__(self, batch: Batch) -> Batch:
        """Take the source's rows out of statistics."""
        return batch.replace(stat_b=batch.stats_b & ~batch.from_source(self.source))

    @override
    def words(self) -> str:
        return f"{PLURAL[self.source]} do not count in group statistics"


@part("advantage_transform")
class FixedAdvantage(Normalize):
    """Rows of one source have one advantage, whatever their group says (AEPO's one-sided R = 1, arXiv:2510.08141)."""

    source: Source = "extra"
    value: float = 1.0

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """A = value on the source's rows."""
        return torch.where(batch.from_source(self.source)[:, None], self.value, adv_bt)

    @override
    def words(self) -> str:
        return f"{PLURAL[self.source]} have the advantage {self.value:g}"

    @override
    def formula(self) -> str:
        return f"A ← {self.value:g} on {PLURAL[self.source]}"


@part("token_weight")
class WithoutPolicyLoss(Weighting):
    """Rows of one source have no policy loss; regularisers still see them."""

    source: Source = "reference"

    def __call__(self, batch: Batch) -> Tensor:
        """0 on the source's rows, else 1."""
        return batch.broadcast((~batch.from_source(self.source)).to(batch.dtype))

    @override
    def words(self) -> str:
        return f"{PLURAL[self.source]} take no part in the policy loss, only in regularisers"

    @override
    def formula(self) -> str:
        return f"× 0 on {PLURAL[self.source]}"


@part("aggregate")
class BySource(Aggregate):
    """Two averages in one step: rows of `source` by `inside`, all others by `outside`, each with its own denominators.

    The loss is their sum, so neither is diluted by how many rows the other has.
    """

    source: Source = "demonstration"
    inside: Inner = "token_mean"
    outside: Inner = "token_mean"

    def __call__(self, batch: Batch) -> Tensor:
        """w_t = w_inside on the source's rows, w_outside on the others."""
        inside_bt = batch.from_source(self.source)[:, None] & batch.active_bt
        return self._weights(self.inside, batch, inside_bt) + self._weights(
            self.outside, batch, batch.active_bt & ~inside_bt
        )

    def _weights(self, name: Inner, batch: Batch, active_bt: Tensor) -> Tensor:
        return _AGGREGATES[name]()(batch.replace(loss_mask_bt=active_bt))

    @override
    def needs(self) -> tuple[str, ...]:
        names = [name for part in (self.inside, self.outside) for name in _AGGREGATES[part]().needs()]
        return tuple(dict.fromkeys(names))

    @override
    def words(self) -> str:
        inside, outside = (_AGGREGATES[name]().words() for name in (self.inside, self.outside))
        return f"{PLURAL[self.source]}: {inside}. The others: {outside}"

    @override
    def formula(self) -> str:
        inside, outside = (_AGGREGATES[name]().formula() for name in (self.inside, self.outside))
        return f"{inside} over {PLURAL[self.source]} + {outside} over the others"
