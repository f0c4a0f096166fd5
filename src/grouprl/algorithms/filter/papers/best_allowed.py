"""Selection of pairs of a group by their rewards and their constraints (CGPO)."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.filter.best_of_group import KEEP, extreme
from grouprl.algorithms.filter.constraints import constraint_names, holds_code, satisfied
from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch


@part("filter")
class JudgedPair(Filter):
    """Make a pair of each group: the best completion that satisfies all constraints, the worst that violates one.

    Where all satisfy them, the worse is the worst of all. Equal ones all count, in all their pairs. The others leave
    the loss; a group without a satisfying completion, or without a difference, has no pair. The pair's rewards become
    1 and 0, whatever a violating completion earned (CODPO of CGPO, arXiv:2409.20370).
    """

    constraints: tuple[str, ...] = ()

    def __call__(self, batch: Batch) -> Batch:
        """Drop all rows but those of a pair, and set their rewards."""
        reward_b, group_b = batch.total_reward_b, batch.group_b
        counts_b = batch.stats_b & batch.active_bt.any(1)
        held_b = satisfied(batch, self.constraints, self.name)
        best_b = extreme(reward_b, group_b, counts_b & held_b)
        violated_b = counts_b & ~held_b
        kept_b = torch.where(_any(violated_b, group_b), violated_b, counts_b)
        worst_b = extreme(-reward_b, group_b, kept_b)
        paired_b = _any(best_b, group_b) & ~_any(best_b & worst_b, group_b)
        dropped = drop(batch, ~((best_b | worst_b) & paired_b), from_statistics=True)
        return dropped.replace(reward_b=best_b.to(batch.dtype), token_reward_bt=None)

    @override
    def needs(self) -> tuple[str, ...]:
        return constraint_names(self.constraints)

    @override
    def words(self) -> str:
        what = f" that satisfies {', '.join(self.constraints)}" if self.constraints else ""
        worse = "one that does not" if self.constraints else "one"
        return f"pair the best completion of a group{what} with the worst {worse}"

    @override
    def formula(self) -> str:
        return "w = argmax_{v=1} R,  l = argmin_{v=0} R, or argmin R where v = 1 throughout"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which have no pairs."""
        if run.group_size == 1:
            return ["judged_pair compares completions of one prompt. Use batch.group_size of 2 or more"]
        return []

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        held = holds_code(self.constraints)
        lines = ["known_b = counts_b & active_bt.any(1)", "held_b, rated_b = known_b, known_b"]
        if held:
            lines[1:] = [
                f"held_b, broken_b = known_b & {held}, known_b & ~({held})",
                "rated_b = torch.where((same_bb & broken_b).any(1), broken_b, known_b)",
            ]
        return "\n".join(
            [
                *lines,
                "best_b, worst_b = extreme(reward_b, group_b, held_b), extreme(-reward_b, group_b, rated_b)",
                "paired_b = (same_bb & best_b).any(1) & ~(same_bb & best_b & worst_b).any(1)",
                "kept_b, reward_b = (best_b | worst_b) & paired_b, best_b.to(reward_b.dtype)",
                KEEP,
            ]
        )


def _any(chosen_b: Tensor, group_b: Tensor) -> Tensor:
    """Return [B] bool: rows of groups with a chosen one."""
    return torch.isin(group_b, group_b[chosen_b])
