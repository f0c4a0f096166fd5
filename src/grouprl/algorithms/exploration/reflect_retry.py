"""Reflect, then retry from the turn that went wrong: R³L."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from grouprl.algorithms.data_part import Desk
from grouprl.algorithms.exploration.resampling import further_numbers, splice
from grouprl.algorithms.exploration.review_forms import AUTO, review_form
from grouprl.algorithms.exploration.reviewing import (
    Attempts,
    Numbers,
    Reviewing,
    Reviews,
    Tokens,
    alone,
    attempts,
    reviewable,
    rewarded,
    turns_b,
)
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.rollout.samples import Collected, join, subset


@part("explore")
class ReflectRetry(Reviewing):
    """R³L: the policy reviews each episode and tries again from the turn that it names (arXiv:2601.03715).

    The second attempt acts the first k turns out again and goes on with the review in its first observation. It joins
    the group of the question as if nobody had advised it (source 'extra': the prompt without the review, log-probs
    computed anew); the k shared turns are trained in neither attempt. Where it earns at least `perfect`, and more than
    the first or in fewer turns, the review and the attempt as it was advised (source 'guided') join as groups of one
    with the reward 1; so does a review that finds nothing wrong with an episode that earned `perfect`.
    """

    form: str = AUTO
    tokens: Tokens = None
    perfect: float = 1.0

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the rows with second attempts, and with what led to good ones."""
        numbers, pivot_b = Numbers(collected), np.zeros(len(collected), dtype=np.int64)
        found = self.reviews(collected, reviewable(collected), numbers, desk)
        if found is None:
            return in_loss(collected, pivot_b)
        learnt_n = found.content_n & (collected.scores.reward_b[found.about] >= self.perfect)
        second, added = self._second(collected, found, numbers, desk), []
        if second is not None:
            pivot_b[second.base_n] = second.turns_n
            good_n = self._good(collected, second, desk)
            learnt_n[[found.retries[place][0] for place in second.place_n[good_n]]] = True
            known = join([collected, found.rows, second.rows])
            added = [_unguided(collected, second, desk), *_guided(known, second.at(good_n))]
        if learnt_n.any():
            added.append(_perfect(subset(found.rows, learnt_n)))
        parts = [in_loss(rows, np.zeros(len(rows), dtype=np.int64)) for rows in added]
        return splice(in_loss(collected, pivot_b), np.zeros(len(collected), dtype=bool), parts)

    def _second(self, collected: Collected, found: Reviews, numbers: Numbers, desk: Desk) -> Attempts | None:
        """Draw the second attempts; None where there is none."""
        form, wanted = review_form(self.form, desk.policy), found.retries
        rows, turns = [row for _, row, _ in wanted], [turn for *_, turn in wanted]
        advice = [review.advice for i, *_ in wanted if (review := found.read[i]) is not None]
        openings = [form.guided(collected.prompts[row], [said]) for row, said in zip(rows, advice, strict=True)]
        desk.note("retries", len(rows))
        return attempts(collected, rows, turns, numbers, desk, openings, source=SOURCES["guided"])

    def _good(self, collected: Collected, second: Attempts, desk: Desk) -> np.ndarray:
        """[N] bool: second attempts that earn `perfect`, and more than the first or in fewer turns."""
        before_n, after_n = collected.scores.reward_b[second.base_n], second.rows.scores.reward_b
        shorter_n = turns_b(second.rows) < turns_b(collected)[second.base_n]
        good_n = (after_n >= self.perfect) & ((after_n > before_n) | shorter_n)
        desk.note("retries_good", int(good_n.sum()))
        desk.note("retry_gain", float((after_n - before_n).mean()), "mean")
        return np.asarray(good_n)

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        count = run.prompts * run.group_size
        return f"up to {count} reviews and {count} second attempts per rollout; those that led to something are trained"

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("loss_mask_bt",)

    def words(self) -> str:
        """Describe."""
        return (
            "the policy reviews each episode and tries again, advised, from the turn that it names; shared turns are "
            f"not trained, and what led to a reward of {self.perfect:g} is imitated"
        )

    def formula(self) -> str:
        """Formula."""
        return f"g: τ and τ' from turn k on;  of their own, R = 1: review and advised τ' where R' ≥ {self.perfect:g}"


def in_loss(collected: Collected, pivot_b: np.ndarray) -> Collected:
    """Return the rows with `loss_mask_bt`: tokens that were acted from turn `pivot_b` on."""
    acted_bt = collected.acted_bt
    turn_bt = collected.extras["turn_bt"][:, : acted_bt.shape[1]]
    return collected.with_extras(loss_mask_bt=acted_bt & (turn_bt >= pivot_b[:, None]))


def _unguided(collected: Collected, second: Attempts, desk: Desk) -> Collected:
    """Return second attempts as if nobody had advised them."""
    return desk.under(second.rows, [collected.prompts[row] for row in second.base_n]).with_source("extra")


def _guided(known: Collected, second: Attempts) -> list[Collected]:
    """Return second attempts as they were drawn, under numbers of their own; `known` has every row of the questions."""
    rows = second.rows
    if not len(rows):
        return []
    places = np.array([known.row_keys.index(key) for key in rows.row_keys])
    numbers_b = further_numbers(known, places)
    extras = {**rows.extras, "keys.episode": rows.extras["keys.episode"] + numbers_b - rows.answer_b}
    return [_perfect(alone(replace(rows, answer_b=numbers_b, extras=extras)))]


def _perfect(collected: Collected) -> Collected:
    ones_b = np.ones(len(collected))
    return rewarded(collected, ones_b, ones_b)
