"""Disliked completions weighed by how likely their prompt is among those of liked ones (BCO)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.objective.regression import completion_value
from grouprl.algorithms.part import part
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.core.batch import Batch

DENSITY = "past.density_ratio"


@part("token_weight")
class DensityWeight(TokenWeight):
    """Weigh completions with an advantage of at most `threshold` by `past.density_ratio`, which `prompt_density` gives.

    Disliked completions then count as if their prompts came as often as with liked ones (BCO, arXiv:2404.04656).
    """

    threshold: float = 0.5
    says = "weigh disliked completions by how likely their prompt is among those of liked ones"
    equation = "× r(x) if A ≤ {threshold:g}"
    reads = (DENSITY,)
    plain = """liked_b = completion_value(adv_bt, active_bt) > {threshold!r}
factor_bt = factor_bt * torch.where(liked_b, 1.0, past['density_ratio'])[:, None]"""

    def __call__(self, batch: Batch) -> Tensor:
        """Return the ratio of the prompt for disliked completions, 1 for liked ones."""
        liked_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt) > self.threshold
        return batch.broadcast(torch.where(liked_b, 1.0, batch.need(DENSITY, self.name)))
