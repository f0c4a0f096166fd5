"""Trials of the same episode, each advised by reviews of the ones before: Retroformer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from grouprl.algorithms.augment.papers.review_model import ReviewModel
from grouprl.algorithms.augment.papers.reviewing import (
    ALONE,
    Attempts,
    Numbers,
    Reviewing,
    Reviews,
    TokenBudget,
    attempts,
    reviewable,
    rewarded,
)
from grouprl.algorithms.augment.resampling import splice
from grouprl.algorithms.augment.review_forms import AUTO, review_form
from grouprl.algorithms.auxiliary_models import second_policy
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.core.numbers import Count, Whole
from grouprl.records.joining import join
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text

Actor = Literal["policy", "initial"]
BATCH = 64
"""Number of reviews in an update of the reward model."""
Memory = dict[int, tuple[str, ...]]
"""Advice of all reviews so far, by the key of the first trial."""


@part("augment")
class Retrospect(Reviewing):
    """Retroformer: a review earns by how much the next trial does better, and reviews alone are trained on.

    A trial that did not end well gets a review in free text; the next one, of at most `trials` further ones, starts
    over with all reviews so far in its first observation. The reward of a review is G_{k+1} - G_k (arXiv:2308.02151).
    Reviews of a prompt form its group, as rows of source 'review'; trials are not trained on.

    `actor` selects what acts: the policy itself, or ("frozen") the policy as it was before the first step, which then
    also plays the first trials, with the same random seeds as the sampled episodes.

    `imagined` further reviews of each trial are not followed by another trial: a reward model predicts their rewards.
    It is fitted in every step, by `fits` updates, to all reviews so far that a trial followed. From step `pilot` on its
    prediction is the reward of all reviews, and those of one trial form a group. `encoder`, `width` and `model_lr` are
    settings of this model.
    """

    praises: ClassVar[bool] = False
    form: str = AUTO
    tokens: TokenBudget = None
    trials: Count = 1
    actor: Actor = "policy"
    imagined: Whole = 0
    pilot: Whole = 10
    fits: Count = 20
    encoder: str = "gru"
    width: Count = 64
    model_lr: Annotated[float, Field(gt=0)] = 1e-3
    equation = "R_review = G_{{k+1}} - G_k"
    fills = ("keys.review",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the reviews, and the first trials as rows that are not trained on."""
        samples = as_text(samples).with_extras(keys__review=samples.extras["keys.episode"])
        memory: Memory = {}
        known, rows, reviews = samples, reviewable(samples), []
        if self.actor == "initial":
            known, rows = self._first(samples, rows, context)
        for _ in range(self.trials):
            rows = rows[~known.scores.correct_b[rows]]
            found = self.reviews(known, rows, numbers := Numbers(known), context)
            if found is None or (next_trial := self._trial(known, samples, found, memory, numbers, context)) is None:
                break
            earned = _earned(known, found, next_trial, context)
            reviews.append(self._modelled(earned, known, found.about, numbers, context) if self.imagined else earned)
            known = join([known, found.rows, next_trial.rows])
            rows = np.arange(len(known) - len(next_trial.rows), len(known))
        untrained = replace(samples, valid_b=np.zeros(len(samples), dtype=bool))
        return splice(untrained, np.zeros(len(samples), dtype=bool), reviews)

    def _trial(
        self,
        known: TextSamples,
        first: TextSamples,
        found: Reviews,
        memory: Memory,
        numbers: Numbers,
        context: RunContext,
    ) -> Attempts | None:
        """Sample the next trial of each reviewed one."""
        form, openings = review_form(self.form, context.text.policy), []
        prompt_of = dict(zip(first.extras["keys.review"].tolist(), first.prompts, strict=True))
        for row, text in zip(found.about, found.rows.texts, strict=True):
            key = int(known.extras["keys.review"][row])
            memory[key] = (*memory.get(key, ()), text)
            openings.append(form.guided(prompt_of[key], memory[key]))
        rows = found.about.tolist()
        context.note("retries", len(rows))
        with self._actor(context):
            return attempts(known, rows, [0] * len(rows), numbers, context, openings, source=SOURCES["guided"])

    def _first(self, samples: TextSamples, rows: np.ndarray, context: RunContext) -> tuple[TextSamples, np.ndarray]:
        """Return the rows with first trials of the frozen actor, and the numbers of those rows."""
        again = (rows.tolist(), [0] * len(rows), Numbers(samples))
        with self._actor(context):
            first = attempts(samples, *again, context, [None] * len(rows), source=SOURCES["reference"])
        if first is None:
            return samples, rows[:0]
        context.note("actor_reward", float(first.rows.scores.reward_b.mean()), "mean")
        known = join([samples, first.rows])
        return known, np.arange(len(samples), len(known))

    def second_models(self) -> int:
        """Return how many copies of the policy, with weights of their own, the part keeps in memory."""
        return int(self.actor != "policy")

    def _actor(self, context: RunContext) -> AbstractContextManager[None]:
        """Make the chosen actor sample inside a block."""
        if self.actor == "policy":
            return nullcontext()
        held, store = context.cache_of(self), context.state_of(self)
        if "actor" not in held:
            store.setdefault("weights", context.text.policy.trainable_state())
            held["actor"] = second_policy(context.text.policy)
            held["actor"].load_trainable_state(store["weights"])
        return context.acting(held["actor"])

    def _modelled(
        self, earned: TextSamples, known: TextSamples, about: np.ndarray, numbers: Numbers, context: RunContext
    ) -> TextSamples:
        """Fit the reward model to what reviews earned; return these and further reviews with the
        rewards it predicts.
        """
        model, said = self._model(context), (earned.prompt_ids, earned.response_ids)
        gain_n = earned.scores.reward_b
        context.note("review_model_error", float(np.square(model(*said) - gain_n).mean()), "mean")
        model.add(*said, gain_n)
        model.fit(self.fits, BATCH, context.rng(self))
        if context.step < self.pilot:
            return earned
        trial_of = dict(zip(known.extras["keys.review"][about].tolist(), about.tolist(), strict=True))
        parts = [earned]
        for _ in range(self.imagined):
            more = self.reviews(known, about, numbers, context)
            parts += [] if more is None else [more.rows]
        rows = join(parts)
        worth_n = model(rows.prompt_ids, rows.response_ids)
        of_trial = np.array([trial_of[key] for key in rows.extras["keys.review"].tolist()])
        group_b = ALONE + known.extras["keys.episode"][of_trial]
        return rewarded(replace(rows, group_b=group_b), worth_n, worth_n > 0)

    def _model(self, context: RunContext) -> ReviewModel:
        """Return the reward model, built or read from the store if necessary."""
        held, store = context.cache_of(self), context.state_of(self)
        if "model" not in held:
            saved = store.setdefault("model", {})
            seed = saved.setdefault("seed", int(context.rng(self).integers(2**31)))
            held["model"] = ReviewModel(saved, context, self.encoder, self.width, self.model_lr, seed)
        model: ReviewModel = held["model"]
        return model

    def idle(self, run: RunFacts) -> list[str]:
        """Say that the reward model has no effect if `pilot` comes after the run's last step."""
        if self.imagined and self.pilot >= run.steps:
            return [f"the reward model rewards nothing: retrospect.pilot is {self.pilot} of {run.steps} steps"]
        return []

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled besides those of the run."""
        count = run.prompts * run.group_size
        trials = f"{self.trials} × " if self.trials > 1 else ""
        first = f"{count} first trials of the frozen actor, " if self.actor == "initial" else ""
        more = f", then {self.imagined} more reviews of each trial for the reward model" if self.imagined else ""
        return f"{first}up to {trials}{count} reviews per rollout, which alone are trained on, and as many trials{more}"

    @override
    def words(self) -> str:
        again = "once" if self.trials == 1 else f"up to {self.trials} times"
        who = "" if self.actor == "policy" else " by the policy as it was before the first step"
        late = f"; from step {self.pilot} on a model of these differences rewards 1 + {self.imagined} reviews a trial"
        return (
            f"episodes that did not end well are tried again {again}{who}, advised by the policy's reviews; a review "
            f"earns the difference{late if self.imagined else ''}"
        )


def _earned(known: TextSamples, found: Reviews, trial: Attempts, context: RunContext) -> TextSamples:
    """Return the reviews that another trial followed, with their rewards, in the groups of their prompts."""
    gain_n = trial.rows.scores.reward_b - known.scores.reward_b[trial.base_n]
    context.note("retry_gain", float(gain_n.mean()), "mean")
    reviews = replace(subset(found.rows, trial.place_n), group_b=known.group_b[trial.base_n])
    return rewarded(reviews, gain_n, gain_n > 0)
