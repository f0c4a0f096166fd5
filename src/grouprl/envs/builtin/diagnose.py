"""A diagnosis for which missing findings must be asked for."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns
from grouprl.rewards.by_task.shapley import information_gain, shapley

FINDINGS, SLOW = "abcdef", "def"
"""All findings, and those that take a laboratory test."""
SIGNS = "-+"
SECONDS = {False: 1.0, True: 10.0}
"""Seconds that a turn takes, without and with a test."""
ASK, ANSWER = re.compile(rf"\?([{FINDINGS}])"), re.compile(r"=([1-4])")


def diagnosis(first: str, second: str) -> str:
    """Return the diagnosis, "1" to "4", for the signs of two findings."""
    return str(1 + 2 * SIGNS.index(first) + SIGNS.index(second))


class Diagnose(Game):
    """A complaint whose diagnosis depends on two findings; some findings are given, and the others can be asked for
    (ProMed).

    Columns: `matters` (the two findings, in order), `told` and `findings` (finding -> sign). "?b" asks and is answered
    with "+>" or "->"; "=3" gives the diagnosis and ends the episode, with reward 1 if it is right. Anything else is
    invalid and answered with "!>". The state is the known findings.

    A question earns the Shapley value of its finding in the chance of the right diagnosis, if the finding is new; a
    finding that does not matter earns nothing. `info["seconds"]` is the duration of a turn: ten for a laboratory test.
    """

    def __init__(self, max_turns: int, noise: float = 0.3) -> None:
        """Prepare an episode of at most `max_turns` turns; `noise` is the chance of a demonstration's slip."""
        super().__init__(max_turns)
        self.noise = noise
        self.matters = ""
        self.findings: Mapping[str, str] = {}
        self.known: dict[str, str] = {}
        self.weights: Mapping[str, float] = {}
        self.said = ""

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Read the given findings."""
        self.matters, self.findings, self.known = columns["matters"], columns["findings"], dict(columns["told"])
        hidden = [finding for finding in self.findings if finding not in self.known]
        told = frozenset(self.known)
        self.weights = shapley(lambda asked: self.chance(told | asked), hidden)

    def chance(self, known: Collection[str]) -> float:
        """Return the probability of the right diagnosis for an agent that knows these findings and guesses the rest."""
        return 0.5 ** sum(finding not in known for finding in self.matters)

    @property
    def state(self) -> str:
        """The known findings, such as "a+d-"; "?" if none is known."""
        return "".join(f"{finding}{self.known[finding]}" for finding in sorted(self.known)) or "?"

    @property
    def right(self) -> str:
        """The diagnosis."""
        first, second = (self.findings[finding] for finding in self.matters)
        return diagnosis(first, second)

    @property
    def correct(self) -> bool:
        """True if the right diagnosis was given."""
        return self.said == self.right

    def act(self, action: str) -> Outcome:
        """Ask or answer."""
        if given := ANSWER.fullmatch(action):
            self.said = given[1]
            return Outcome("", float(self.correct), ended=True, info={"seconds": SECONDS[False]})
        asked = ASK.fullmatch(action)
        if asked is None:
            return Outcome("!>", valid=False, info={"seconds": SECONDS[False]})
        finding = asked[1]
        gained = information_gain(self.weights, self.known, [finding])
        self.known[finding] = self.findings[finding]
        return Outcome(f"{self.known[finding]}>", gained, info={"seconds": SECONDS[finding in SLOW]})

    def demonstrate(self, rng: random.Random) -> str:
        """Ask for a finding that matters, or answer; with a certain chance ask for any finding, or give any answer."""
        missing = [finding for finding in self.matters if finding not in self.known]
        if rng.random() < self.noise:
            return rng.choice([f"?{rng.choice(FINDINGS)}", f"={rng.randint(1, 4)}"])
        return f"?{missing[0]}" if missing else f"={self.right}"
