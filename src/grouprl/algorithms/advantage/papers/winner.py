"""Populations of strategies: only the one that wins an instance is credited."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import GroupAdvantage
from grouprl.algorithms.advantage.papers.best_of_group import BestOverSecond
from grouprl.algorithms.lines import compared
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch

SLOTS = (
    'alike_bb = (group_b[:, None] == group_b) & (keys["variant"][:, None] == keys["variant"])\n'
    "order_b = torch.arange(len(group_b))\n"
    "slot_b = (alike_bb & (order_b[:, None] > order_b)).sum(1)\n"
    "slot_bb = same_bb & (slot_b[:, None] == slot_b)\n"
    "best_b = torch.where(slot_bb, reward_b, -torch.inf).amax(1)\n"
    "top_b = counts_b & (reward_b == best_b)\n"
    "won_b = top_b & ((slot_bb & top_b).sum(1) == 1)\n"
)
"""Lines that find which rows win their slot alone."""


def slots(batch: Batch, part: str) -> tuple[Tensor, Tensor]:
    """Return [B] ids of strategies within prompts, and of slots: the first rows of each strategy, the second …"""
    strategy_b = levels.cross(batch.group_b, batch.need("keys.variant", part))
    order_b = torch.arange(len(strategy_b), device=strategy_b.device)
    return strategy_b, levels.cross(batch.group_b, levels.rank(order_b, strategy_b))


def of_strategy(batch: Batch, strategy_b: Tensor) -> Tensor:
    """Return [B] how far each reward is above the mean of its strategy."""
    weight_b = batch.stats_b.to(batch.dtype)
    return levels.relative(batch.total_reward_b, strategy_b, scale="none", eps=0.0, weight_n=weight_b)


class _OfStrategies(GroupAdvantage):
    reads = ("keys.variant",)


@part("advantage")
class WinnerMargin(_OfStrategies):
    """(R_max - R_second) for the best strategy of each slot, 0 for all others (Poppy, arXiv:2210.03475).

    A slot is the j-th solution of every strategy (`keys.variant`) for one instance. Without the winner the slot's best
    would be the second: it is the leave-one-out credit of a population. Ties give 0. With a single strategy there is no
    second, and the advantage is R - mean R over its solutions, POMO's.
    """

    says = "the strategy that does best gets how far it beats the second best one, all others get 0"
    equation = "A_j,k = [k = argmax_k' R_j,k']·(max_k' R_j,k' - second_k' R_j,k')"

    def __call__(self, batch: Batch) -> Tensor:
        """Return A, the same for all tokens of a row, [B,T]."""
        strategy_b, slot_b = slots(batch, self.name)
        margin_bt = BestOverSecond(scale="none")(batch.replace(group_b=slot_b))
        alone_b = levels.count(slot_b, batch.stats_b.to(batch.dtype)) <= 1
        return torch.where(alone_b[:, None], batch.broadcast(of_strategy(batch, strategy_b)), margin_bt)

    @override
    def code(self) -> str:
        mean = compared("reward_b", "same_bb & alike_bb", "none", 0.0)
        return (
            f"{SLOTS}"
            "second_b = torch.where(slot_bb & ~top_b, reward_b, -torch.inf).amax(1)\n"
            f"mean_gap_b = {mean} * counts_b\n"
            "adv_b = torch.where(won_b, best_b - second_b, 0)\n"
            "adv_b = torch.where(slot_bb.sum(1) > 1, adv_b, mean_gap_b)\n"
            "adv_bt = adv_b[:, None] * mask_bt"
        )


@part("advantage")
class StrictWinner(_OfStrategies):
    """R - mean R over the strategy's own solutions, if it wins the slot alone, else 0 (COMPASS, arXiv:2311.13569).

    A slot is the j-th solution of every strategy (`keys.variant`) for one instance. Where the best are tied, none is
    trained. A single strategy wins every slot: POMO.
    """

    says = "the strategy that alone does best is compared with its own other solutions, all others get 0"
    equation = "A_j,k = [k alone is best of slot j]·(R_j,k - mean_j' R_j',k)"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that there is nothing to search in where strategies are told by their numbers."""
        numbered = (
            f"{self.name} has no latent space: the task tells the policy of {run.variants} strategies by their "
            "numbers, and there are none between them. Set task.latent (construct:…)"
        )
        return [numbered] if run.vectors is False and (run.variants or 1) > 1 else []

    def __call__(self, batch: Batch) -> Tensor:
        """Return A, the same for all tokens of a row, [B,T]."""
        strategy_b, slot_b = slots(batch, self.name)
        weight_b = batch.stats_b.to(batch.dtype)
        best_b = levels.extreme(batch.total_reward_b, slot_b, weight_b, largest=True)
        top_b = batch.stats_b & (batch.total_reward_b == best_b)
        won_b = top_b & (levels.count(slot_b, top_b.to(weight_b.dtype)) == 1)
        return batch.broadcast(torch.where(won_b, of_strategy(batch, strategy_b), 0))

    @override
    def code(self) -> str:
        mean = compared("reward_b", "same_bb & alike_bb", "none", 0.0)
        return f"{SLOTS}adv_b = torch.where(won_b, {mean}, 0)\nadv_bt = adv_b[:, None] * mask_bt"
