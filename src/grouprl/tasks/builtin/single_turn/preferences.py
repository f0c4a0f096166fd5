"""Preferences between words with a true reward that is known, so that what is learned can be compared with it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from grouprl.records.examples import Columns, Example
from grouprl.records.judgements import BETWEEN, END, judged_prompt
from grouprl.records.offline import StoredRow
from grouprl.rewards import KnownExample, Reward
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

LETTERS = "abcdefgh"
WANTED = 3
"""Letters of a prompt, kinds of words for the cyclic judge, and the largest number of annotators."""
CIRCLE = LETTERS[: 2 * WANTED]
"""First letters of words for the alphabet judge: two of each kind."""
LIKED = 0.5
"""True reward from which a word is labelled as liked."""
APART = 1e-9
"""Least gap of two scores that differ."""
RATINGS = ("liked", "brief")
"""Ratings of a word: its share of wanted letters, and how short it is."""


@register_task("preferences")
class Preferences(GeneratedTask):
    """Pairs of words, judged by a reward that is known: the share of a word's letters that its prompt asks for.

    The prompt is "caf>", the pair perhaps "fac" and "cabbh". Nothing is sampled in training: a prompt has its winner
    and its loser, as the judge saw them. An evaluation samples words and scores them by the true reward, which a noisy
    or a biased judge does not tell. With several annotators each is pleased by a letter of its own, and the true reward
    is what all together like. The cyclic judge prefers words by their first letter, the prompt's first to its second,
    the second to the third and the third to the first: no reward orders them. The alphabet judge has such a circle
    whatever the prompt: a and d win against b and e, these against c and f, and those against a and d.
    """

    samples_evaluations: ClassVar[bool] = True
    levels = tuple({"longest": longest} for longest in (2, 3, 4, 6, 8, 12))

    longest: int = Field(6, ge=1, le=24, description="letters of the longest words")
    form: Literal["pairs", "labels", "lists", "ratings"] = Field(
        "pairs",
        description="two words of which one is better; one word that is liked or not; several words, each with the "
        "judge's score, or with two ratings: its letters (liked) and how short it is (brief)",
    )
    words: int = Field(4, ge=2, le=16, description="words of a list, or that are rated (batch.group_size)")
    judge: Literal["reward", "cyclic", "alphabet"] = Field(
        "reward", description="whether a reward, a cycle of the prompt's letters or one of the alphabet's orders words"
    )
    noise: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="chance that a judgement is turned round: a list's scores then stand in the opposite order, and a "
        "rating r is 1 - r",
    )
    uneven: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of labels whose word was chosen by its prompt: one that begins with a, b, c or d has "
        "a liked word, any other a disliked one",
    )
    length_bias: float = Field(0.0, ge=-10, le=10, description="what the judge adds to a word's reward for each letter")
    annotators: int = Field(1, ge=1, le=WANTED, description="groups of annotators, each with a taste of its own")
    margins: bool = Field(
        False,
        description="whether each pair states as its margin what another objective makes of it: how much shorter the "
        "winner is, as a share of the longest word",
    )
    apart: bool = Field(
        False,
        description="whether each group of annotators is an agent, with a head or a model (model.agents); the true "
        "reward is then what the prompt's own annotator likes",
    )
    context: int = Field(
        0,
        ge=0,
        le=16,
        description="judgements of the prompt's own annotator that stand before it, for a model of users (vpl); the "
        "true reward is then what this annotator likes",
    )

    notes: ClassVar[tuple[str, ...]] = (
        "an evaluation of a policy samples words and scores them by the true reward, which the judge may not tell",
    )
    """Sentences for a plan: rewards are the judge's, and evaluations sample."""

    @model_validator(mode="after")
    def _fits_together(self) -> Preferences:
        if self.in_circles and (self.form != "pairs" or self.length_bias or self.annotators > 1):
            raise ValueError("a cyclic judge compares first letters only: it has pairs, no length_bias or annotators")
        if self.form == "ratings" and (self.length_bias or self.annotators > 1):
            raise ValueError(
                "ratings are of one annotator, and length is one of them: leave out annotators, length_bias"
            )
        if self.uneven and self.form != "labels":
            raise ValueError("uneven says which words prompts have labels of: set form to labels, or leave it out")
        if "words" in self.model_fields_set and self.form not in ("lists", "ratings"):
            raise ValueError("words says how many a list has: set form to lists or ratings, or leave it out")
        if self.margins and self.form != "pairs":
            raise ValueError("margins are for pairs: set form to pairs, or leave margins out")
        if self.apart and self.annotators == 1:
            raise ValueError(
                "apart gives each group of annotators an agent, and there is one: set annotators to 2 or 3"
            )
        if self.context and (self.apart or self.annotators == 1 or self.form != "pairs"):
            raise ValueError(
                "context has judgements tell annotators apart: set annotators to 2 or 3, form to pairs, and apart to "
                "false"
            )
        return self

    @property
    def in_circles(self) -> bool:
        """True if the judge's preferences go in a circle, so that no reward tells them."""
        return self.judge != "reward"

    @property
    def agents(self) -> tuple[str, ...]:
        """The groups of annotators, if they are apart: the policy that completes a prompt is that of its annotator."""
        return tuple(f"annotator_{number}" for number in range(self.annotators)) if self.apart else ("",)

    def agent_of(self, example: Example) -> int:
        """Return the number of the prompt's annotator if they are apart."""
        return int(example.columns["annotator"]) if self.apart else 0

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the longest word and its end."""
        return self.longest + 1

    @property
    def alphabet(self) -> str:
        """The letters a..h, '>', and the signs that separate the judgements before a prompt."""
        return f"{LETTERS}>{BETWEEN}{END}" if self.context else f"{LETTERS}>"

    @property
    def reward(self) -> Reward:
        """The true reward of a word; by annotator or, for the cyclic judges, by first letter."""
        if self.apart or self.context:
            return own_letter
        if self.form == "ratings":
            return mean_rating
        if self.judge == "alphabet":
            return alphabet_kind
        return first_letter if self.judge == "cyclic" else liked_letters

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return three letters, after the annotator's other judgements, and the judged words."""
        wanted = "".join(rng.sample(LETTERS, WANTED))
        annotator = rng.randrange(self.annotators)
        columns: dict[str, object] = {"wanted": wanted, "annotator": annotator, "annotators": self.annotators}
        if self.form == "labels":
            word, liked = self._labelled(wanted, annotator, rng)
            return f"{wanted}>", columns | {"completion": word, "label": liked != (rng.random() < self.noise)}
        if self.form == "lists":
            return f"{wanted}>", columns | self._scored(wanted, annotator, rng)
        if self.form == "ratings":
            return f"{wanted}>", columns | {"longest": self.longest} | self._rated(wanted, rng)
        better, worse = self._pair(wanted, annotator, rng)
        turned = rng.random() < self.noise
        chosen, rejected = (worse, better) if turned else (better, worse)
        prompt = judged_prompt([self._judgement(annotator, rng) for _ in range(self.context)], f"{wanted}>")
        return prompt, columns | {"chosen": chosen, "rejected": rejected, "turned": turned}

    def content(self, prompt: str) -> str:
        """Return the prompt without the judgements before it."""
        return prompt.rpartition(END)[2]

    def stored_rows(self, example: Example) -> Sequence[StoredRow]:
        """Return the judge's winner and loser, the word with its label, or words with their scores or ratings."""
        columns = example.columns
        if self.form == "lists":
            best = max(columns["scores"])
            scored = zip(columns["completions"], columns["scores"], strict=True)
            return tuple(StoredRow(word, score, correct=score == best) for word, score in scored)
        if self.form == "ratings":
            rated = zip(*(columns[name] for name in ("completions", *RATINGS)), strict=True)
            return tuple(rated_row(word, ratings) for word, *ratings in rated)
        if self.form == "labels":
            return (StoredRow(columns["completion"], float(columns["label"]), correct=columns["label"]),)
        chosen, rejected = columns["chosen"], columns["rejected"]
        shorter = (len(rejected) - len(chosen)) / self.longest
        stated = {"margin": shorter} if self.margins else {}
        won = StoredRow(chosen, 1.0, correct=True, components=stated)
        return won, StoredRow(rejected, 0.0, components=stated)

    def prefers(self, wanted: str, annotator: int, one: str, other: str) -> bool | None:
        """Return whether the judge, without noise, prefers one word to another; None if it has no preference."""
        if self.in_circles:
            order = wanted if self.judge == "cyclic" else CIRCLE
            step = (order.find(other[:1]) - order.find(one[:1])) % WANTED
            return None if step == 0 else step == 1
        gap = self._liked(one, wanted, annotator) - self._liked(other, wanted, annotator)
        return None if abs(gap) < APART else gap > 0

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Write a word like those that are judged."""
        return self._word(str(example.columns["wanted"]), rng)

    def solve(self, example: Example) -> str:
        """Write a letter that is asked for."""
        own = int(example.columns["annotator"]) if self.context else self.agent_of(example)
        return str(example.columns["wanted"])[own]

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return a word of wanted letters, and one of others; for the cyclic judges no word is right."""
        if self.in_circles:
            return ()
        example = self.example("train", 0)
        return known_words(example, self.solve(example))

    def _labelled(self, wanted: str, annotator: int, rng: random.Random) -> tuple[str, bool]:
        """Return a word and whether it is liked; for an uneven task the prompt's first letter may say which."""
        asked = wanted[0] in LETTERS[: len(LETTERS) // 2] if self.uneven and rng.random() < self.uneven else None
        while True:
            word = self._word(wanted, rng)
            liked = self._liked(word, wanted, annotator) >= LIKED
            if asked is None or liked == asked:
                return word, liked

    def _pair(self, wanted: str, annotator: int, rng: random.Random) -> tuple[str, str]:
        """Return two words of which the judge prefers the first."""
        while True:
            one, other = self._word(wanted, rng), self._word(wanted, rng)
            preferred = self.prefers(wanted, annotator, one, other)
            if preferred is not None:
                return (one, other) if preferred else (other, one)

    def _scored(self, wanted: str, annotator: int, rng: random.Random) -> dict[str, object]:
        """Return words with the judge's scores, of which two differ; noise puts all scores in the opposite order."""
        while True:
            words = [self._word(wanted, rng) for _ in range(self.words)]
            scores = [self._liked(word, wanted, annotator) for word in words]
            low, high = min(scores), max(scores)
            if high - low > APART:
                break
        turned = rng.random() < self.noise
        given = [low + high - score for score in scores] if turned else scores
        return {"completions": words, "scores": given, "turned": turned}

    def _rated(self, wanted: str, rng: random.Random) -> dict[str, object]:
        """Return words with their ratings; noise turns each rating round by itself."""
        words = [self._word(wanted, rng) for _ in range(self.words)]
        true = [ratings_of(word, wanted, self.longest) for word in words]
        given = [[1 - each if rng.random() < self.noise else each for each in ratings] for ratings in true]
        return {"completions": words, **dict(zip(RATINGS, map(list, zip(*given, strict=True)), strict=True))}

    def _judgement(self, annotator: int, rng: random.Random) -> tuple[str, str, str]:
        """Return another prompt, and the words of which the annotator prefers the first; noise may turn them round."""
        wanted = "".join(rng.sample(LETTERS, WANTED))
        better, worse = self._pair(wanted, annotator, rng)
        return (f"{wanted}>", worse, better) if rng.random() < self.noise else (f"{wanted}>", better, worse)

    def _word(self, wanted: str, rng: random.Random) -> str:
        """Return a word of any length and any share of wanted letters; for a cyclic judge it begins in the circle."""
        share, length = rng.random(), rng.randint(1, self.longest)
        letters = [rng.choice(wanted if rng.random() < share else LETTERS) for _ in range(length)]
        if self.in_circles:
            letters[0] = rng.choice(wanted if self.judge == "cyclic" else CIRCLE)
        return "".join(letters)

    def _liked(self, word: str, wanted: str, annotator: int) -> float:
        """Return the score that a judge compares: an annotator's taste, and the length."""
        pleases = wanted if self.annotators == 1 else wanted[annotator]
        return share_of(word, pleases) + self.length_bias * len(word)


def known_words(example: Example, right: str) -> tuple[KnownExample, ...]:
    """Return a right word for a prompt, and two wrong ones: of a letter that is not asked for, and of none."""
    other = next(letter for letter in LETTERS if letter not in example.columns["wanted"])
    return tuple(KnownExample(word, example.columns, word == right) for word in (right, other, ""))


def share_of(word: str, letters: str) -> float:
    """Return the share of a word's letters that are among `letters`; 0 for an empty word."""
    return sum(letter in letters for letter in word) / len(word) if word else 0.0


def ratings_of(word: str, wanted: str, longest: int) -> tuple[float, float]:
    """Return a word's ratings, of at most 1: its share of wanted letters, and how short it is; 0 if it is empty."""
    return share_of(word, wanted), 1 - (len(word) - 1) / longest if word else 0.0


def rated_row(word: str, ratings: Sequence[float]) -> StoredRow:
    """Return a word whose reward is the mean of its ratings, which are its components."""
    return StoredRow(word, sum(ratings) / len(ratings), components=dict(zip(RATINGS, ratings, strict=True)))


def mean_rating(completion: str, *, wanted: str, longest: int) -> float:
    """Return the mean of a word's true ratings."""
    return sum(ratings_of(completion, wanted, longest)) / len(RATINGS)


def liked_letters(completion: str, *, wanted: str, annotators: int) -> float | dict[str, float]:
    """Return the share of wanted letters in a word; of several annotators, each one's share, which add up to it."""
    if annotators == 1:
        return share_of(completion, wanted)
    return {f"annotator_{number}": share_of(completion, wanted[number]) for number in range(annotators)}


def own_letter(completion: str, *, wanted: str, annotator: int) -> float:
    """Return the share of a word's letters that the prompt's own annotator is pleased by."""
    return share_of(completion, wanted[annotator])


def first_letter(completion: str, *, wanted: str) -> dict[str, float]:
    """Return how often a word wins against one of each kind, 1/2, under the name of its own first letter."""
    return {f"kind_{number}": 0.5 * completion.startswith(letter) for number, letter in enumerate(wanted)}


def alphabet_kind(completion: str) -> dict[str, float]:
    """Return how often a word wins against one of each kind, 1/2, under the name of its kind in the alphabet."""
    return {f"kind_{number}": 0.5 * (completion[:1] in [*CIRCLE[number::WANTED]]) for number in range(WANTED)}
