"""Training on the completions that are better than expected, and on no others (A-LoL)."""

from __future__ import annotations

from grouprl.algorithms.filter.filter import drop
from grouprl.algorithms.part import part
from grouprl.algorithms.prune.prune import Prune
from grouprl.core.batch import Batch


@part("prune")
class PositiveAdvantages(Prune):
    """Keep tokens of positive advantage; completions without one leave the denominators (A-LoL, arXiv:2305.14718)."""

    says = "leave out what has no positive advantage, also from the denominators"
    plain = "active_bt = active_bt & (adv_bt > 0)"

    def __call__(self, batch: Batch) -> Batch:
        """Drop tokens whose advantage is 0 or less."""
        positive_bt = batch.need("advantage_bt", self.name) > 0
        kept = batch.replace(loss_mask_bt=batch.active_bt & positive_bt)
        return drop(kept, ~(batch.active_bt & positive_bt).any(1), from_statistics=False)
