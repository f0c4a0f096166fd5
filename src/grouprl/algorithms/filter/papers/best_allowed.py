"""Selection of single completions of a group by their rewards and their constraints (CGPO, best of n)."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.filter.filter import Filter, drop
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch

HELD = 0.5
"""Value of a component from which its constraint holds: judges say 0 or 1."""
KEEP = """active_bt = active_bt & kept_b[:, None]
counts_b, same_bb = counts_b & kept_b, same_bb & kept_b"""
"""Takes all rows but those of `kept_b` out, in plain torch."""


def constraint_names(constraints: tuple[str, ...]) -> tuple[str, ...]:
    """Return the fields of a batch that hold the constraints' components."""
    return tuple(f"rewards.{name}" for name in constraints)


def holds_code(constraints: tuple[str, ...]) -> str:
    """Return the expression [B] bool of `satisfied` in plain torch; '' without constraints."""
    return " & ".join(f"(rewards[{name!r}] >= {HELD!r})" for name in constraints)


def satisfied(batch: Batch, constraints: tuple[str, ...], name: str) -> Tensor:
    """Return [B] bool: rows on which every constraint, a component of the reward, is at least one half."""
    held_b = torch.ones_like(batch.stats_b)
    for field in constraint_names(constraints):
        held_b = held_b & (batch.need(field, name) >= HELD)
    return held_b


@part("filter")
class BestOfGroup(Filter):
    """Keep the completions of each group with the largest reward, if that is above `above`; equal ones all count.

    The others leave the loss and its denominators (best of n, RAFT, arXiv:2304.06767; CRRAFT of CGPO).
    """

    above: float | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Drop all rows but the best of each group."""
        allowed_b = batch.stats_b & batch.active_bt.any(1)
        if self.above is not None:
            allowed_b = allowed_b & (batch.total_reward_b > self.above)
        return drop(batch, ~extreme(batch.total_reward_b, batch.group_b, allowed_b), from_statistics=True)

    @override
    def words(self) -> str:
        bound = "" if self.above is None else f", if its reward is above {self.above:g}"
        return f"train on the completions of each group with the largest reward{bound}"

    @override
    def formula(self) -> str:
        return "y* = argmax_g R" + ("" if self.above is None else f" where R > {self.above:g}")

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        bound = "" if self.above is None else f" & (reward_b > {self.above!r})"
        return f"kept_b = extreme(reward_b, group_b, counts_b & active_bt.any(1){bound})\n{KEEP}"


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


def extreme(value_b: Tensor, group_b: Tensor, allowed_b: Tensor) -> Tensor:
    """Return [B] bool: the allowed rows of each group with its largest value."""
    same_bb = (group_b[:, None] == group_b[None]) & allowed_b[None]
    most_b = torch.where(same_bb, value_b[None], -torch.inf).amax(1)
    return allowed_b & (value_b == most_b)


def _any(chosen_b: Tensor, group_b: Tensor) -> Tensor:
    """Return [B] bool: rows of groups with a chosen one."""
    return torch.isin(group_b, group_b[chosen_b])
