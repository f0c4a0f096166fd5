"""Trials of the same episode, each advised by reviews of the ones before: Retroformer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from grouprl.batch import SOURCES
from grouprl.data.again import splice
from grouprl.data.collected import Collected, join, subset
from grouprl.data.desk import Desk
from grouprl.data.review_forms import AUTO, review_form
from grouprl.data.reviewing import Attempts, Numbers, Reviewing, Reviews, Tokens, attempts, reviewable, rewarded
from grouprl.parts.part import RunFacts, part
from grouprl.policy.second import second_policy

Actor = Literal["policy", "initial"]
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
    """

    praises: ClassVar[bool] = False
    form: str = AUTO
    tokens: Tokens = None
    trials: Annotated[int, Field(ge=1)] = 1
    actor: Actor = "policy"

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
            reviews.append(_earned(known, found, next_trial, desk))
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

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("keys.review",)

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        count = run.prompts * run.group_size
        trials = f"{self.trials} × " if self.trials > 1 else ""
        first = f"{count} first trials of the frozen actor, " if self.actor == "initial" else ""
        return f"{first}up to {trials}{count} reviews per rollout, which alone are trained on, and as many trials"

    def words(self) -> str:
        """Describe."""
        again = "once" if self.trials == 1 else f"up to {self.trials} times"
        who = "" if self.actor == "policy" else " by the policy as it was before the first step"
        return (
            f"episodes that did not end well are tried again {again}{who}, advised by the policy's reviews; a review "
            "earns the difference"
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
