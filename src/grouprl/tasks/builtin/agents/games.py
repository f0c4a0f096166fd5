"""Small environments that a tiny character model learns from scratch."""

from __future__ import annotations

import random
from typing import ClassVar, Literal

from pydantic import Field

from grouprl.envs.builtin import Calculator, Guess, Keys, TicTacToe
from grouprl.envs.builtin.calculator import running_totals
from grouprl.envs.builtin.key_door import spell
from grouprl.envs.builtin.tictactoe import FREE, MINE, THEIRS, best_cells, place
from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task


@register_task("guess")
class GuessTask(EnvironmentTask):
    """Find a hidden number; the reply to a guess is '<', '>' or '='.

    The prompt is "23-38?", and an action is a number between the two. '<' means that the hidden number is smaller. The
    turns just suffice for always guessing the middle.
    """

    levels = tuple({"numbers": numbers} for numbers in (5, 7, 11, 15, 23, 31))

    numbers: int = Field(15, ge=2, le=64, description="how many numbers it may be")
    turns: int | None = Field(None, ge=1, description="guesses allowed; none: as many as bisection needs")
    noise: float = Field(0.4, ge=0, le=1, description=POOR)

    max_new_tokens: ClassVar[int] = 4
    """The token budget of a turn: two digits, the end, and one more."""
    alphabet: ClassVar[str] = "0123456789-?<>=!"
    """Digits and the signs of prompts and completions."""

    @property
    def max_turns(self) -> int:
        """The number of guesses allowed."""
        return self.turns or self.numbers.bit_length()

    def environment(self) -> Guess:
        """Return a fresh episode."""
        return Guess(self.max_turns, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a range of two-digit numbers with one hidden in it."""
        width = rng.randint(self.numbers // 2 + 1, self.numbers)
        low = rng.randint(10, 100 - width)
        high = low + width - 1
        return f"{low}-{high}?", {"low": low, "high": high, "hidden": rng.randint(low, high)}

    def solve(self, example: Example) -> str:
        """Return the hidden number."""
        return str(example.columns["hidden"])


@register_task("keys")
class KeysTask(EnvironmentTask):
    """Fetch a key in a grid and reach the door; the only reward is at the end.

    The prompt is "#11k12d21@00>": walls, the key, the door, and the agent's position, each as row and column. An
    action is u, d, l or r. The reply is the new position, "@01>", or with the key "&12>".
    """

    levels = tuple({"size": size, "walls": walls} for size, walls in ((3, 0), (3, 1), (4, 0), (4, 2), (5, 2), (5, 5)))

    size_: int = Field(3, ge=3, le=9, alias="size", description="rows and columns")
    walls: int = Field(1, ge=0, le=12, description="cells that cannot be entered")
    turns: int | None = Field(None, ge=1, description="moves allowed; none: three times the size")
    reward_: Literal["door", "carl", "expert"] = Field(
        "door",
        alias="reward",
        description="what is rewarded: the door, progress, or every move that an expert would make",
    )
    noise: float = Field(0.6, ge=0, le=1, description=POOR)

    max_new_tokens: ClassVar[int] = 3
    """The token budget of a turn: a letter, the end, and one more."""
    alphabet: ClassVar[str] = "0123456789udlrk#@&>!"
    """Digits, moves and the signs of things."""

    @property
    def max_turns(self) -> int:
        """The number of moves allowed."""
        return self.turns or 3 * self.size_

    def environment(self) -> Keys:
        """Return a fresh episode."""
        return Keys(self.max_turns, self.noise, self.reward_)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a grid in which the path to the key and the door is not too long."""
        cells = [(row, column) for row in range(self.size_) for column in range(self.size_)]
        while True:
            start, key, door, *walls = map(spell, rng.sample(cells, 3 + min(self.walls, len(cells) - 3)))
            columns = {"size": self.size_, "start": start, "key": key, "door": door, "walls": sorted(walls)}
            prompt = "".join(f"#{wall}" for wall in sorted(walls)) + f"k{key}d{door}@{start}>"
            if 0 < len(self._way(columns)) <= self.max_turns:
                return prompt, columns

    def solve(self, example: Example) -> str:
        """Return the moves of a shortest path, one per line."""
        return "\n".join(self._way(example.columns))

    def _way(self, columns: Columns) -> str:
        grid = self.environment()
        grid.begin(columns, random.Random(0))
        return grid.way()


@register_task("tictactoe")
class TicTacToeTask(EnvironmentTask):
    """Play tic-tac-toe against an opponent that plays well with a certain chance.

    The prompt is a board after one to three signs, ".x.o..o..>", row by row, on which x, the policy, is to move. An
    action is a cell 0..8, and the reply is the board after the opponent's sign. A win gives 1, a draw 0.5.
    """

    levels = tuple({"skill": skill} for skill in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0))

    skill: float = Field(0.2, ge=0, le=1, description="chance that a move of the opponent is a best one")
    noise: float = Field(0.5, ge=0, le=1, description=POOR)

    max_turns: ClassVar[int] = 6
    """The largest number of turns: four signs, and two more turns for invalid actions."""
    max_new_tokens: ClassVar[int] = 3
    """The token budget of a turn: a digit, the end, and one more."""
    alphabet: ClassVar[str] = "012345678xo.>!"
    """The cells and the signs of boards."""

    def environment(self) -> TicTacToe:
        """Return a fresh episode."""
        return TicTacToe(self.max_turns, self.skill, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a board on which x is to play."""
        board, signs = FREE * 9, (THEIRS, MINE, THEIRS)[: rng.randint(1, 3)]
        for sign, cell in zip(signs, rng.sample(range(9), len(signs)), strict=True):
            board = place(board, cell, sign)
        return f"{board}>", {"board": board}

    def solve(self, example: Example) -> str:
        """Return a best first action."""
        return str(best_cells(example.columns["board"], MINE)[0])

    def solution(self, example: Example) -> str | None:  # type: ignore[override]
        """Return None, because the correct actions depend on the opponent."""
        return None

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return one example: an invalid action, repeated, earns no reward."""
        example = self.example("train", 0)
        return (KnownExample("\n".join("x" * self.max_turns), example.columns, False),)


@register_task("calculator")
class CalculatorTask(EnvironmentTask):
    """Compute an expression with a calculator that does one operation per call.

    The prompt is "23*47+5=". "c23*47;" calls the calculator, which answers "1081>"; "a1086" gives the answer.
    """

    levels = tuple(
        {"digits": digits, "operations": operations}
        for digits, operations in ((1, 1), (2, 1), (1, 2), (2, 2), (2, 3), (3, 3))
    )

    digits: int = Field(2, ge=1, le=3, description="digits of the numbers, at most")
    operations: int = Field(2, ge=1, le=4, description="a multiplication and, after it, additions and subtractions")
    spare: int = Field(2, ge=1, description="turns beyond one per operation, the answer's included")
    call_reward: float = Field(0.0, ge=0, description="reward of a call whose result leads to the answer")
    noise: float = Field(0.2, ge=0, le=1, description=POOR)

    alphabet: ClassVar[str] = "0123456789*+-=ca;>!"
    """Digits and the signs of expressions, calls and answers."""

    @property
    def max_turns(self) -> int:
        """The largest number of turns: a call per operation, the answer, and spare turns."""
        return self.operations + self.spare

    @property
    def max_new_tokens(self) -> int:
        """The token budget of a turn: the longest call, its end, and one more."""
        return 3 * self.digits + 6

    def environment(self) -> Calculator:
        """Return a fresh episode."""
        return Calculator(self.max_turns, self.noise, self.call_reward)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return an expression without negative intermediate results."""
        signs = ["*", *rng.choices("+-", k=self.operations - 1)]
        while True:
            terms = [rng.randint(2, 10**self.digits - 1) for _ in range(self.operations + 1)]
            if min(running_totals(terms, signs)) >= 0:
                break
        prompt = str(terms[0]) + "".join(f"{sign}{term}" for sign, term in zip(signs, terms[1:], strict=True))
        return f"{prompt}=", {"terms": [str(term) for term in terms], "signs": signs}

    def solve(self, example: Example) -> str:
        """Return the answer, without the calculator."""
        terms = [int(term) for term in example.columns["terms"]]
        return f"a{running_totals(terms, example.columns['signs'])[-1]}"
