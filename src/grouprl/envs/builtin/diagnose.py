"""A diagnosis: what is not known must be asked for."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Mapping

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns
from grouprl.rewards.by_task.shapley import information_gain, shapley

FINDINGS, SLOW = "abcdef", "def"
"""What can be found out, and which of it takes a test in the laboratory."""
SIGNS = "-+"
SECONDS = {False: 1.0, True: 10.0}
"""How long a turn takes, without and with a test."""
ASK, ANSWER = re.compile(rf"\?([{FINDINGS}])"), re.compile(r"=([1-4])")


def diagnosis(first: str, second: str) -> str:
    """Return "1" to "4", as the signs of two findings say."""
    return str(1 + 2 * SIGNS.index(first) + SIGNS.index(second))


class Diagnose(Game):
    """A complaint on which two findings decide, of which some are told and the others can be asked for (ProMed).

    Columns: `matters` (the two findings, in order), `told` and `findings` (finding -> sign). "?b" asks and is answered
    with "+>" or "->", "=3" gives the diagnosis and ends the episode with 1 if it is right. Anything else is invalid and
    answered with "!>". The state is what is known.

    A question earns what it reveals anew: the Shapley value of a finding in the chance of the right diagnosis; what
    does not matter is worth nothing. `info["seconds"]` says how long a turn takes, ten for a test in the laboratory.
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
        """Hear what is told."""
        self.matters, self.findings, self.known = columns["matters"], columns["findings"], dict(columns["told"])
        hidden = [finding for finding in self.findings if finding not in self.known]
        told = frozenset(self.known)
        self.weights = shapley(lambda asked: self.chance(told | asked), hidden)

    def chance(self, known: Collection[str]) -> float:
        """Return the probability of the right diagnosis to one who knows these findings and guesses the others."""
        return 0.5 ** sum(finding not in known for finding in self.matters)

    @property
    def state(self) -> str:
        """What is known, "a+d-"; "?" where nothing is."""
        return "".join(f"{finding}{self.known[finding]}" for finding in sorted(self.known)) or "?"

    @property
    def right(self) -> str:
        """The diagnosis."""
        first, second = (self.findings[finding] for finding in self.matters)
        return diagnosis(first, second)

    @property
    def correct(self) -> bool:
        """Whether the right diagnosis was given."""
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
        """Ask for what matters and answer; with a certain chance ask for anything, or answer anything."""
        missing = [finding for finding in self.matters if finding not in self.known]
        if rng.random() < self.noise:
            return rng.choice([f"?{rng.choice(FINDINGS)}", f"={rng.randint(1, 4)}"])
        return f"?{missing[0]}" if missing else f"={self.right}"
