"""Arithmetic with a calculator as a tool."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

CALL = re.compile(r"c(\d{1,9})([*+-])(\d{1,9});?")
ANSWER = re.compile(r"a(-?\d{1,18})")


def compute(first: int, sign: str, second: int) -> int:
    """Return the result of one operation."""
    return {"*": first * second, "+": first + second, "-": first - second}[sign]


def running_totals(terms: Sequence[int], signs: Sequence[str]) -> list[int]:
    """Return the result after every operation, computed from left to right; there is one more term than signs."""
    totals = [terms[0]]
    for sign, term in zip(signs, terms[1:], strict=True):
        totals.append(compute(totals[-1], sign, term))
    return totals[1:]


class Calculator(Game):
    """An expression such as "23*47+5=" and a tool that performs one operation per call.

    Columns: `terms` ("23", "47", "5") and `signs` ("*", "+"), computed from left to right. "c23*47;" calls the tool,
    and the next observation is its result and '>'; "a1086" answers and ends the episode, with reward 1 if it is right.
    A call whose result is the next of the running totals earns `call_reward`. Anything else is a malformed call:
    invalid, answered with '!', counted in `info["malformed"]`; good calls are counted in `info["calls"]`. The state is
    the results so far.
    """

    def __init__(self, max_turns: int, noise: float = 0.3, call_reward: float = 0.0) -> None:
        """Prepare an episode of at most `max_turns` turns.

        Args:
            max_turns: calls and answers allowed.
            noise: chance of a slip in a demonstrated turn.
            call_reward: reward of a call that makes progress.
        """
        super().__init__(max_turns)
        self.noise, self.call_reward = noise, call_reward
        self.terms: list[int] = []
        self.signs: list[str] = []
        self.results: list[int] = []
        self.reached = 0
        self.malformed = 0
        self.answer: int | None = None

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Read the expression."""
        self.terms, self.signs = [int(term) for term in columns["terms"]], list(columns["signs"])

    @property
    def state(self) -> str:
        """The results so far, "1081,1086"; "-" before the first."""
        return ",".join(map(str, self.results)) or "-"

    @property
    def correct(self) -> bool:
        """True if the right answer was given."""
        return self.answer is not None and self.answer == running_totals(self.terms, self.signs)[-1]

    def act(self, action: str) -> Outcome:
        """Call the tool or answer."""
        if given := ANSWER.fullmatch(action):
            self.answer = int(given[1])
            return self._outcome("", float(self.correct), ended=True)
        call = CALL.fullmatch(action)
        if call is None:
            self.malformed += 1
            return self._outcome("!", valid=False)
        self.results.append(compute(int(call[1]), call[2], int(call[3])))
        is_on_path = self.results[-1:] == running_totals(self.terms, self.signs)[self.reached : self.reached + 1]
        self.reached += is_on_path
        return self._outcome(f"{self.results[-1]}>", self.call_reward * is_on_path)

    def demonstrate(self, rng: random.Random) -> str:
        """Return the call for the next operation or, when all are done, the answer; with a certain chance, a slip."""
        done = len(self.results)
        slip = rng.choice(["guess", "letter", "digit"]) if rng.random() < self.noise else ""
        if done >= len(self.signs):
            return f"a{_slipped(self.results[-1], rng) if slip else self.results[-1]}"
        first = self.results[-1] if self.results else self.terms[0]
        if slip == "guess":
            return f"a{_slipped(first, rng)}"
        operand = _slipped(self.terms[done + 1], rng) if slip == "digit" else self.terms[done + 1]
        return f"{'' if slip == 'letter' else 'c'}{first}{self.signs[done]}{operand};"

    def _outcome(self, text: str, reward: float = 0.0, *, ended: bool = False, valid: bool = True) -> Outcome:
        counted = {"calls": len(self.results), "malformed": self.malformed}
        return Outcome(text, reward, ended, valid, counted)


def _slipped(number: int, rng: random.Random) -> int:
    """Return the number with its last digit replaced by a random one."""
    return number - number % 10 + rng.randrange(10)
