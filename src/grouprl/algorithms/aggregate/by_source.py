"""Two averages in one optimiser step: one over the rows of one source, one over the others."""

from __future__ import annotations

from typing import Literal

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.aggregate.aggregate import Aggregate, ConstantLength, SequenceMean, TokenMean
from grouprl.algorithms.lines import is_from
from grouprl.algorithms.part import part
from grouprl.algorithms.sources import PLURAL, Source
from grouprl.core.batch import Batch

Inner = Literal["token_mean", "sequence_mean", "constant_length"]
_AGGREGATES: dict[str, type[Aggregate]] = {
    "token_mean": TokenMean,
    "sequence_mean": SequenceMean,
    "constant_length": ConstantLength,
}


@part("aggregate")
class BySource(Aggregate):
    """Two averages in one step: rows of `source` by `inside`, all others by `outside`, each with its own denominators.

    The loss is their sum, so neither is diluted by how many rows the other has.
    """

    source: Source = "demonstration"
    inside: Inner = "token_mean"
    outside: Inner = "token_mean"

    def __call__(self, batch: Batch) -> Tensor:
        """Return w_t = w_inside on the source's rows, w_outside on the others."""
        inside_bt = batch.from_source(self.source)[:, None] & batch.active_bt
        return self._weights(self.inside, batch, inside_bt) + self._weights(
            self.outside, batch, batch.active_bt & ~inside_bt
        )

    @override
    def code(self) -> str:
        inside, outside = (
            "\n".join(f"{line}" for line in _AGGREGATES[name]().code().split("\n")).replace("active_bt", which)
            for name, which in ((self.inside, "inside_bt"), (self.outside, "outside_bt"))
        )
        return (
            f"inside_bt = ({is_from(self.source)})[:, None] & active_bt\n"
            "outside_bt = active_bt & ~inside_bt\n"
            f"{inside}\n"
            "inner_bt = weight_bt\n"
            f"{outside}\n"
            "weight_bt = weight_bt + inner_bt"
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
