"""Weights of turns by how long their actions took."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.part import part
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.algorithms.turn_returns import on_tokens, turn_means, turns_of
from grouprl.core.batch import Batch


@part("token_weight")
class DurationWeight(TokenWeight):
    """Multiply the loss of a turn by the seconds of its action over their mean in the batch (arXiv:2509.01684).

    If actors continue as soon as an action is done, the number of actions is inversely proportional to their duration;
    the weight corrects for that.
    """

    says = "weigh each turn by how long its action took, over the mean of the batch"
    equation = "× Δt_k / mean Δt"
    reads = ("turn_bt", "stats.duration")
    plain = (
        "turns = int(turn_bt.max()) + 1\n"
        'second_bs = mean_of_turns(stats["duration"], mask_bt, turn_bt, turns)\n'
        "second_n = second_bs[turns_there(turn_bt, mask_bt, turns) & counts_b[:, None]]\n"
        "second = torch.where(second_n.sum() > 0, second_n.sum(), 1) / max(len(second_n), 1)\n"
        "factor_bt = factor_bt * to_tokens(second_bs / second, turn_bt, mask_bt)"
    )

    def __call__(self, batch: Batch) -> Tensor:
        """Return Δt_k / mean Δt."""
        there_bs = turns_of(batch, self.name)
        duration_bt = batch.need("stats.duration", self.name)
        seconds_bs = turn_means(duration_bt, batch.mask_bt, batch, there_bs, self.name)
        counted_bs = there_bs & batch.stats_b[:, None]
        total = seconds_bs[counted_bs].sum()
        mean = torch.where(total > 0, total, 1) / counted_bs.sum().clamp(min=1)
        return on_tokens(seconds_bs / mean, batch, self.name)
