"""A tiny environment of two turns: ask with `k`, then say the letter that the answer showed."""

from __future__ import annotations

import random
from typing import ClassVar

from grouprl.envs import Observation, Step
from grouprl.tasks import Question, Task
from grouprl.tasks.task import generator

LETTERS = "abc"


class Ask:
    """Turn 1: `k` earns 0.5 and shows a letter, anything else shows `-`. Turn 2: that letter earns 0.5."""

    opened: ClassVar[list[Ask]] = []

    def __init__(self, noise: float = 0.0) -> None:
        self.noise, self.turn, self.closed = noise, 0, 0
        self.right = False
        Ask.opened.append(self)

    def reset(self, question: Question, seed: int) -> Observation:
        self.letter = question.columns["letter"]
        return Observation(question.prompt, state="start")

    def step(self, action: str) -> Step:
        self.turn += 1
        if self.turn == 1:
            asked = action[:1] == "k"
            seen = self.letter if asked else "-"
            return Step(Observation(seen, state=seen), 0.5 * asked, valid=asked)
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

    def question(self, split, index):
        letter = generator(split, index).choice(LETTERS)
        return Question(f"ask/{split}/{index}", "?", {"letter": letter})

    def size(self, split):
        return None

    def environment(self):
        return Ask(self.noise)


class Counting(Ask):
    """Goes on for as many turns as the question says; the observations differ in length."""

    def reset(self, question, seed):
        self.turns = question.columns["turns"]
        return Observation("?" * (1 + self.turns), state="s")

    def step(self, action):
        self.turn += 1
        return Step(Observation("ab" * self.turn, state="s"), 1.0, terminated=self.turn == self.turns)
