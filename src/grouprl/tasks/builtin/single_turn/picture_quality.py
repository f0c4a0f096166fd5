"""Pictures in letters whose quality is to be rated."""

from __future__ import annotations

import json
import random
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import Reward
from grouprl.rewards.by_task.quality import quality
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

FLAWS = "bnj"
"""The letters of flaws: blur, noise, blocks."""
KINDS = ("rate", "flaw", "best")
CLEAN = "."


@register_task("inspect")
class Inspect(GeneratedTask):
    """Judge pictures by their flaws: rate one, name its flaw and the severity, or tell which of two is better.

    A picture is "..n..n.."; its rating is 5 less half a point per flaw. The prompts are "..n..n..:rate>",
    "..n..n..:flaw>" and "..n..n../.b......:best>", the completions '{"rating":4.0}', '{"flaw":"n","severity":2}' and
    '{"better":"B"}'. A demonstration is sometimes wrong, or not JSON.
    """

    levels = tuple(
        {"letters": letters, "most": most} for letters, most in ((4, 2), (6, 3), (8, 4), (10, 6), (12, 8), (16, 8))
    )

    letters: int = Field(6, ge=2, le=32, description="letters of a picture")
    most: int = Field(3, ge=1, le=8, description="flaws of a picture, at most")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstration has a slip")

    max_new_tokens: ClassVar[int] = 30
    """The token budget: the longest object, the end, and a few more."""

    def model_post_init(self, context: object) -> None:
        """Refuse more flaws than letters."""
        if self.most > self.letters:
            raise ValueError(f"most = {self.most} flaws do not fit in {self.letters} letters: give larger pictures")

    @property
    def alphabet(self) -> str:
        """The letters of pictures, prompts and completions, digits, and the signs of JSON."""
        return "".join(sorted({*FLAWS, *"".join(KINDS), *"ratingflawseveritybetterAB"})) + '0123456789./:>{}",'

    @property
    def reward(self) -> Reward:
        """The reward: 1 for a flat object, and 1 for its content."""
        return quality

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a picture, or two that differ in quality, and the question about them."""
        kind, flaw, count = rng.choice(KINDS), rng.choice(FLAWS), rng.randint(1, self.most)
        picture = self._picture(flaw, count, rng)
        if kind == "rate":
            return f"{picture}:rate>", _columns(kind, rating=5 - count / 2)
        if kind == "flaw":
            return f"{picture}:flaw>", _columns(kind, flaw=flaw, severity=count)
        other = rng.choice([n for n in range(self.most + 1) if n != count])
        shown = f"{picture}/{self._picture(rng.choice(FLAWS), other, rng)}:best>"
        return shown, _columns(kind, better="A" if count < other else "B")

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Judge the picture, sometimes with a slip."""
        answer = dict(example.columns["answer"])
        if rng.random() >= self.noise:
            return _spell(answer)
        if rng.random() < 0.2:
            return _spell(answer)[:-1]
        if "rating" in answer:
            answer["rating"] += rng.choice((-1.0, -0.5, 0.5, 1.0))
        elif "better" in answer:
            answer["better"] = rng.choice("AB")
        elif rng.random() < 0.5:
            answer["flaw"] = rng.choice(FLAWS)
        else:
            answer["severity"] = rng.randint(1, self.most)
        return _spell(answer)

    def solve(self, example: Example) -> str:
        """Judge the picture correctly."""
        return _spell(example.columns["answer"])

    def _picture(self, flaw: str, count: int, rng: random.Random) -> str:
        places = set(rng.sample(range(self.letters), count))
        return "".join(flaw if place in places else CLEAN for place in range(self.letters))


def _columns(kind: str, **answer: object) -> dict[str, object]:
    return {"kind": kind, "answer": answer}


def _spell(answer: dict[str, object]) -> str:
    return json.dumps(answer, separators=(",", ":"))
