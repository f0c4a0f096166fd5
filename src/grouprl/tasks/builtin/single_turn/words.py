"""Words of wanted letters, sampled in training: reward models that were trained on `preferences` can pay for them."""

from __future__ import annotations

import math
import random

from pydantic import Field, model_validator

from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample, Reward
from grouprl.tasks.builtin.single_turn.preferences import LETTERS, WANTED, known_words, share_of
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

LONGEST = 48
"""Letters of the longest word under any setting."""
DIRECTIONS = 5
"""Directions between liking alone less length and liking plus length: -45° to 45°."""


@register_task("words")
class Words(GeneratedTask):
    """Write a word of the letters that the prompt asks for; the true reward is the share of such letters.

    The prompt is "caf>", a completion "fac". These are the words that `preferences` compares, sampled: a reward model
    that was trained there can pay here, and `reward.gold=task` tells what its payments are worth. With `directions` the
    prompt begins with a digit, "3caf>", that says how much long words are wanted besides: the reward is
    cos(v)·liked + sin(v)·length for an angle v from -45° (digit 0) to 45° (digit 4), both parts in [0, 1].
    `variety` plays a designer whose help misleads: different letters are paid besides, of which three are asked for.
    """

    levels = tuple({"longest": longest} for longest in (2, 3, 4, 6, 8, 12))

    longest: int = Field(6, ge=1, le=24, description="letters of the longest words that demonstrations show")
    room: int = Field(0, ge=0, le=24, description="letters by which a completion may be longer")
    directions: bool = Field(False, description="whether the prompt says how much length counts besides liking")
    variety: float = Field(
        0.0,
        ge=0,
        le=100,
        description="what is paid besides for a word of `longest` different letters, in the component variety; liked "
        "is the other one",
    )

    @model_validator(mode="after")
    def _one_besides(self) -> Words:
        if self.directions and self.variety:
            raise ValueError("directions and variety both pay for something besides: set only one of them")
        return self

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the longest word and its end."""
        return self.longest + self.room + 1

    @property
    def alphabet(self) -> str:
        """The letters a..h and '>'; digits with directions."""
        return f"{LETTERS}>" + "01234" * self.directions

    @property
    def reward(self) -> Reward:
        """The share of wanted letters; with directions, weighted with the length; with variety, also paid for different
        ones.
        """
        if self.variety:
            return varied_word
        return directed_word if self.directions else liked_word

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return three letters, and with directions a digit before them."""
        wanted = "".join(rng.sample(LETTERS, WANTED))
        if self.variety:
            return f"{wanted}>", {"wanted": wanted, "variety": self.variety, "longest": self.longest}
        if not self.directions:
            return f"{wanted}>", {"wanted": wanted}
        direction = rng.randrange(DIRECTIONS)
        return f"{direction}{wanted}>", {"wanted": wanted, "direction": direction, "longest": self.longest}

    def content(self, prompt: str) -> str:
        """Return the letters, which decide the split whatever the direction."""
        return prompt[-WANTED - 1 :]

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Write a word of any length and any share of wanted letters."""
        share, length = rng.random(), rng.randint(1, self.longest)
        wanted = str(example.columns["wanted"])
        return "".join(rng.choice(wanted if rng.random() < share else LETTERS) for _ in range(length))

    def solve(self, example: Example) -> str:
        """Write a letter that is asked for; where length counts, as many as fit."""
        letter, direction = str(example.columns["wanted"])[0], int(example.columns.get("direction", 0))
        return letter * (self.longest if self.directions and direction > DIRECTIONS // 2 else 1)

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return a word of wanted letters, and one of others; with another component no word is simply right."""
        if self.directions or self.variety:
            return ()
        example = self.example("train", 0)
        return known_words(example, self.solve(example))


def liked_word(completion: str, *, wanted: str) -> float:
    """Return the share of wanted letters in a word; 0 for one that is longer than any that may be written."""
    return share_of(completion, wanted) if len(completion) <= LONGEST else 0.0


def directed_word(completion: str, *, wanted: str, direction: int, longest: int) -> dict[str, float]:
    """Return cos(v)·liked and sin(v)·length for the angle v of the direction; both add up to the reward."""
    angle = math.pi / 4 * (direction / (DIRECTIONS // 2) - 1)
    length = min(len(completion), longest) / longest
    return {"liked": math.cos(angle) * share_of(completion, wanted), "length": math.sin(angle) * length}


def varied_word(completion: str, *, wanted: str, variety: float, longest: int) -> dict[str, float]:
    """Return the share of wanted letters, and `variety` times the share of `longest` letters that are different."""
    kinds = len(set(completion) & set(LETTERS))
    return {"liked": liked_word(completion, wanted=wanted), "variety": variety * min(kinds, longest) / longest}
