"""Copies of a model on several ranks, each of which takes a share of the rows of every pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

from grouprl.core.spans import span, spanned
from grouprl.policy.replicated import replica_work as work
from grouprl.policy.sharded.ranks import Ranks
from grouprl.policy.sharded.row_split import split_over_ranks
from grouprl.policy.state import check_cotangents, check_outputs, live_rows, of_rows
from grouprl.policy.vectors.module_policy import TrainableModule, laid
from grouprl.processes.parcel import pack
from grouprl.protocols import PolicyInputs

Found = TypeVar("Found")


class Replicas:
    """The ranks that hold copies of a model, as rank 0 sees them; see `grouprl.protocols.PassHelpers`.

    Rank 0 has the model, its optimiser and everything else; the others only score rows and accumulate gradients, which
    are summed.

    Args:
        ranks: the ranks, which have begun.
        model: the model of rank 0.
        plugins: the run's plugins, which may define the model's class.

    Raises:
        CannotSend: the model cannot be sent to another process.
    """

    def __init__(self, ranks: Ranks, model: TrainableModule, plugins: tuple[str, ...] = ()) -> None:
        self.ranks, self.model = ranks, model
        parcel = pack(model, "policy")
        ranks.each(work.prepare, (plugins, torch.get_num_threads()))
        ranks.call(work.keep, [model, *[parcel] * (ranks.count - 1)])

    @spanned("forward")
    def evaluate(self, inputs: PolicyInputs, names: Sequence[str], /) -> dict[str, Tensor]:
        """Return the outputs `names` of rows without a graph; see `grouprl.protocols.Trainable.evaluate`."""
        check_outputs(self.model, names)
        if not len(inputs):
            return self.model.evaluate_here(inputs, names)
        shares = self._split(inputs, range(len(inputs)))
        wanted = [work.RowsToScore(inputs.rows(rows) if rows else None, tuple(names)) for rows in shares]
        parts = [part for part in self.ranks.call(work.score, wanted) if part is not None]
        order = [row for rows in shares for row in rows]
        place = self.model.device
        return {name: laid([part[name] for part in parts], order, inputs.width).to(place) for name in names}

    def backward(self, inputs: PolicyInputs, cotangents: Mapping[str, Tensor], /) -> None:
        """Add the gradients of sum(cotangent * output); see `grouprl.protocols.Trainable.backward`."""
        check_cotangents(self.model, inputs, cotangents)

        def piece(rows: list[int]) -> tuple[PolicyInputs, dict[str, Tensor]]:
            own = inputs.rows(rows)
            return own, {name: c.cpu() for name, c in of_rows(cotangents, rows, own.width).items()}

        self.run_passes(work.pull, None, inputs, live_rows(inputs, cotangents), piece, tuple(cotangents))

    def run_passes(
        self,
        function: Callable[..., Found],
        common: object,
        inputs: PolicyInputs,
        rows: Sequence[int],
        piece: Callable[[list[int]], object],
        names: Sequence[str],
        /,
    ) -> list[Found]:
        """Have the ranks process `rows` pass by pass; see `grouprl.protocols.DistributedModel.run_passes`."""
        if not len(rows):
            return []
        cut = [self.model.passes(inputs, own) for own in self._split(inputs, rows)]
        shares = [work.CopyPasses(function, common, [piece(own) for own in passes]) for passes in cut]
        with span("backward"):
            done = self.ranks.call(work.run_passes, shares)
        return [cast("Found", each) for found in done for each in found]

    def _split(self, inputs: PolicyInputs, rows: Sequence[int]) -> list[list[int]]:
        """Divide `rows` among the ranks, balanced by positions."""
        length_b = inputs.present_bt().sum(1).tolist()
        own = [length_b[row] for row in rows]
        shares = split_over_ranks(range(len(rows)), [0] * len(rows), own, self.ranks.count)
        return [[rows[i] for i in share] for share in shares]
