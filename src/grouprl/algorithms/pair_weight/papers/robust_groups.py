"""Weights of pairs by the data group they come from."""

from __future__ import annotations

from torch import Tensor

from grouprl.algorithms.pair_weight.pair_weight import PairWeight
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch

GROUP_WEIGHT = "past.group_weight"
"""Batch field with the weight of each row by the data group that it comes from; the mean over rows is 1 if
the step has every group."""


@part("pair_weight")
class GroupWeight(PairWeight):
    """The weights of the data's groups that `robust_groups` learns: pairs of a group with a large loss count more."""

    reads = (GROUP_WEIGHT,)
    says = "pairs count by the weight of the data group they come from, as learned so far"
    equation = "× q_g·N/n_g (detached)"
    plain = "weight_e = past['group_weight'][index_2e[0]]"

    def __call__(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the weight of the better row of each pair; both rows have the same."""
        weight_b: Tensor = batch.need(GROUP_WEIGHT, self.name)
        return weight_b[index_e2[:, 0]]
