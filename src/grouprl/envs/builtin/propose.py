"""Self-play on sums: a proposer writes a problem for a given number, and a solver attempts it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Literal

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

SOLVER, PROPOSER = "solver", "proposer"
PROBLEM = re.compile(r"\d{1,2}(?:[+-]\d{1,2}){1,3}")
Pay = Literal["failure", "middle"]


def value(problem: str) -> int:
    """Return the result of a problem such as "12+7-5"."""
    return sum(int(term) for term in re.findall(r"[+-]?\d+", problem))


def proposer_pay(rate: float, pay: Pay) -> float:
    """Return the proposer's reward for a valid problem that the solver gets right at `rate`: 1 - p, or 4p(1 - p)."""
    return 1 - rate if pay == "failure" else 4 * rate * (1 - rate)


def around(number: int, below: int, rng: random.Random) -> str:
    """Return a non-negative sum or difference of `number` and another number below `below`."""
    other = rng.randint(1, below - 1)
    if rng.random() < 0.5:
        return f"{number}+{other}" if rng.random() < 0.5 else f"{other}+{number}"
    return f"{max(number, other)}-{min(number, other)}"


def coming_to(number: int, below: int, rng: random.Random) -> str:
    """Return a sum or difference of two numbers below `below` whose result is `number`, itself below `below`."""
    most = below - 1 - number
    if most < 1 or (number > 1 and rng.random() < 0.5):
        first = rng.randint(1, number - 1)
        return f"{first}+{number - first}"
    second = rng.randint(1, most)
    return f"{number + second}-{second}"


class Propose(Game):
    """The proposer sees an answer, "12?", and writes a problem with that result, "7+5"; the solver, which sees only
    "7+5=", attempts it `attempts` times, each in a new context.

    Columns: `answer`, or `problem`, which the solver then attempts once without a proposer. A problem has two to four
    numbers below `below`, has the answer as its result and does not contain it; if `free`, it contains the number shown
    and has any result from 0 on. Anything else ends the episode and earns the proposer `invalid`; a valid one earns 1 -
    p ("failure") or 4p(1 - p) ("middle"), where p is the share of right attempts. An attempt earns 1 if it is right. A
    problem that is held out for evaluation earns nothing and is not attempted. The states are the number shown and the
    problem.
    """

    def __init__(
        self,
        attempts: int = 4,
        pay: Pay = "failure",
        invalid: float = -1.0,
        noise: float = 0.3,
        free: bool = False,
        below: int = 100,
        held_out: Callable[[str], bool] = lambda problem: False,
    ) -> None:
        """Prepare an episode; `noise` is the chance that a demonstrated answer is off by one."""
        super().__init__(max_turns=attempts + 1)
        self.attempts, self.pay, self.invalid, self.noise, self.free = attempts, pay, invalid, noise, free
        self.below, self.held_out = below, held_out
        self.shown, self.problem = 0, ""
        self.right: list[bool] = []

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Read the number shown, or the problem."""
        self.problem = str(columns.get("problem", ""))
        if self.problem:
            self.attempts = 1
        else:
            self.shown = int(columns["answer"])

    @property
    def agent(self) -> str:
        """The proposer, then the solver."""
        return SOLVER if self.problem else PROPOSER

    @property
    def fresh(self) -> bool:
        """True if an attempt begins: each attempt knows only the problem."""
        return bool(self.problem)

    @property
    def state(self) -> str:
        """The problem, or the answer for which a problem is wanted."""
        return f"{self.problem}=" if self.problem else f"{self.shown}?"

    @property
    def correct(self) -> bool:
        """True if most attempts were right."""
        return 2 * sum(self.right) > self.attempts

    def valid(self, problem: str) -> bool:
        """Return whether `problem` may be set for the number shown."""
        if not PROBLEM.fullmatch(problem):
            return False
        terms = re.findall(r"\d+", problem)
        if max(map(int, terms)) >= self.below:
            return False
        holds = str(self.shown) in terms
        return holds and value(problem) >= 0 if self.free else value(problem) == self.shown and not holds

    def act(self, action: str) -> Outcome:
        """Propose a problem, or attempt one."""
        if not self.problem:
            if not self.valid(action):
                return Outcome("", self.invalid, ended=True, valid=False)
            if self.held_out(action):
                return Outcome("", ended=True)
            self.problem = action
            return Outcome(f"{self.problem}=")
        self.right.append(action == str(value(self.problem)))
        ended = len(self.right) == self.attempts
        rate, proposed = sum(self.right) / self.attempts, self.shown > 0
        pay = {PROPOSER: proposer_pay(rate, self.pay)} if ended and proposed else {}
        return Outcome(f"{self.problem}=", float(self.right[-1]), ended=ended, valid=action.isdigit(), rewards=pay)

    def scores(self) -> dict[str, dict[str, float]]:
        """Return whether most attempts were right, and whether the problem was valid."""
        return {SOLVER: {"correct": float(self.correct)}, PROPOSER: {"correct": float(bool(self.problem))}}

    def demonstrate(self, rng: random.Random) -> str:
        """Propose a sum or a difference of two numbers, or answer; with a certain chance the answer is off by one."""
        if self.problem:
            return str(max(0, value(self.problem) + (rng.choice((-1, 1)) if rng.random() < self.noise else 0)))
        write = around if self.free else coming_to
        proposals = iter(lambda: write(self.shown, self.below, rng), None)
        return next(problem for problem in proposals if self.valid(problem) and not self.held_out(problem))
