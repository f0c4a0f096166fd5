"""Optimiser steps after which the weights of two penalties follow how far the policy has moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from grouprl.algorithms.data_part import DataPart, RunContext
from grouprl.algorithms.part import part
from grouprl.algorithms.update.transitions import Transitions
from grouprl.algorithms.update.update import UpdateSteps
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative, Positive

if TYPE_CHECKING:
    from grouprl.records.samples import ScoredSamples

NEAR, FEWEST, MOST = 1.5, 1e-3, 1e3
"""Factor within which a distance counts as its target, and the bounds of a weight."""


def followed(weight: float, distance: float, target: float) -> float:
    """Return the next weight: half of it below target/1.5, twice of it above 1.5·target, within 0.001 and 1000."""
    factor = 0.5 if distance < target / NEAR else 2.0 if distance > NEAR * target else 1.0
    return min(max(weight * factor, FEWEST), MOST)


@part("update")
class AdaptedPenalties(Transitions, DataPart):
    """Optimiser steps on shuffled actions, after which β₁ and β₂ of `root_kl` move (arXiv:2211.03032).

    Once in a rollout: the KL is that of the last optimiser step, before it is taken; β₂ follows it to `target`, β₁ its
    root to the root of `target`. A weight is halved below 2/3 of its target and doubled above 1.5 of it.
    """

    async_safe = True

    target: Positive = 0.01
    start: NonNegative = 1.0
    fills = ("past.root_weight", "past.kl_weight")
    equation = (
        "∇ over {size} actions drawn without replacement; then β ← β/2 below target/1.5, 2β above 1.5·target "
        "(KL {target:g} for β₂, its root for β₁)"
    )
    says = (
        "take the rollout's actions in random order, {size} per optimiser step, then halve or double the "
        "weights of the penalties by how far the policy has moved from a KL of {target:g}"
    )

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.root_weight` and `past.kl_weight`, [B]."""
        root, kl = self.current(context)
        context.note("root_weight", root, "mean")
        context.note("kl_weight", kl, "mean")
        ones_b = torch.ones_like(batch.reward_b)
        return batch.replace(past={**batch.past, "root_weight": root * ones_b, "kl_weight": kl * ones_b})

    def __call__(self, learner: UpdateSteps, prepared: Batch) -> Iterator[dict[str, float]]:
        """Take the steps, yield the metrics of each, and move the weights by those of the last."""
        moved = None
        for record in super().__call__(learner, prepared):
            moved = record.get("kl_old", moved)
            yield record
        if moved is not None:
            root, kl = self.current(learner.context)
            distance = max(moved, 0.0)
            learner.context.state_of(self)["root"] = followed(root, distance**0.5, self.target**0.5)
            learner.context.state_of(self)["kl"] = followed(kl, distance, self.target)

    def current(self, context: RunContext) -> tuple[float, float]:
        """Return β₁ and β₂ of the current step."""
        known = context.state_of(self)
        return float(known.get("root", self.start)), float(known.get("kl", self.start))
