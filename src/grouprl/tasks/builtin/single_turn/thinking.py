"""A model of thinking: dots before the completion, which improve it and cost tokens."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from grouprl.core.hashing import generator
from grouprl.records.examples import Columns, Example, Split
from grouprl.rewards import Reward
from grouprl.tasks.builtin.single_turn.sequences import LETTERS
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task


@register_task("ponder")
class Ponder(GeneratedTask):
    """Think in dots, then write the given letters backwards; the longer a demonstration thinks, the better it is.

    The prompt is "gdbafc>", a completion "....|cfabdg": the text after the bar counts. Some prompts begin with a
    budget, the dots that may be written: "..>gdbafc>".
    """

    levels = tuple({"length": length} for length in (3, 4, 5, 6, 8, 12))

    length: int = Field(4, ge=2, le=64, description="letters to reverse")
    dots: int = Field(8, ge=1, le=64, description="dots that a demonstration writes at most")
    noise: float = Field(0.4, ge=0, le=1, description="chance that a letter is random in a demonstration without dots")
    budgeted: float = Field(0.5, ge=0, le=1, description="share of the prompts that come with a budget")

    alphabet: ClassVar[str] = f"{LETTERS}>.|"
    """The letters a..j, '>', '.' and '|'."""
    forms: ClassVar[tuple[str, ...]] = ("direct", "short", "long")
    """The forms of answering, by the number of dots."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: the dots, the bar, the completion, its end, and one more."""
        return self.dots + self.length + 3

    @property
    def reward(self) -> Reward:
        """1 iff the text after the bar is the letters backwards."""
        return after_thought

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return random letters."""
        letters = "".join(rng.choices(LETTERS, k=self.length))
        return f"{letters}>", {"answer": letters[::-1]}

    def content(self, prompt: str) -> str:
        """Return the prompt without the budget before its letters."""
        return f"{prompt.split('>')[-2]}>"

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` of a split, in a share of cases with a budget."""
        example = super().example(split, index)
        rng = generator(self.seed, "budget", example.id)
        if rng.random() >= self.budgeted:
            return example
        return replace(example, prompt=self._within(example, rng.randint(0, self.dots)))

    def with_budget(self, example: Example, tokens: int) -> str:
        """Return the prompt with as many dots as leave room for the bar, the letters and the end within `tokens`."""
        return self._within(example, min(max(tokens - self.length - 2, 0), self.dots))

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Write the dots of the budget, or any number, and the letters; the more dots, the fewer letters are wrong."""
        budget = self._budget(example)
        dots = rng.randint(0, self.dots) if budget is None else budget
        noise = self.noise * (1 - dots / self.dots)
        right = str(example.columns["answer"])
        letters = "".join(rng.choice(LETTERS) if rng.random() < noise else letter for letter in right)
        return f"{'.' * dots}|{letters}"

    def solve(self, example: Example) -> str:
        """Write as many dots as are allowed, and the letters backwards."""
        budget = self._budget(example)
        return "." * (self.dots if budget is None else budget) + f"|{example.columns['answer']}"

    def form_of(self, example: Example, text: str) -> str | None:
        """Return `direct` without dots, `short` with up to half of them, otherwise `long`; None without a bar."""
        thought, bar, _ = text.strip().partition("|")
        if not bar:
            return None
        return "direct" if not thought else "short" if len(thought) <= self.dots / 2 else "long"

    def _within(self, example: Example, dots: int) -> str:
        letters = str(example.prompt).split(">")[-2]
        return f"{'.' * dots}>{letters}>"

    def _budget(self, example: Example) -> int | None:
        """Return the number of dots that the prompt allows; None if it sets no budget."""
        before = str(example.prompt).split(">")[:-2]
        return len(before[-1]) if before and not before[-1].strip(".") else None


def after_thought(completion: str, *, answer: str) -> float:
    """Return 1 iff the text after the last bar of the completion is `answer`."""
    _, bar, said = completion.strip().rpartition("|")
    return float(bool(bar) and said == answer)
