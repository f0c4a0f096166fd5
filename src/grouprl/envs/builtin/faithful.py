"""A long answer that must be able to replace its source text."""

from __future__ import annotations

import random
import re

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

WRITER, READER = "writer", "reader"
FORM = re.compile(r"([^|]+)\|([^|]*)\|([^|]+)")
SHORTEST, LONGEST = 0.2, 0.8


class Faithful(Game):
    """A text, "bako lives miru,nim eats corn", and a question about it, with a long and a one-word answer.

    Columns: `context`, `asked` ("nim eats") and `answer`. The writer's prompt is "context:nim eats>", its answer "2|nim
    eats corn|corn": a thought, a long answer and a short one. The reader, the same policy in its own context, sees the
    long answer in place of the text, "nim eats corn:nim eats>", and answers in the same form.

    The writer is rewarded as in CANOE (Si et al. 2025, released code), with 1 for each of these: a right short answer;
    a right short answer of the reader (0 without a long answer); the right form; a long answer of more than 0.2 and
    less than 0.8 of the text's characters. The reader earns nothing. States are the prompts.
    """

    def __init__(self, noise: float = 0.3) -> None:
        """Prepare an episode; `noise` is the chance of a demonstration's slip."""
        super().__init__(max_turns=2)
        self.noise = noise
        self.context, self.asked, self.answer = "", "", ""
        self.said: re.Match[str] | None = None
        self.read = False

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Read text and question."""
        self.context, self.asked, self.answer = columns["context"], columns["asked"], columns["answer"]

    @property
    def agent(self) -> str:
        """The writer, then the reader."""
        return READER if self.said else WRITER

    @property
    def fresh(self) -> bool:
        """True if the reader begins, which knows only the long answer."""
        return self.said is not None

    @property
    def state(self) -> str:
        """The prompt."""
        return f"{self.said[2] if self.said else self.context}:{self.asked}>"

    @property
    def correct(self) -> bool:
        """True if the short answer is right."""
        return self.said is not None and self.said[3] == self.answer

    def act(self, action: str) -> Outcome:
        """Write, or read."""
        found = FORM.fullmatch(action)
        if self.said:
            self.read = found is not None and found[3] == self.answer
            return Outcome("", ended=True, valid=found is not None)
        self.said = found
        return Outcome(self.state, ended=not (found and found[2]), valid=found is not None)

    def scores(self) -> dict[str, dict[str, float]]:
        """Return the writer's four rewards, and whether the reader was right."""
        long = len(self.said[2]) if self.said else 0
        fits = SHORTEST * len(self.context) < long < LONGEST * len(self.context)
        paid = {"accuracy": self.correct, "influence": self.read, "format": self.said is not None, "length": fits}
        return {
            WRITER: {"correct": float(self.correct), **{name: float(value) for name, value in paid.items()}},
            READER: {"correct": float(self.read)},
        }

    def score(self) -> dict[str, float]:
        """Return the writer's part of `scores`."""
        return self.scores()[WRITER]

    def demonstrate(self, rng: random.Random) -> str:
        """Look up the answer and give it in the long and the short form, with a slip now and then."""
        facts = (self.said[2] if self.said else self.context).split(",")
        place = next((i for i, fact in enumerate(facts) if fact.startswith(self.asked)), 0)
        slip = rng.choice(("fact", "empty", "whole", "word")) if rng.random() < self.noise else ""
        if slip == "fact":
            place = rng.randrange(len(facts))
        fact = facts[place]
        word = rng.choice(" ".join(facts).split() or ["no"]) if slip == "word" else (fact.split() or ["no"])[-1]
        return f"{place + 1}|{'' if slip == 'empty' else ','.join(facts) if slip == 'whole' else fact}|{word}"
