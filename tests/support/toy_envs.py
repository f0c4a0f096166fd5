"""A tiny environment of two turns: ask with `k`, then say the letter that was shown."""

from __future__ import annotations

import random
from typing import ClassVar

from grouprl.core.hashing import generator
from grouprl.envs import Observation, Step
from grouprl.tasks import Example, Task

LETTERS = "abc"


class Asking:
    """Turn 1: `k` earns 0.5 and shows a letter, anything else shows `-`. Turn 2: that letter earns 0.5."""

    opened: ClassVar[list[Asking]] = []

    def __init__(self, noise: float = 0.0) -> None:
        self.noise, self.turn, self.closed = noise, 0, 0
        self.right = False
        Asking.opened.append(self)

    def reset(self, example: Example, seed: int) -> Observation:
        self.letter = example.columns["letter"]
        return Observation(example.prompt, state="start")

    def step(self, action: str) -> Step:
        self.turn += 1
        if self.turn == 1:
            requested = action[:1] == "k"
            seen = self.letter if requested else "-"
            return Step(Observation(seen, state=seen), 0.5 * requested, valid=requested)
        self.right = action[:1] == self.letter
        return Step(Observation("!"), 0.5 * self.right, terminated=True, valid=action[:1] in LETTERS)

    def score(self) -> dict[str, float]:
        return {"correct": float(self.right)}

    def close(self) -> None:
        self.closed += 1

    def demonstrate(self, rng: random.Random) -> str:
        return rng.choice(LETTERS) if rng.random() < self.noise else ("k" if self.turn == 0 else self.letter)


class AskTask(Task):
    """Ask, then repeat."""

    name = "ask"
    alphabet = "abck?-!"
    max_turns = 2
    max_new_tokens = 2
    reward = staticmethod(lambda completion: 0.0)

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise

    def example(self, split, index):
        letter = generator(split, index).choice(LETTERS)
        return Example(f"ask/{split}/{index}", "?", {"letter": letter})

    def size(self, split):
        return None

    def environment(self):
        return Asking(self.noise)


class Counting(Asking):
    """Goes on for as many turns as the prompt says; the observations differ in length."""

    def reset(self, example, seed):
        self.turns = example.columns["turns"]
        return Observation("?" * (1 + self.turns), state="s")

    def step(self, action):
        self.turn += 1
        return Step(Observation("ab" * self.turn, state="s"), 1.0, terminated=self.turn == self.turns)


class Team:
    """A boss who calls a helper with `k`, as often as it likes, and then says the letter; 0.5 for that, to both.

    A call shows the letter to the helper, afresh each time; what it says is shown to the boss. The right letter earns
    the helper 1; the boss pays 0.1 for a call.
    """

    def __init__(self, calls: int = 3) -> None:
        self.calls, self.made = calls, 0

    def reset(self, example, seed):
        self.letter, self.right, self.acting = example.columns["letter"], False, "boss"
        return Observation("?", state="start", agent="boss")

    def step(self, action):
        if self.acting == "helper":
            self.acting = "boss"
            seen = action[:1] if action[:1] in LETTERS else "-"
            return Step(Observation(seen, state=seen, agent="boss"), 1.0 * (seen == self.letter))
        if action[:1] == "k" and self.made < self.calls:
            self.made, self.acting = self.made + 1, "helper"
            return Step(Observation(f"{self.letter}!", agent="helper", fresh=True), rewards={"boss": -0.1})
        self.right = action[:1] == self.letter
        both = dict.fromkeys(("boss", "helper"), 0.5 * self.right)
        return Step(Observation("!", agent="boss"), terminated=True, rewards=both)

    def scores(self):
        return {"boss": {"correct": float(self.right), "thrift": -0.01 * self.made}, "helper": {"correct": 1.0}}

    def score(self):
        raise AssertionError("scores() is asked in its place")

    def close(self):
        pass

    def demonstrate(self, rng):
        if self.acting == "helper" or self.made:
            return self.letter
        return rng.choice(("k", *LETTERS))


class TeamTask(AskTask):
    """A boss and its helper."""

    name = "team"
    agents = ("helper", "boss")
    max_turns = 7

    def environment(self):
        return Team()
