"""Selection: rows or tokens are removed from the loss and its denominators, optionally also from group statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.part import Part, RunFacts, part
from grouprl.algorithms.token_weight.token_weight import MismatchLevel, mismatch_ratio
from grouprl.core import levels
from grouprl.core.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor

MASKED = "masked"
"""Mark of tokens that have no loss but count in group statistics."""
UNCOUNTED = "uncounted"
"""Mark of masked tokens that a mean over tokens does not count either, though their completions still count."""
By = Literal["outcome", "reward"]
"""Distinction between the completions of a group: their correctness, or any difference of rewards."""


class Filter(Part):
    """Base: a batch with a smaller loss mask or fewer rows in its statistics."""

    guards: ClassVar[bool] = False
    """Whether the part only takes out what the loss cannot read: a run in which it never acts is then in order."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with rows or tokens taken out."""
        raise NotImplementedError


def drop(batch: Batch, dropped_b: Tensor, *, from_statistics: bool) -> Batch:
    """Take rows ([B] bool) out of the loss and its denominators, and out of group statistics if `from_statistics`."""
    active_bt = batch.active_bt & ~dropped_b[:, None]
    stats_b = batch.stats_b & ~dropped_b if from_statistics else batch.stats_b
    return batch.replace(loss_mask_bt=active_bt, stat_b=stats_b)


def unmasked(weight_bt: Tensor, batch: Batch) -> Tensor:
    """Return [B,T] weights of the loss, 0 on masked tokens, whether or not these count in denominators."""
    return torch.where(batch.marks[MASKED], 0, weight_bt) if MASKED in batch.marks else weight_bt


def mixed_rows(batch: Batch) -> Tensor:
    """Return [B] bool: rows of groups whose completions differ in raw outcome.

    The outcome is `correct_b` where given, else the reward before shaping.
    """
    outcome_b = batch.outcome_b if batch.correct_b is None else batch.correct_b.to(batch.dtype)
    return levels.differs(outcome_b, batch.group_b, batch.stats_b.to(batch.dtype))


def spread_rows(batch: Batch) -> Tensor:
    """Return [B] bool: rows of groups whose current rewards differ, token rewards included."""
    return levels.differs(batch.total_reward_b, batch.group_b, batch.stats_b.to(batch.dtype))


def telling_rows(batch: Batch, by: By) -> Tensor:
    """Return [B] bool: rows of groups whose outcomes (or rewards, as `by` says) differ."""
    return mixed_rows(batch) if by == "outcome" else spread_rows(batch)


@part("filter")
class MixedGroups(Filter):
    """Keep groups with both right and wrong completions; the others leave loss and denominators (DAPO, Reinforce-Rej).

    By raw correctness, or by the reward before shaping where correctness is not given. `by="reward"` keeps every
    group whose rewards differ, including one in which no completion is correct: the zero-variance filter of
    INTELLECT-2, THOR and ScaleRL. `in_statistics`: whether rows left out still count in statistics over the batch.
    """

    in_statistics: bool = False
    by: By = "outcome"

    def __call__(self, batch: Batch) -> Batch:
        """Drop groups whose completions are all right or all wrong (by="reward": all of the same reward)."""
        return drop(batch, ~telling_rows(batch, self.by), from_statistics=not self.in_statistics)

    @override
    def code(self) -> str:
        what = "correct_b.to(logp_bt.dtype)" if self.by == "outcome" else "reward_b"
        lines = [f"mixed_b = differs({what}, same_bb)", "active_bt = active_bt & mixed_b[:, None]"]
        if not self.in_statistics:
            lines += ["counts_b = counts_b & mixed_b", "same_bb = same_bb & counts_b"]
        return "\n".join(lines)

    @override
    def words(self) -> str:
        if self.by == "reward":
            return "leave out zero-variance groups (all rewards equal), also from the denominators"
        return "leave out prompts whose completions are all right or all wrong, also from the denominators"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which are never mixed: nothing would be left."""
        if run.group_size == 1:
            return ["mixed_groups leaves out every group of one completion. Use batch.group_size of 2 or more"]
        return []


@part("filter")
class MaskTruncated(Filter):
    """Completions that hit the length limit have no loss; their rewards and advantages count as usual.

    No term of the loss, KL and entropy included, has a gradient on them. `count`: "tokens", they and their tokens still
    count in the denominators; "completions", the completions count and their tokens do not, so that a mean over
    completions keeps its denominator and a mean over tokens has that of the tokens left (TRL's
    mask_truncated_completions).
    """

    count: Literal["tokens", "completions"] = "tokens"
    reads = ("truncated_b",)

    def __call__(self, batch: Batch) -> Batch:
        """Mark the tokens of truncated rows."""
        cut_bt = batch.need("truncated_b", self.name)[:, None] & batch.mask_bt
        out = {} if self.count == "tokens" else {UNCOUNTED: cut_bt}
        return batch.replace(marks={**batch.marks, MASKED: cut_bt, **out})

    @override
    def words(self) -> str:
        where = "and in the denominators" if self.count == "tokens" else "and as completions, but not as tokens"
        return f"completions that were cut off have no loss; they still count in group statistics {where}"


@part("filter")
class RejectMismatch(Filter):
    """Leave out tokens or sequences whose ratio π_old/π_behavior lies outside [low, high] (IcePop, rejection in verl).

    Rejected tokens leave the mask and the denominators; a multiplier of zero (`masked_importance`) would keep the
    denominators. verl states its bounds for the reciprocal ratio.
    """

    low: Annotated[float, Field(ge=0)] = 0.5
    high: Annotated[float, Field(gt=0)] = 2.0
    level: MismatchLevel = "token"
    reads = ("old_bt", "behavior_bt")

    def __call__(self, batch: Batch) -> Batch:
        """Drop tokens with w outside [low, high], w = π_old/π_behavior."""
        ratio_bt = mismatch_ratio(batch, self.level)
        return batch.replace(loss_mask_bt=batch.active_bt & (ratio_bt >= self.low) & (ratio_bt <= self.high))

    @override
    def words(self) -> str:
        return (
            f"leave out every {'token' if self.level == 'token' else 'completion'} whose probability under the trainer "
            f"and the sampler differs by a factor outside [{self.low:g}, {self.high:g}]"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the part has no effect if the sampler is exact."""
        return ["reject_mismatch has no effect: the sampler is exact"] if run.exact_sampler else []
