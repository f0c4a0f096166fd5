"""Trials of the same episode, each advised by reviews of the ones before: Retroformer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from grouprl.algorithms.data_part import Desk
from grouprl.algorithms.exploration.resampling import splice
from grouprl.algorithms.exploration.review_forms import AUTO, review_form
from grouprl.algorithms.exploration.review_model import ReviewModel
from grouprl.algorithms.exploration.reviewing import (
    ALONE,
    Attempts,
    Numbers,
    Reviewing,
    Reviews,
    Tokens,
    attempts,
    reviewable,
    rewarded,
)
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import SOURCES
from grouprl.policy.second import second_policy
from grouprl.rollout.samples import Collected, join, subset

Actor = Literal["policy", "initial"]
Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
BATCH = 64
"""Reviews of an update of the reward model."""
Memory = dict[int, tuple[str, ...]]
"""What reviews have advised so far, by the key of the first trial."""


@part("explore")
class Retrospect(Reviewing):
    """Retroformer: a review earns by how much the next trial does better, and reviews alone are trained on.

    A trial that did not end well is reviewed, in whatever words; the next one, of `trials` further ones at most, begins
    anew, with all reviews so far in its first observation. The reward of a review is G_{k+1} - G_k (arXiv:2308.02151).
    Reviews of a question form its group, as rows of source 'review'; trials are not trained on.

    `actor` says who acts: the policy itself, or, frozen, the policy as it was before the first step, which then also
    plays the first trials, with the luck of the episodes that were drawn.

    `imagined` further reviews of each trial are followed by none: a reward model says what they would bring. It is
    fitted in every step, by `fits` updates, to all reviews so far that a trial followed. From step `pilot` on its word
    is the reward of all reviews, and those of one trial form a group. `encoder`, `width` and `model_lr` are its own.
    """

    praises: ClassVar[bool] = False
    form: str = AUTO
    tokens: Tokens = None
    trials: Count = 1
    actor: Actor = "policy"
    imagined: Whole = 0
    pilot: Whole = 10
    fits: Count = 20
    encoder: str = "gru"
    width: Count = 64
    model_lr: Annotated[float, Field(gt=0)] = 1e-3

    def __call__(self, collected: Collected, desk: Desk) -> Collected:
        """Return the reviews, and the first trials as rows that are not trained on."""
        collected = collected.with_extras(keys__review=collected.extras["keys.episode"])
        memory: Memory = {}
        known, rows, reviews = collected, reviewable(collected), []
        if self.actor == "initial":
            known, rows = self._first(collected, rows, desk)
        for _ in range(self.trials):
            rows = rows[~known.scores.correct_b[rows]]
            found = self.reviews(known, rows, numbers := Numbers(known), desk)
            if found is None or (next_trial := self._trial(known, collected, found, memory, numbers, desk)) is None:
                break
            earned = _earned(known, found, next_trial, desk)
            reviews.append(self._modelled(earned, known, found.about, numbers, desk) if self.imagined else earned)
            known = join([known, found.rows, next_trial.rows])
            rows = np.arange(len(known) - len(next_trial.rows), len(known))
        untrained = replace(collected, kept_b=np.zeros(len(collected), dtype=bool))
        return splice(untrained, np.zeros(len(collected), dtype=bool), reviews)

    def _trial(
        self, known: Collected, first: Collected, found: Reviews, memory: Memory, numbers: Numbers, desk: Desk
    ) -> Attempts | None:
        """Draw the next trial of each reviewed one."""
        form, openings = review_form(self.form, desk.policy), []
        prompt_of = dict(zip(first.extras["keys.review"].tolist(), first.prompts, strict=True))
        for row, text in zip(found.about, found.rows.texts, strict=True):
            key = int(known.extras["keys.review"][row])
            memory[key] = (*memory.get(key, ()), text)
            openings.append(form.guided(prompt_of[key], memory[key]))
        rows = found.about.tolist()
        desk.note("retries", len(rows))
        with self._actor(desk):
            return attempts(known, rows, [0] * len(rows), numbers, desk, openings, source=SOURCES["guided"])

    def _first(self, collected: Collected, rows: np.ndarray, desk: Desk) -> tuple[Collected, np.ndarray]:
        """Return the rows with first trials of the frozen actor, and where these are."""
        again = (rows.tolist(), [0] * len(rows), Numbers(collected))
        with self._actor(desk):
            first = attempts(collected, *again, desk, [None] * len(rows), source=SOURCES["reference"])
        if first is None:
            return collected, rows[:0]
        desk.note("actor_reward", float(first.rows.scores.reward_b.mean()), "mean")
        known = join([collected, first.rows])
        return known, np.arange(len(collected), len(known))

    def _actor(self, desk: Desk) -> AbstractContextManager[None]:
        """Let the actor act."""
        if self.actor == "policy":
            return nullcontext()
        held, store = desk.held(self), desk.store(self)
        if "actor" not in held:
            store.setdefault("weights", desk.policy.trainable_state())
            held["actor"] = second_policy(desk.policy)
            held["actor"].load_trainable_state(store["weights"])
        return desk.acting(held["actor"])

    def _modelled(
        self, earned: Collected, known: Collected, about: np.ndarray, numbers: Numbers, desk: Desk
    ) -> Collected:
        """Teach the reward model what reviews earned; return them and further ones as it rewards them."""
        model, said = self._model(desk), (earned.rollout.prompt_ids, earned.rollout.response_ids)
        gain_n = earned.scores.reward_b
        desk.note("review_model_error", float(np.square(model(*said) - gain_n).mean()), "mean")
        model.add(*said, gain_n)
        model.fit(self.fits, BATCH, desk.rng(self))
        if desk.step < self.pilot:
            return earned
        trial_of = dict(zip(known.extras["keys.review"][about].tolist(), about.tolist(), strict=True))
        parts = [earned]
        for _ in range(self.imagined):
            more = self.reviews(known, about, numbers, desk)
            parts += [] if more is None else [more.rows]
        rows = join(parts)
        worth_n = model(rows.rollout.prompt_ids, rows.rollout.response_ids)
        of_trial = np.array([trial_of[key] for key in rows.extras["keys.review"].tolist()])
        group_b = ALONE + known.extras["keys.episode"][of_trial]
        return rewarded(replace(rows, group_b=group_b), worth_n, worth_n > 0)

    def _model(self, desk: Desk) -> ReviewModel:
        """Return the reward model, built or read again where it must be."""
        held, store = desk.held(self), desk.store(self)
        if "model" not in held:
            kept = store.setdefault("model", {})
            seed = kept.setdefault("seed", int(desk.rng(self).integers(2**31)))
            held["model"] = ReviewModel(kept, desk, self.encoder, self.width, self.model_lr, seed)
        model: ReviewModel = held["model"]
        return model

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("keys.review",)

    def idle(self, run: RunFacts) -> list[str]:
        """A reward model that is never asked."""
        if self.imagined and self.pilot >= run.steps:
            return [f"the reward model rewards nothing: retrospect.pilot is {self.pilot} of {run.steps} steps"]
        return []

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        count = run.prompts * run.group_size
        trials = f"{self.trials} × " if self.trials > 1 else ""
        first = f"{count} first trials of the frozen actor, " if self.actor == "initial" else ""
        more = f", then {self.imagined} more reviews of each trial for the reward model" if self.imagined else ""
        return f"{first}up to {trials}{count} reviews per rollout, which alone are trained on, and as many trials{more}"

    def words(self) -> str:
        """Describe."""
        again = "once" if self.trials == 1 else f"up to {self.trials} times"
        who = "" if self.actor == "policy" else " by the policy as it was before the first step"
        late = f"; from step {self.pilot} on a model of these differences rewards 1 + {self.imagined} reviews a trial"
        return (
            f"episodes that did not end well are tried again {again}{who}, advised by the policy's reviews; a review "
            f"earns the difference{late if self.imagined else ''}"
        )

    def formula(self) -> str:
        """Formula."""
        return "R_review = G_{k+1} - G_k"


def _earned(known: Collected, found: Reviews, trial: Attempts, desk: Desk) -> Collected:
    """Return the reviews that another trial followed, with what they brought, in the groups of their questions."""
    gain_n = trial.rows.scores.reward_b - known.scores.reward_b[trial.base_n]
    desk.note("retry_gain", float(gain_n.mean()), "mean")
    reviews = replace(subset(found.rows, trial.place_n), group_b=known.group_b[trial.base_n])
    return rewarded(reviews, gain_n, gain_n > 0)
