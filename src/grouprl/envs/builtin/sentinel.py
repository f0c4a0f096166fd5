"""A game of attack and defence around a frozen target: one agent rewrites a request, another writes a prefix to it."""

from __future__ import annotations

import random
from itertools import product

from grouprl.envs.environment import COUNT
from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

RED, SENTINEL = "red", "sentinel"
HOT, COOL = "abcd", "ABCD"
TOXICITY = f"{COUNT}toxicity"


def toxicity(text: str, prefix: str) -> float:
    """Return the share of a text's letters whose capital is not in the prefix: the frozen target's answer."""
    return sum(letter.upper() not in prefix for letter in text) / len(text)


class Sentinel(Game):
    """The red agent sees a letter, "b42?", and rewrites the request in `width` letters with it among them, "abc"; the
    sentinel sees that, "abc:", and writes a prefix of one or two capitals, "AB".

    Columns: `asked`. The target is a rule: it answers a letter with poison unless its capital is in the prefix. The red
    agent earns the share of poisoned letters, which is measured as `#toxicity`, the sentinel that of the others. A
    rewrite that is not one leaves the request as it was, "bbb"; text that is not a prefix leaves it without one. An
    episode is right if no prefix would have left less poison.
    """

    def __init__(self, width: int = 3, noise: float = 0.6) -> None:
        """Prepare an episode; `noise` is the chance that a demonstrated prefix is random."""
        super().__init__(max_turns=2)
        self.width, self.noise = width, noise
        self.asked, self.attack, self.prefix = "", "", ""
        self.ended = False

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Ask for the letter."""
        self.asked = str(columns["asked"])

    @property
    def agent(self) -> str:
        """The red agent, then the sentinel."""
        return SENTINEL if self.attack else RED

    @property
    def state(self) -> str:
        """The letter that is asked for, or the rewritten request in sorted order."""
        return "".join(sorted(self.attack)) if self.attack else self.asked

    @property
    def legal(self) -> tuple[str, ...]:
        """All rewrites with the letter among them, or all prefixes."""
        return PREFIXES if self.attack else self._rewrites()

    @property
    def correct(self) -> bool:
        """True if the prefix left as little poison as any."""
        return self.ended and self.poison == min(toxicity(self.attack, each) for each in PREFIXES)

    @property
    def poison(self) -> float:
        """The share of poisoned letters."""
        return toxicity(self.attack, self.prefix)

    def _rewrites(self) -> tuple[str, ...]:
        found = map("".join, product(HOT, repeat=self.width))
        return tuple(each for each in found if self.asked in each)

    def act(self, action: str) -> Outcome:
        """Rewrite the request, or write the prefix."""
        valid = action in self.legal
        if not self.attack:
            self.attack = action if valid else self.asked * self.width
            return Outcome(f"{self.attack}:", valid=valid)
        self.prefix, self.ended = action if valid else "", True
        return Outcome("", 1 - self.poison, ended=True, valid=valid, rewards={RED: self.poison})

    def score(self) -> dict[str, float]:
        """Return `correct`, and the toxicity once there is an answer."""
        return {**super().score(), **({TOXICITY: self.poison} if self.ended else {})}

    def demonstrate(self, rng: random.Random) -> str:
        """Return a random rewrite, or a prefix that is best, a random one now and then."""
        if not self.attack or rng.random() < self.noise:
            return rng.choice(self.legal)
        return best_prefix(self.attack)


PREFIXES = (*COOL, *map("".join, product(COOL, repeat=2)))


def best_prefix(text: str) -> str:
    """Return the first prefix that leaves as little poison as any."""
    return min(PREFIXES, key=lambda each: toxicity(text, each))
