"""Reviews of episodes by the policy: how it is asked, and the attempts that follow from its reviews."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from grouprl.algorithms.augment.papers.branching import between_turns
from grouprl.algorithms.augment.prefix_turns import led
from grouprl.algorithms.augment.resampling import again, sampled_rows
from grouprl.algorithms.augment.review_forms import Review, ReviewForm, review_form
from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import RunFacts
from grouprl.algorithms.warmup_examples import Lesson, Shown
from grouprl.core.batch import SOURCES
from grouprl.core.errors import InputError
from grouprl.records.examples import Prompt
from grouprl.records.samples import Rows, ScoredSamples, subset
from grouprl.records.text_samples import TextSamples, as_text

if TYPE_CHECKING:
    from grouprl.records.episode_records import Turn
    from grouprl.records.token_policy import TokenPolicy

ALONE = 2**61
"""First number of groups of one row, above the number of every group of completions."""
TokenBudget = Annotated[int, Field(ge=1)] | None


@dataclass(frozen=True)
class Reviews:
    """N reviews of episodes; row i is about row `about[i]` and reads `read[i]`; None if it is unreadable."""

    rows: TextSamples
    about: np.ndarray
    read: tuple[Review | None, ...]

    @property
    def retries(self) -> list[tuple[int, int, int]]:
        """Return (number of the review, row that it is about, turn to try again from) for each review that asks for a
        retry.
        """
        named = ((i, review.retry) for i, review in enumerate(self.read) if review is not None)
        return [(i, int(self.about[i]), turn) for i, turn in named if turn is not None]

    @property
    def content_n(self) -> np.ndarray:
        """[N] bool: reviews that find the episode good as it is."""
        return np.array([review is not None and review.retry is None for review in self.read], dtype=bool)


class Numbers:
    """Numbers of further completions of the prompts of a collection, given out one by one."""

    def __init__(self, samples: ScoredSamples) -> None:
        self._ordinal_b, self._taken = samples.ordinal_b, dict[int, int]()

    def skip(self, row: int) -> int:
        """Return how far the next number is above the last one in the collection, for the prompt of `row`."""
        ordinal = int(self._ordinal_b[row])
        self._taken[ordinal] = self._taken.get(ordinal, 0) + 1
        return self._taken[ordinal] - 1


class Reviewing(Augmentation):
    """Base of the parts for which the policy reviews its episodes.

    `form` says how the policy is asked and its review read (`grouprl.algorithms.augment.review_forms`), `tokens` how
    long a review may be (None: as the form says). Only episodes of one row are reviewed.
    """

    needs_text = True

    teaches: ClassVar[bool] = True
    advises: ClassVar[bool] = True
    """Whether what a review advises is shown to another attempt."""
    praises: ClassVar[bool] = True
    """Whether episodes that ended well are reviewed."""
    form: str
    tokens: TokenBudget

    def reviews(self, samples: TextSamples, rows: np.ndarray, numbers: Numbers, context: RunContext) -> Reviews | None:
        """Request a review of the episode of each of `rows` for which the model has room; None if there are none."""
        form = review_form(self.form, context.text.policy)
        budget = self.tokens or form.tokens
        prompts = {i: form.prompt(samples.prompts[i], _turns(samples, i), _reward(samples, i)) for i in rows}
        fitting = _fitting(prompts, budget, context)
        context.note("reviews", len(fitting))
        context.note("reviews_no_room", len(prompts) - len(fitting))
        if not fitting:
            return None
        changes = {"source": SOURCES["review"], "max_new_tokens": budget}
        sampled = context.text.sample_texts(
            [again(samples, i, numbers.skip(i), prompt=prompts[i], **changes) for i in fitting]
        )
        pairs = zip(sampled.texts, fitting, strict=True)
        read = tuple(form.read(text, len(_turns(samples, i))) for text, i in pairs)
        context.note("reviews_unread", sum(review is None for review in read))
        found = Reviews(alone(sampled), np.array(fitting), read)
        context.note("reviews_content", float(found.content_n.mean()), "mean")
        return found

    def lessons(self, one: Shown, other: Shown, policy: TokenPolicy) -> list[Lesson]:
        """Return reviews in hindsight: where two episodes diverge, the better one shows what could have been done."""
        form = review_form(self.form, policy)
        bad, good = sorted((one, other), key=lambda shown: shown.reward)
        pairs = zip(bad.turns, good.turns, strict=False)
        parting = next((i for i, (a, b) in enumerate(pairs) if a.action != b.action), None)
        praised = good.correct and self.praises
        lessons = [_lesson(form, good, form.write(Review(None)), policy)] if praised else []
        if parting is None:
            return lessons
        text = form.write(Review(parting, good.turns[parting].action if self.advises else ""))
        if bad.reward < good.reward:
            lessons.append(_lesson(form, bad, text, policy))
        if self.advises:
            lessons.append(replace(good.row, prompt=form.guided(good.row.prompt, [text])))
        return lessons

    def letters(self) -> str:
        """Return the characters of the form."""
        return review_form(self.form).letters

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task without turns, and a form of reviews that does not exist."""
        try:
            review_form(self.form)
        except InputError as error:
            return [*between_turns(self.name, run), str(error)]
        return between_turns(self.name, run)


