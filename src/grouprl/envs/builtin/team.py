"""A planner that calls workers: each call has its own context."""

from __future__ import annotations

import random
import re

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

PLANNER, WORKER = "planner", "worker"
CALL = re.compile(r"w(\d{1,3}\+\d{1,3})")
ANSWER = re.compile(r"a(\d{1,4})")
RESULT = re.compile(r"\d{1,4}")


def total(expression: str) -> int:
    """Return the value of a sum such as "31+45"."""
    return sum(map(int, expression.split("+")))


class Team(Game):
    """The planner has a sum of many numbers, "7+5+8=", and workers that add two.

    Column: `terms`. "w7+5" calls a worker, which sees only "7+5=" and writes the result, which the planner is shown as
    "12>"; "a20" answers. If a worker does not write a number, the planner is shown "?>"; anything else that the planner
    writes is invalid and answered with "!>". The planner earns 1 for the right answer; a worker earns 1 for the right
    result of its call or, if `shared`, whatever the planner earns. The state is the planner's results so far, or the
    worker's call.
    """

    def __init__(self, max_turns: int, shared: bool = False, noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` turns of all agents together; `noise` is the chance of a
        demonstration's slip.
        """
        super().__init__(max_turns)
        self.shared, self.noise = shared, noise
        self.terms: list[int] = []
        self.results: list[str] = []
        self.call, self.answer = "", ""

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Read the sum."""
        self.terms = [int(term) for term in columns["terms"]]

    @property
    def agent(self) -> str:
        """The worker while a call is open, else the planner."""
        return WORKER if self.call else PLANNER

    @property
    def fresh(self) -> bool:
        """True if a worker begins: each worker knows only its own call."""
        return bool(self.call)

    @property
    def state(self) -> str:
        """The call, or the results so far; "-" before the first."""
        return f"{self.call}=" if self.call else ",".join(self.results) or "-"

    @property
    def correct(self) -> bool:
        """True if the right answer was given."""
        return self.answer == str(sum(self.terms))

    def act(self, action: str) -> Outcome:
        """Call a worker, compute a call, or answer."""
        if self.call:
            return self._work(action)
        if found := CALL.fullmatch(action):
            self.call = found[1]
            return Outcome(f"{self.call}=")
        if found := ANSWER.fullmatch(action):
            self.answer = found[1]
            return Outcome("", float(self.correct), ended=True)
        return Outcome("!>", valid=False)

    def scores(self) -> dict[str, dict[str, float]]:
        """Return the outcome, and the workers' rewards if they share it."""
        outcome = {"correct": float(self.correct)}
        return {PLANNER: outcome, WORKER: {**outcome, "outcome": float(self.correct)} if self.shared else outcome}

    def demonstrate(self, rng: random.Random) -> str:
        """Add the next number with a worker's help; as a worker, add. With a certain chance make a slip."""
        slip = rng.randint(1, 9) if rng.random() < self.noise else 0
        if self.call:
            return str(total(self.call) + slip)
        done = sum(result.isdigit() for result in self.results)
        held = next((int(result) for result in reversed(self.results) if result.isdigit()), self.terms[0])
        if done < len(self.terms) - 1:
            return f"w{held}+{self.terms[done + 1] + slip}"
        return f"a{held + slip}"

    def _work(self, action: str) -> Outcome:
        valid = RESULT.fullmatch(action) is not None
        right = valid and int(action) == total(self.call)
        self.results.append(action if valid else "?")
        self.call = ""
        return Outcome(f"{self.results[-1]}>", 0.0 if self.shared else float(right), valid=valid)
