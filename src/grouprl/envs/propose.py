"""Self-play on sums: a proposer writes a problem with a given answer, a solver tries it."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any, Literal

from grouprl.envs.game import Game, Outcome

SOLVER, PROPOSER = "solver", "proposer"
PROBLEM = re.compile(r"\d{1,2}(?:[+-]\d{1,2}){1,3}")
Pay = Literal["failure", "middle"]


def value(problem: str) -> int:
    """Return what a problem such as "12+7-5" comes to."""
    return sum(int(term) for term in re.findall(r"[+-]?\d+", problem))


def proposer_pay(rate: float, pay: Pay) -> float:
    """Return what a valid problem earns that the solver gets right at `rate`: 1 - p, or 4p(1 - p)."""
    return 1 - rate if pay == "failure" else 4 * rate * (1 - rate)


class Propose(Game):
    """The proposer sees an answer, "12?", and writes a problem that comes to it, "7+5"; the solver, who sees nothing
    but "7+5=", tries it `attempts` times, each afresh.

    Column: `answer`. A problem has two to four numbers below 100, comes to the answer and does not hold it. What is
    none ends the episode and earns the proposer `invalid`; a valid one earns 1 - p ("failure") or 4p(1 - p) ("middle"),
    p the share of right attempts. An attempt earns 1 if it is right. States are the answer, and the problem.
    """

    def __init__(self, attempts: int = 4, pay: Pay = "failure", invalid: float = -1.0, noise: float = 0.3) -> None:
        """Prepare an episode; `noise` is the chance that a demonstrated answer is one off."""
        super().__init__(max_turns=attempts + 1)
        self.attempts, self.pay, self.invalid, self.noise = attempts, pay, invalid, noise
        self.answer, self.problem = 0, ""
        self.right: list[bool] = []

    def begin(self, columns: Mapping[str, Any], rng: random.Random) -> None:
        """Read the answer."""
        self.answer = int(columns["answer"])

    @property
    def agent(self) -> str:
        """The proposer, then the solver."""
        return SOLVER if self.problem else PROPOSER

    @property
    def fresh(self) -> bool:
        """Whether an attempt begins: each knows the problem alone."""
        return bool(self.problem)

    @property
    def state(self) -> str:
        """The problem, or the answer that one is wanted for."""
        return f"{self.problem}=" if self.problem else f"{self.answer}?"

    @property
    def correct(self) -> bool:
        """Whether most attempts were right."""
        return 2 * sum(self.right) > self.attempts

    def valid(self, problem: str) -> bool:
        """Tell whether `problem` is one that comes to the answer without holding it."""
        if not PROBLEM.fullmatch(problem):
            return False
        return value(problem) == self.answer and str(self.answer) not in re.findall(r"\d+", problem)

    def act(self, action: str) -> Outcome:
        """Propose, or try."""
        if not self.problem:
            if not self.valid(action):
                return Outcome("", self.invalid, ended=True, valid=False)
            self.problem = action
            return Outcome(f"{self.problem}=")
        self.right.append(action == str(self.answer))
        ended = len(self.right) == self.attempts
        pay = {PROPOSER: proposer_pay(sum(self.right) / self.attempts, self.pay)} if ended else {}
        return Outcome(f"{self.problem}=", float(self.right[-1]), ended=ended, valid=action.isdigit(), rewards=pay)

    def scores(self) -> dict[str, dict[str, float]]:
        """Return whether most attempts were right, and whether there was a problem."""
        return {SOLVER: {"correct": float(self.correct)}, PROPOSER: {"correct": float(bool(self.problem))}}

    def demonstrate(self, rng: random.Random) -> str:
        """Propose a sum or a difference of two numbers; answer, with a certain chance one off."""
        if self.problem:
            return str(max(0, self.answer + (rng.choice((-1, 1)) if rng.random() < self.noise else 0)))
        if self.answer > 1 and rng.random() < 0.5:
            first = rng.randint(1, self.answer - 1)
            return f"{first}+{self.answer - first}"
        second = rng.randint(1, 99 - self.answer)
        return f"{self.answer + second}-{second}"
