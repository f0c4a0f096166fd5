"""Reviews that accept an episode, or cut it at its first flaw for another attempt: Search-R2."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from grouprl.algorithms.augment.papers.reviewing import (
    Numbers,
    Reviewing,
    Reviews,
    TokenBudget,
    attempts,
    reviewable,
    rewarded,
)
from grouprl.algorithms.augment.resampling import splice
from grouprl.algorithms.augment.review_forms import AUTO
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import as_text


@part("augment")
class CutAndRegenerate(Reviewing):
    """Search-R2: the policy accepts each of its episodes, or names its first flawed turn (arXiv:2602.03647).

    A rejected episode is sampled anew from that turn on and replaces the first one (source 'extra', all its tokens
    trained). Reviews join as rows of source 'review' with the reward of the episode that resulted; `keys.review` names
    that episode. An unreadable review counts as acceptance.
    """

    advises: ClassVar[bool] = False
    form: str = AUTO
    tokens: TokenBudget = None
    says = "the policy accepts each episode or names its first flawed turn, from which it is sampled anew"
    equation = "y' = y if accepted, else y_{{<k}} and a new suffix"
    fills = ("keys.review",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return accepted and regenerated episodes with their reviews."""
        samples = as_text(samples).with_extras(keys__review=samples.extras["keys.episode"])
        numbers, gone_b = Numbers(samples), np.zeros(len(samples), dtype=bool)
        found = self.reviews(samples, reviewable(samples), numbers, context)
        if found is None:
            return samples
        rows, turns = [row for _, row, _ in found.retries], [turn for *_, turn in found.retries]
        context.note("retries", len(rows))
        more = {"train_prefix": True, "source": SOURCES["extra"]}
        second = attempts(samples, rows, turns, numbers, context, [None] * len(rows), **more)
        settled, parts = samples, []
        if second is not None:
            gone_b[second.base_n] = True
            gain_n = second.rows.scores.reward_b - samples.scores.reward_b[second.base_n]
            context.note("retry_gain", float(gain_n.mean()), "mean")
            parts = [second.rows]
            settled = join([subset(samples, ~gone_b), second.rows])
        return splice(samples, gone_b, [*parts, _prepared(found, settled, samples)])

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        count = run.prompts * run.group_size
        return f"{count} reviews per rollout, which are trained on, and one more episode for each that they reject"


def _prepared(found: Reviews, settled: ScoredSamples, samples: ScoredSamples) -> ScoredSamples:
    """Return the reviews in the groups of their prompts, with the rewards of the episodes that resulted."""
    row_of = {key: row for row, key in enumerate(settled.extras["keys.review"].tolist())}
    ends = np.array([row_of[key] for key in found.rows.extras["keys.review"].tolist()])
    reviews = replace(found.rows, group_b=samples.group_b[found.about])
    return rewarded(reviews, settled.scores.reward_b[ends], settled.scores.correct_b[ends])
