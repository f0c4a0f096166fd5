"""Programs to be made faster."""

from __future__ import annotations

import random
import re
from typing import ClassVar

from pydantic import Field

from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample, Reward
from grouprl.rewards.by_task.speedup import afterburner
from grouprl.rewards.contract import known_examples
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.registry import register_task

PROGRAM = re.compile(r"[id]+")
FORM = re.compile(r"[0-9.]+\|[id]+")


def run(program: str) -> int:
    """Return the result of a program that begins with 0: "i" adds one, "d" doubles."""
    value = 0
    for step in program:
        value = 2 * value if step == "d" else value + 1
    return value


def shortest(number: int) -> str:
    """Return the shortest program that computes a number above 0 from 0, by its binary digits."""
    return "d".join("i" if digit == "1" else "" for digit in f"{number:b}")


@known_examples(
    ("6.3.1|idid", {"number": 6, "program": "iiiiii", "least": 4}, True),
    ("6.3.1|ididi", {"number": 6, "program": "iiiiii", "least": 4}, False),
    ("ididi", {"number": 6, "program": "iiiiii", "least": 4}, False),
)
def speed_up(completion: str, number: int, program: str, least: int) -> dict[str, float]:
    """Return Afterburner's reward: whether the program computes `number`, and how many steps it saves.

    The cost of a program is the number of its steps, and a text that is not a program fails. The format is a thought,
    one bar, and a program. `correct` is 1 for a program that passes with the fewest possible steps (`least`).
    """
    said = completion.rpartition("|")[2]
    passes = PROGRAM.fullmatch(said) is not None and run(said) == number
    passed, form = run(program) == number, FORM.fullmatch(completion) is not None
    parts = afterburner(passed, passes, len(program), len(said), form)
    return {**parts, "correct": float(passes and len(said) == least)}


@register_task("speed")
class Speed(GeneratedTask):
    """Make a program faster that counts up to a number from 0 with two steps: "i" adds one, "d" doubles.

    The prompt is "6:iiidi>": the number, and a program that is slow or wrong. The best completion is "6.3.1|idid":
    halves, then the steps. A demonstration repeats the program, counts up, slips, or leaves the thought out.
    """

    levels = tuple({"largest": largest} for largest in (8, 12, 16, 24, 32, 48))

    largest: int = Field(24, ge=4, le=60, description="the largest number")
    wrong: float = Field(0.3, ge=0, le=1, description="share of the programs that are wrong")
    good: float = Field(0.5, ge=0, le=1, description="share of demonstrations that write the fastest program")
    thought: float = Field(0.7, ge=0, le=1, description="share of those that write halves before")

    alphabet: ClassVar[str] = "0123456789id.:|>"
    """Digits, steps, and the signs between them."""

    @property
    def max_new_tokens(self) -> int:
        """The token budget: halves, the bar, counting up, the end, and one more."""
        return self.largest + 20

    @property
    def reward(self) -> Reward:
        """The reward: 0.5 times the improvement, and 0.2 for the format."""
        return speed_up

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a number and a program."""
        number = rng.randint(3, self.largest)
        program = _slow(number, rng)
        if rng.random() < self.wrong:
            program = program[:-1] + ("i" if program[-1] == "d" else "d")
        return f"{number}:{program}>", {"number": number, "program": program, "least": len(shortest(number))}

    def demonstrate(self, example: Example, rng: random.Random) -> str:
        """Write the fastest program, or something worse."""
        number, best = int(example.columns["number"]), shortest(int(example.columns["number"]))
        if rng.random() < self.good:
            return f"{_halves(number)}|{best}" if rng.random() < self.thought else f"|{best}"
        slipped = best[: (cut := rng.randrange(len(best)))] + rng.choice("id") + best[cut + 1 :]
        return "|" + rng.choice([str(example.columns["program"]), _slow(number, rng), slipped])

    def solve(self, example: Example) -> str:
        """Write halves and the fastest program."""
        number = int(example.columns["number"])
        return f"{_halves(number)}|{shortest(number)}"

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return fastest programs, and an empty one."""
        return tuple(each for each in super().reward_examples() if each.correct or not each.completion)


def _slow(number: int, rng: random.Random) -> str:
    """Return a program that doubles at most once and otherwise counts up."""
    half = rng.randint(0, number // 2)
    return "i" * half + ("d" if half else "") + "i" * (number - 2 * half)


def _halves(number: int) -> str:
    halves = [number]
    while halves[-1] > 1:
        halves.append(halves[-1] // 2)
    return ".".join(map(str, halves))
