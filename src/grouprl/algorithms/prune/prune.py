"""Pruning: choosing which completions of a prepared batch are worth an update, without computing advantages again.

A pruned completion leaves the loss and its denominators and costs no pass through the model. How many of n completions
stay is `max(floor(n · (1 - rate)), least)`. Completions that tie are told apart by a fixed shuffle made from their own
log-probs, so that the choice depends neither on the order of rows nor on chance.
"""

from __future__ import annotations

from grouprl.algorithms.part import Part
from grouprl.core.batch import Batch


class Prune(Part):
    """Base: a prepared batch with a smaller loss mask."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with rows taken out of the loss; advantages stay as they are."""
        raise NotImplementedError
