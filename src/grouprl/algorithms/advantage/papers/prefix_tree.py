"""The completions of a group as a prefix tree: credit where they branch, with every node counted once (T-SPMO)."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage.advantage import GroupAdvantage
from grouprl.algorithms.part import part
from grouprl.core import levels
from grouprl.core.batch import Batch


def nodes(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return [B,T] int64 ids of (prefix, next token) and of the prefix alone, over active tokens; -1 elsewhere."""
    active_bt, token_bt = batch.active_bt, batch.need("token_bt", "the prefix tree")
    node_bt, prefix_bt = (torch.full(active_bt.shape, -1, device=active_bt.device) for _ in range(2))
    here_b, used = levels.compact(batch.group_b)
    kinds = int(token_bt[active_bt].max()) + 1 if bool(active_bt.any()) else 1
    for t in range(active_bt.shape[1]):
        row_r = active_bt[:, t].nonzero()[:, 0]
        if len(row_r):
            prefix_bt[row_r, t] = here_b[row_r]
            child_r, count = levels.compact(here_b[row_r] * kinds + token_bt[row_r, t])
            here_b[row_r] = used + child_r
            node_bt[row_r, t] = here_b[row_r]
            used += count
    return node_bt, prefix_bt


@part("advantage")
class PrefixTree(GroupAdvantage):
    """Reward of the completions that take this token here, minus that of those that share the prefix but do not.

    A(v|u) = mean R of completions through u and v - mean R of completions through u without v; 0 where nothing branches
    (arXiv:2504.20834).
    """

    says = "where the group's completions branch: mean reward with this token minus that of the others' choices"
    equation = "A(v|u) = mean R(u→v) - mean R(u→not v)"
    reads = ("token_bt",)
    plain = (
        "there_bt = active_bt & counts_b[:, None]\n"
        "here_bbt = same_prefix(token_bt, active_bt, group_b) & there_bt\n"
        "before_bbt = same_bb[..., None] & there_bt\n"
        "before_bbt[..., 1:] &= same_prefix(token_bt, active_bt, group_b)[..., :-1]\n"
        "rest_bbt = before_bbt & ~here_bbt  # the same tokens before, another one here\n"
        "here_bt = (here_bbt * reward_b[:, None]).sum(1) / here_bbt.sum(1).clamp(min=1)\n"
        "rest_bt = (rest_bbt * reward_b[:, None]).sum(1) / rest_bbt.sum(1).clamp(min=1)\n"
        "best_bt = torch.where(before_bbt, reward_b[:, None], -torch.inf).amax(1)\n"
        "worst_bt = torch.where(before_bbt, reward_b[:, None], torch.inf).amin(1)\n"
        "adv_bt = torch.where(there_bt & rest_bbt.any(1) & (best_bt > worst_bt), here_bt - rest_bt, 0)"
    )

    def __call__(self, batch: Batch) -> Tensor:
        """Return mean R(u→v) - mean R(u→other), [B,T]."""
        active_bt = batch.active_bt & batch.stats_b[:, None]
        node_n, prefix_n = (x[active_bt] for x in nodes(batch))
        reward_n = batch.total_reward_b[:, None].expand_as(active_bt)[active_bt]
        here_n, here_count_n = levels.total(reward_n, node_n), levels.count(node_n, dtype=batch.dtype)
        rest_n = levels.total(reward_n, prefix_n) - here_n
        rest_count_n = levels.count(prefix_n, dtype=batch.dtype) - here_count_n
        around_n = here_n / here_count_n - rest_n / rest_count_n.clamp(min=1)
        out_bt = torch.zeros(batch.size, dtype=batch.dtype, device=active_bt.device)
        branches_n = (rest_count_n > 0) & levels.differs(reward_n, prefix_n)
        out_bt[active_bt] = torch.where(branches_n, around_n, 0)
        return out_bt
