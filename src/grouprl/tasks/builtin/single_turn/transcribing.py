"""Pages that were scanned badly, to be written down as they were."""

from __future__ import annotations

import random

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward
from grouprl.rewards.by_task.documents import document
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

LETTERS, DIGITS = "acilosx", "0123456"
ALIKE = {"o": "0", "l": "1", "i": "1", "s": "5", "0": "o", "1": "l", "5": "s"}
"""The sign that a bad scan shows in place of another."""


@register_task("transcribe")
class Transcribe(GeneratedTask):
    """Write down a badly scanned page of text, formulas and tables; the kind of a block tells what its signs can be.

    Text has letters alone, tables have digits alone, a formula has a letter, a sign and a digit between dollar signs.
    The prompt is "c0l s0\\n$x+s$\\nl&5>", a completion "col so\\n$x+5$\\n1&5". A demonstration corrects every sign that
    it sees to be wrong, sometimes to another one.
    """

    levels = tuple(
        {"blocks": blocks, "width": width} for blocks, width in ((1, 3), (2, 3), (3, 3), (3, 5), (4, 6), (6, 8))
    )

    blocks: int = Field(3, ge=1, le=6, description="blocks of a page, at most")
    width: int = Field(4, ge=2, le=12, description="letters of a text, and cells of a table, at most")
    scanned: float = Field(0.6, ge=0, le=1, description="chance that a sign looks like another on the scan")
    noise: float = Field(0.3, ge=0, le=1, description="chance that a demonstration reads a wrong sign wrongly")

    @property
    def max_new_tokens(self) -> int:
        """The token budget: blocks of tables with two rows, the end, and one more."""
        return self.blocks * (2 * (2 * self.width) + 1) + 2

    @property
    def alphabet(self) -> str:
        """Letters, digits, the signs of formulas and tables, the line's end and the prompt's."""
        return f"{LETTERS}{DIGITS}+-$& \n>"

    @property
    def reward(self) -> Reward:
        """The mean likeness of the blocks over their kinds; a page is right if all of it is the same."""
        return document

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a scan of a random page."""
        kinds = [rng.choice((self._text, self._formula, self._table)) for _ in range(rng.randint(1, self.blocks))]
        page = "\n".join(make(rng) for make in kinds)
        seen = "".join(ALIKE[sign] if sign in ALIKE and rng.random() < self.scanned else sign for sign in page)
        return f"{seen}>", {"answer": page}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Copy the page, with some of the misread signs wrong."""
        seen, right = str(example.prompt).removesuffix(">"), str(example.columns["answer"])
        return "".join(
            rng.choice(_allowed(sign)) if sign != read and rng.random() < self.noise else sign
            for sign, read in zip(right, seen, strict=True)
        )

    def solve(self, example: Example) -> str:
        """Return the page."""
        return str(example.columns["answer"])

    def _text(self, rng: random.Random) -> str:
        words = ("".join(rng.choices(LETTERS, k=rng.randint(1, self.width))) for _ in range(2))
        return " ".join(words)[: self.width + 1].strip()

    def _formula(self, rng: random.Random) -> str:
        return f"${rng.choice(LETTERS)}{rng.choice('+-')}{rng.choice(DIGITS)}$"

    def _table(self, rng: random.Random) -> str:
        cells = rng.randint(2, self.width)
        return "\n".join("&".join(rng.choices(DIGITS, k=cells)) for _ in range(rng.randint(1, 2)))


def _allowed(sign: str) -> str:
    return LETTERS if sign in LETTERS else DIGITS
