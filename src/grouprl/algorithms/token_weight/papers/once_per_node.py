"""Weights with which every node of a group's prefix tree counts once (T-SPMO)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage.papers.prefix_tree import nodes
from grouprl.algorithms.part import part
from grouprl.algorithms.token_weight.token_weight import TokenWeight
from grouprl.core import levels
from grouprl.core.batch import Batch


@part("token_weight")
class OncePerNode(TokenWeight):
    """Count every distinct (prefix, token) of a group once: 1 / number of completions that share it."""

    says = "count a token that several completions share after the same prefix only once"
    equation = "× 1/#completions through (u, v)"
    reads = ("token_bt",)
    plain = (
        "alike_bt = (same_prefix(token_bt, active_bt, group_b) & active_bt).sum(1)\n"
        "factor_bt = factor_bt / alike_bt.clamp(min=1)"
    )

    def __call__(self, batch: Batch) -> Tensor:
        """Return 1 / #completions through the node."""
        active_bt, out_bt = batch.active_bt, torch.zeros(batch.size, dtype=batch.dtype)
        out_bt[active_bt] = 1 / levels.count(nodes(batch)[0][active_bt], dtype=batch.dtype)
        return out_bt
