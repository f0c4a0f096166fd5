"""What the policy could do before training: its answers to every question, drawn once, and what is made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from grouprl.algorithms.data_part import Curriculum, DataPart, Desk, Prelude, Replay
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.errors import RunError
from grouprl.rollout.requests import Ask
from grouprl.rollout.samples import Collected, join, subset
from grouprl.rollout.serialize import Packed, pack, unpack

Count = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
Unit = Annotated[float, Field(ge=0, le=1)]
ENDLESS = "needs a finite set of questions. Set data.questions to a number"


def soft_value(reward_n: np.ndarray, beta: float) -> float:
    """Return β·log mean exp(r/β) of [N] rewards; β = 0 means their mean, no rewards 0 (V* of A*-PO)."""
    if not len(reward_n):
        return 0.0
    if beta == 0:
        return float(reward_n.mean())
    top = float(reward_n.max())
    return top + beta * math.log(float(np.exp((reward_n - top) / beta).mean()))


@part("prelude")
class InitialAnswers(Prelude):
    """Draw `answers` answers of the initial policy to each question, once (A*-PO arXiv:2505.20686, DPH-RL).

    Of each question three things are kept: `past.baseline`, the value V* = β·log mean exp(r/β) (β = 0: the mean reward)
    from now on; `past.rate`, the share of right answers; and its first right answer with log-probs, if there is one.
    """

    answers: Count = 8
    beta: NonNegative = 0.5
    questions_per_piece: Count = 32

    def supplies(self) -> tuple[str, ...]:
        """Batch fields."""
        return ("past.baseline", "past.rate")

    def count(self, desk: Desk) -> int:
        """Pieces of `questions_per_piece` questions."""
        return math.ceil(_questions(desk) / self.questions_per_piece)

    def piece(self, number: int, desk: Desk) -> dict[str, float]:
        """Ask the questions of one piece."""
        first = number * self.questions_per_piece
        indices = range(first, min(first + self.questions_per_piece, _questions(desk)))
        rows = desk.draw([replace(desk.ask(index), answers=self.answers) for index in indices])
        rows, store = subset(rows, rows.kept_b), desk.store(self)
        if not store:
            zeros = torch.zeros(_questions(desk), dtype=torch.float64)
            store |= {"value": zeros, "rate": zeros.clone(), "right": []}
        for index in indices:
            own = rows.index_b == index
            right_n, reward_n = rows.scores.correct_b[own], rows.scores.reward_b[own]
            store["value"][index] = soft_value(reward_n, self.beta)
            store["rate"][index] = float(right_n.mean()) if len(right_n) else 0.0
            if right_n.any():
                store["right"].append(pack(subset(rows, np.flatnonzero(own)[right_n][:1])))
        asked = store["rate"][list(indices)]
        return {"initial_rate": float(asked.mean()), "initial_solved": float((asked > 0).double().mean())}

    def fill(self, batch: Batch, collected: Collected, desk: Desk) -> Batch:
        """Set `past.baseline` and `past.rate`."""
        store, index_b = desk.store(self), torch.from_numpy(collected.index_b)
        found = {"baseline": store["value"][index_b], "rate": store["rate"][index_b]}
        return batch.replace(past={**batch.past, **{name: x.to(batch.dtype) for name, x in found.items()}})

    def further(self, run: RunFacts) -> str:
        """Answers besides those of the run."""
        total = self.answers * (run.questions or 0)
        return f"{run.questions} × {self.answers} = {total:,} answers before the first step"

    def words(self) -> str:
        """Describe."""
        mean = "mean reward" if self.beta == 0 else f"soft mean of their rewards (temperature {self.beta:g})"
        return (
            f"draw {self.answers} answers of the initial policy to every question, once: the {mean}, the share of "
            "right ones and one right answer are kept"
        )

    def formula(self) -> str:
        """Formula."""
        return "V* = mean_j r_j" if self.beta == 0 else f"V* = {self.beta:g}·log mean_j exp(r_j/{self.beta:g})"

    def refuse(self, run: RunFacts) -> list[str]:
        """An endless task has no pool."""
        return [f"{self.name} {ENDLESS}"] if run.questions is None else []


def _questions(desk: Desk) -> int:
    assert desk.questions is not None, "an endless task is refused before the run"
    return desk.questions


@part("curriculum")
class InitialRate(Curriculum):
    """Ask only questions whose share of right answers before training is above `above` and below `below`.

    Passes over them are shuffled anew. Needs `initial_answers` among the preludes.
    """

    above: Unit | None = None
    below: Unit | None = None

    def choose(self, count: int, desk: Desk) -> list[Ask]:
        """Take the next questions of the shuffled set."""
        taken = next_of(len(among := self.among(desk)), count, self, desk)
        return [desk.ask(int(among[i])) for i in taken]

    def among(self, desk: Desk) -> np.ndarray:
        """Return the numbers of the questions that are asked; RunError when there is none."""
        rate_n = desk.store(InitialAnswers())["rate"].numpy()
        fits_n = np.ones(len(rate_n), dtype=bool)
        if self.above is not None:
            fits_n &= rate_n > self.above
        if self.below is not None:
            fits_n &= rate_n < self.below
        if not fits_n.any():
            raise RunError(
                f"no question has an initial share of right answers {self._range()}: nothing is left to ask. Choose "
                "other bounds, more initial answers, or other questions"
            )
        return np.flatnonzero(fits_n)

    def _range(self) -> str:
        bounds = (("above", self.above), ("below", self.below))
        return " and ".join(f"{name} {bound:g}" for name, bound in bounds if bound is not None)

    def words(self) -> str:
        """Describe."""
        return f"ask only questions whose share of right answers before training is {self._range() or 'anything'}"

    def idle(self, run: RunFacts) -> list[str]:
        """All questions fit."""
        return ["initial_rate has no effect without above or below"] if self.above is self.below is None else []

    def refuse(self, run: RunFacts) -> list[str]:
        """An endless task has no pool."""
        return [f"{self.name} {ENDLESS}"] if run.questions is None else []


def next_of(size: int, count: int, part: DataPart, desk: Desk) -> list[int]:
    """Return the next `count` of `size` places in passes that `part` shuffles anew; none of none."""
    store = desk.store(part)
    taken: list[int] = []
    while size and len(taken) < count:
        if not store.get("left"):
            store["left"] = desk.rng(part).permutation(size).tolist()
        taken.append(store["left"].pop(0))
    return taken


@part("replay")
class ReferenceRows(Replay):
    """Answers of the initial policy to questions it solved join each step (D_pef of DPH-RL, arXiv:2509.07430).

    Each step takes `share` such answers for each new question (rounded), in shuffled passes, from questions whose
    initial share of right answers is at least `solved`. Their log-probs are the initial policy's. Needs
    `initial_answers` among the preludes.
    """

    share: NonNegative = 1.0
    solved: Unit = 1.0

    def mix(self, collected: Collected | None, desk: Desk) -> Collected | None:
        """Return the new rows and the initial policy's."""
        rows = self.among(desk)
        taken = next_of(len(rows), min(round(self.share * desk.prompts), len(rows)), self, desk)
        old = [unpack(rows[i], desk.task).with_source("reference") for i in taken]
        mixed = [*([] if collected is None else [collected]), *old]
        desk.note("reference_rows", len(old))
        return join(mixed) if mixed else None

    def among(self, desk: Desk) -> list[Packed]:
        """Return the stored answers to questions that were solved well enough."""
        store = desk.store(InitialAnswers())
        return [row for row in store["right"] if float(store["rate"][int(row["index_b"][0])]) >= self.solved]

    def words(self) -> str:
        """Describe."""
        solved = "always" if self.solved == 1 else f"at least {self.solved:.0%} of the time"
        return (
            f"{self.share:g} right answers of the initial policy join for each new question, from questions that it "
            f"solved {solved}"
        )

    def idle(self, run: RunFacts) -> list[str]:
        """None joins."""
        return ["reference_rows has no effect: its share is 0"] if round(self.share * run.prompts) == 0 else []

    def refuse(self, run: RunFacts) -> list[str]:
        """An endless task has no pool."""
        return [f"{self.name} {ENDLESS}"] if run.questions is None else []