@dataclass(frozen=True)
class Attempts:
    """N episodes repeated from a turn on, the rows whose beginnings they share, and the number of shared turns."""

    rows: TextSamples
    base_n: np.ndarray
    turns_n: np.ndarray
    place_n: np.ndarray
    """[N] place of each attempt among those that were requested."""

    def at(self, places: np.ndarray) -> Attempts:
        """Return the attempts at these places, or those marked by [N] bool."""
        chosen = (self.base_n[places], self.turns_n[places], self.place_n[places])
        return Attempts(subset(self.rows, places), *chosen)


def attempts(
    samples: TextSamples,
    rows: Sequence[int],
    turns: Sequence[int],
    numbers: Numbers,
    context: RunContext,
    openings: Iterable[Prompt | None],
    **changes: object,
) -> Attempts | None:
    """Sample for each of `rows` an episode that begins with its first turns; None if all of them failed.

    Episodes that failed, or became several rows, are left out.
    """
    each = zip(rows, turns, openings, strict=True)
    requests = [led(samples, i, k, skip=numbers.skip(i), opening=opening, **changes) for i, k, opening in each]
    if not requests:
        return None
    sampled = as_text(context.sample(requests))
    sampled = subset(sampled, sampled.valid_b & _single(sampled))
    if not len(sampled):
        return None
    place_of = {(request.ordinal, request.first): place for place, request in enumerate(requests)}
    place_n = np.array([place_of[ordinal, completion] for ordinal, completion, _ in sampled.row_keys])
    return Attempts(sampled, np.array(rows)[place_n], np.array(turns)[place_n], place_n)


def reviewable(samples: ScoredSamples) -> np.ndarray:
    """Return [N] rows that were sampled in the ordinary way and are the only row of their episode."""
    return np.flatnonzero(sampled_rows(samples) & _single(samples))


def alone(samples: Rows) -> Rows:
    """Return the rows as groups of one."""
    return replace(samples, group_b=ALONE + samples.extras["keys.episode"])


def rewarded(samples: Rows, reward_b: np.ndarray, correct_b: np.ndarray) -> Rows:
    """Return the rows with other rewards."""
    scores = replace(samples.scores, reward_b=reward_b.astype(np.float64), correct_b=correct_b.astype(bool))
    return replace(samples, scores=scores)


def turns_b(samples: ScoredSamples) -> np.ndarray:
    """Return [B] turns of each row, those of an untrained beginning too."""
    return np.array([len(_turns(samples, row)) for row in range(len(samples))])


def _turns(samples: ScoredSamples, row: int) -> tuple[Turn, ...]:
    record = samples.records[row] if samples.records is not None else None
    return () if record is None else record.turns


def _reward(samples: ScoredSamples, row: int) -> float:
    return float(samples.scores.reward_b[row])


def _single(samples: ScoredSamples) -> np.ndarray:
    """Return [B] bool: rows that are the only one of their episode."""
    _, of_b, count_e = np.unique(samples.extras["keys.episode"], return_inverse=True, return_counts=True)
    return np.asarray(count_e[of_b] == 1)


def _fitting(prompts: Mapping[int, Prompt], budget: int, context: RunContext) -> list[int]:
    """Return the rows whose prompts leave the model room for `budget` tokens."""
    if not prompts:
        return []
    room, encoded = context.text.policy.max_positions, context.text.policy.encode_prompts(list(prompts.values()))
    return [int(i) for i, ids in zip(prompts, encoded, strict=True) if room is None or len(ids) + budget <= room]


def _lesson(form: ReviewForm, shown: Shown, text: str, policy: TokenPolicy) -> Lesson:
    ids = (*policy.encode_all([text])[0], *policy.eos_ids[:1])
    return Lesson(form.prompt(shown.row.prompt, shown.turns, shown.reward), ids, (True,) * len(ids))
