"""Reflect, then retry from the turn that went wrong: R³L."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grouprl.algorithms.augment.papers.reviewing import (
    Attempts,
    Numbers,
    Reviewing,
    Reviews,
    TokenBudget,
    alone,
    attempts,
    reviewable,
    rewarded,
    turns_b,
)
from grouprl.algorithms.augment.resampling import further_numbers, splice
from grouprl.algorithms.augment.review_forms import AUTO, review_form
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.records.joining import join
from grouprl.records.samples import Rows, ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text


@part("augment")
class ReflectRetry(Reviewing):
    """R³L: the policy reviews each episode and tries again from the turn that it names (arXiv:2601.03715).

    The second attempt repeats the first k turns, then continues with the review in its first observation. It joins the
    group of the prompt as an unadvised attempt (source 'extra': the prompt without the review, log-probs computed
    anew); the k shared turns are trained in neither attempt. If it earns at least `perfect`, and more than the first
    attempt or the same in fewer turns, the review and the advised attempt (source 'guided') join as groups of one with
    reward 1; so does a review that finds nothing wrong with an episode that earned `perfect`.
    """

    form: str = AUTO
    tokens: TokenBudget = None
    perfect: float = 1.0
    says = (
        "the policy reviews each episode and tries again, advised, from the turn that it names; shared turns are "
        "not trained, and what led to a reward of {perfect:g} is imitated"
    )
    equation = "g: τ and τ' from turn k on;  of their own, R = 1: review and advised τ' where R' ≥ {perfect:g}"
    fills = ("loss_mask_bt",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows with second attempts, and with what led to good ones."""
        samples, numbers, pivot_b = as_text(samples), Numbers(samples), np.zeros(len(samples), dtype=np.int64)
        found = self.reviews(samples, reviewable(samples), numbers, context)
        if found is None:
            return in_loss(samples, pivot_b)
        learnt_n = found.content_n & (samples.scores.reward_b[found.about] >= self.perfect)
        second, added = self._second(samples, found, numbers, context), []
        if second is not None:
            pivot_b[second.base_n] = second.turns_n
            good_n = self._good(samples, second, context)
            learnt_n[[found.retries[place][0] for place in second.place_n[good_n]]] = True
            known = join([samples, found.rows, second.rows])
            added = [_unguided(samples, second, context), *_guided(known, second.at(good_n))]
        if learnt_n.any():
            added.append(_perfect(subset(found.rows, learnt_n)))
        parts = [in_loss(rows, np.zeros(len(rows), dtype=np.int64)) for rows in added]
        return splice(in_loss(samples, pivot_b), np.zeros(len(samples), dtype=bool), parts)

    def _second(self, samples: TextSamples, found: Reviews, numbers: Numbers, context: RunContext) -> Attempts | None:
        """Return the second attempts; None if there are none."""
        form, wanted = review_form(self.form, context.text.policy), found.retries
        rows, turns = [row for _, row, _ in wanted], [turn for *_, turn in wanted]
        advice = [review.advice for i, *_ in wanted if (review := found.read[i]) is not None]
        openings = [form.guided(samples.prompts[row], [said]) for row, said in zip(rows, advice, strict=True)]
        context.note("retries", len(rows))
        return attempts(samples, rows, turns, numbers, context, openings, source=SOURCES["guided"])

    def _good(self, samples: ScoredSamples, second: Attempts, context: RunContext) -> np.ndarray:
        """Return [N] bool: second attempts that earn `perfect`, and more than the first or in fewer turns."""
        before_n, after_n = samples.scores.reward_b[second.base_n], second.rows.scores.reward_b
        shorter_n = turns_b(second.rows) < turns_b(samples)[second.base_n]
        good_n = (after_n >= self.perfect) & ((after_n > before_n) | shorter_n)
        context.note("retries_good", int(good_n.sum()))
        context.note("retry_gain", float((after_n - before_n).mean()), "mean")
        return np.asarray(good_n)

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        count = run.prompts * run.group_size
        return f"up to {count} reviews and {count} second attempts per rollout; those that led to something are trained"


def in_loss(samples: Rows, pivot_b: np.ndarray) -> Rows:
    """Return the rows with `loss_mask_bt`: the tokens of turn `pivot_b` and later."""
    acted_bt = samples.acted_bt
    turn_bt = samples.extras["turn_bt"][:, : acted_bt.shape[1]]
    return samples.with_extras(loss_mask_bt=acted_bt & (turn_bt >= pivot_b[:, None]))


def _unguided(samples: TextSamples, second: Attempts, context: RunContext) -> TextSamples:
    """Return second attempts as rows of the prompt without the review."""
    return context.text.with_prompts(second.rows, [samples.prompts[row] for row in second.base_n]).with_source("extra")


def _guided(known: ScoredSamples, second: Attempts) -> list[ScoredSamples]:
    """Return second attempts as they were sampled, under numbers of their own; `known` has every row of the prompts."""
    rows = second.rows
    if not len(rows):
        return []
    places = np.array([known.row_keys.index(key) for key in rows.row_keys])
    numbers_b = further_numbers(known, places)
    extras = {**rows.extras, "keys.episode": rows.extras["keys.episode"] + numbers_b - rows.sample_b}
    return [_perfect(alone(replace(rows, sample_b=numbers_b, extras=extras)))]


def _perfect(samples: ScoredSamples) -> ScoredSamples:
    ones_b = np.ones(len(samples))
    return rewarded(samples, ones_b, ones_b)
