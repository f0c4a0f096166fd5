"""Thoughts cut at several budgets, with completions sampled at each cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.allocation.papers.budget_prompts import Budgets, check_rising, in_tokens, in_words, misfits
from grouprl.algorithms.augment.resampling import again, groups, prefixes, sampled_rows, splice, through
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import Rows, ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from grouprl.tasks.task import Task


@dataclass(frozen=True)
class Cut:
    """Place where a thought is cut: its row, the number of the budget, and what the completions begin with."""

    row: int
    budget: int
    prefix: tuple[int, ...]


@part("augment")
class BudgetCuts(Augmentation):
    """BRPO: each thought is cut at several budgets and `summaries` completions are sampled at every cut
    (arXiv:2505.13438).

    A thought is what a completion says up to and including the first `end` (None: the task's `thought_end`). `budgets`
    are in tokens, at most 1 means a share of the completion limit; a thought is at most as long as the last. A cut
    thought is followed by `ellipsis` (None: the task's), `end` and `header`; a thought that ended before the budget is
    followed by `header` only. These additions are not trained on. Completions have at most `summary_tokens` tokens.

    Thought rows keep their thought alone, with `turn_bt`, the number of the segment between two budgets, and
    `turn_reward_bs`, the mean reward of the completions at each cut. The completions are rows of source 'extra' with
    their cut in `keys.cut`; with one completion per cut the same budget of all thoughts is one cut.
    """

    needs_text = True

    budgets: Budgets = (0.25, 0.5, 0.75, 1.0)
    summaries: Annotated[int, Field(ge=1)] = 4
    summary_tokens: Annotated[int, Field(ge=1)] = 118
    end: Annotated[str, Field(min_length=1)] | None = None
    ellipsis: str | None = None
    header: str = ""
    fills = ("turn_bt", "turn_reward_bs", "keys.cut")

    def __post_init__(self) -> None:
        """Refuse budgets that do not rise, and shares mixed with tokens."""
        check_rising("budget_cuts", self.budgets)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return thoughts with the scores of their cuts, and the completions sampled there."""
        limits = [in_tokens(budget, context.max_new_tokens) for budget in self.budgets]
        rows = np.flatnonzero(sampled_rows(samples))
        if not len(rows):
            return samples
        thoughts = as_text(subset(samples, rows))
        end = self.end or context.task.thought_end
        ends = [through(context, ids, end) for ids in thoughts.response_ids]
        cuts = self._cuts(thoughts, ends, limits, context)
        completions = context.sample(self._requests(thoughts, cuts))
        score_bs = self._scores(completions, thoughts, cuts)
        context.note("cut_completions", len(completions))
        completions = _with_segments(
            subset(completions, completions.valid_b), np.zeros((1, 1), dtype=np.int64), score_bs[:1] * 0
        )
        thoughts = _shortened(thoughts, [min(size or limits[-1], limits[-1]) for size in ends])
        place_t = np.arange(max(map(len, thoughts.response_ids)))
        segment_t = np.searchsorted(np.array(limits), place_t, side="right").clip(max=len(limits) - 1)
        thoughts = _with_segments(thoughts, segment_t[None], score_bs)
        whole_b = np.ones(len(samples), dtype=bool)
        whole_b[~sampled_rows(samples)] = False
        return splice(samples, whole_b, [thoughts, completions])

    def _cuts(self, thoughts: TextSamples, ends: list[int | None], limits: list[int], context: RunContext) -> list[Cut]:
        """Return every cut of every thought: thoughts in order, budgets ascending."""
        ellipsis = context.task.ellipsis if self.ellipsis is None else self.ellipsis
        forced = context.text.encode(ellipsis + (self.end or context.task.thought_end) + self.header)
        header = context.text.encode(self.header)
        begun = prefixes(thoughts, range(len(thoughts)), context)
        stop = set(context.text.policy.eos_ids)
        cuts = []
        for row, (end, ids) in enumerate(zip(ends, thoughts.response_ids, strict=True)):
            for number, limit in enumerate(limits):
                closed = end is not None and end <= limit
                thought = ids[:end] if closed else tuple(i for i in ids[:limit] if i not in stop)
                cuts.append(Cut(row, number, (*begun[row], *thought, *(header if closed else forced))))
        return cuts

    def _requests(self, thoughts: ScoredSamples, cuts: list[Cut]) -> list[RolloutRequest]:
        extra = SOURCES["extra"]
        place = {row: i for rows in groups(thoughts, thoughts.valid_b) for i, row in enumerate(rows)}
        return [
            again(
                thoughts,
                cut.row,
                (place[cut.row] * len(self.budgets) + cut.budget) * self.summaries,
                completions=self.summaries,
                prefix=cut.prefix,
                max_new_tokens=self.summary_tokens,
                source=extra,
                keys={"cut": cut.budget + self._compared_apart(int(thoughts.sample_b[cut.row]))},
            )
            for cut in cuts
        ]

    def _compared_apart(self, thought: int) -> int:
        """Return the first number of a thought's cuts; single completions at a cut are compared with those of other
        thoughts.
        """
        return 0 if self.summaries == 1 else thought * len(self.budgets)

    def _scores(self, completions: ScoredSamples, thoughts: ScoredSamples, cuts: list[Cut]) -> np.ndarray:
        """Return [B,S] mean reward of the completions at each cut; a completion without a score counts as 0."""
        reward_b = np.where(completions.valid_b, completions.scores.reward_b, 0.0)
        return reward_b.reshape(len(cuts), self.summaries).mean(1).reshape(len(thoughts), len(self.budgets))

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        completions, cuts = run.prompts * run.group_size, len(self.budgets)
        return (
            f"{completions} × {cuts} cuts × {self.summaries} = {completions * cuts * self.summaries} completions "
            "of at most "
            f"{min(self.summary_tokens, run.max_length)} tokens per rollout, which are trained on"
        )

    def behind(self, task: Task, run: RunFacts) -> int:
        """Return by how many tokens at most a completion with its budget, and the text before it, exceed the longest
        thought; letters of the text count as tokens.
        """
        ellipsis = task.ellipsis if self.ellipsis is None else self.ellipsis
        text = ellipsis + (self.end or task.thought_end) + self.header
        thought = in_tokens(self.budgets[-1], run.max_length)
        return max(0, thought + len(text) + min(self.summary_tokens, run.max_length) - run.max_length)

    @override
    def words(self) -> str:
        end = "" if self.end is None else f" (up to '{self.end}')"
        return f"cut thoughts{end} at {in_words(self.budgets)} and sample {self.summaries} completions there"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse budgets that are equal in tokens or do not fit."""
        return misfits(self.name, self.budgets, run)


def _shortened(samples: TextSamples, size_b: list[int]) -> TextSamples:
    """Return the rows with the first `size_b` tokens of each completion."""
    old = samples.rollout
    ids = tuple(ids[:size] for ids, size in zip(old.response_ids, size_b, strict=True))
    keep_bt = torch.arange(old.logp_bt.shape[1]) < torch.tensor(size_b)[:, None]
    logp_bt, entropy_bt = (torch.where(keep_bt, x, 0) for x in (old.logp_bt, old.entropy_bt))
    rollout = replace(old, inputs=Tokens(old.prompt_ids, ids), logp_bt=logp_bt, entropy_bt=entropy_bt)
    return replace(samples, rollout=rollout)


def _with_segments(samples: Rows, segment_bt: np.ndarray, score_bs: np.ndarray) -> Rows:
    """Return the rows with segments [B or 1,T'] and scores of segments [B or 1,S]; rows that have no cut get 0."""
    rows = len(samples)
    columns = {
        "turn_bt": np.repeat(segment_bt, rows // len(segment_bt), axis=0),
        "turn_reward_bs": np.repeat(score_bs, rows // len(score_bs), axis=0),
    }
    return samples.with_extras(**columns)
