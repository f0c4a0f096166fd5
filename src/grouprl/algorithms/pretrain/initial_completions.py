"""Completions of the initial policy to every prompt, sampled once, and their values and rates."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from typing_extensions import override

from grouprl.algorithms.data_part import Pretraining, RunContext
from grouprl.algorithms.part import RunFacts, part
from grouprl.core.batch import Batch
from grouprl.core.numbers import Count, NonNegative
from grouprl.records.samples import ScoredSamples, subset
from grouprl.records.serialize import pack

ENDLESS = "needs a finite set of prompts. Set data.prompts to a number"


def soft_value(reward_n: np.ndarray, beta: float) -> float:
    """Return β·log mean exp(r/β) of [N] rewards; β = 0 gives their mean, and no rewards give 0 (V* of A*-PO)."""
    if not len(reward_n):
        return 0.0
    if beta == 0:
        return float(reward_n.mean())
    top = float(reward_n.max())
    return top + beta * math.log(float(np.exp((reward_n - top) / beta).mean()))


@part("pretrain")
class InitialCompletions(Pretraining):
    """Sample `completions` completions of the initial policy to each prompt, once (A*-PO arXiv:2505.20686, DPH-RL).

    Of each prompt three things are kept: `past.baseline`, the value V* = β·log mean exp(r/β) (β = 0: the mean reward)
    from now on; `past.rate`, the share of correct completions; and its first correct completion with log-probs, if
    there is one.
    """

    completions: Count = 8
    beta: NonNegative = 0.5
    prompts_per_piece: Count = 32
    fills = ("past.baseline", "past.rate")

    def count(self, context: RunContext) -> int:
        """Return the number of pieces of `prompts_per_piece` prompts."""
        return math.ceil(_examples(context) / self.prompts_per_piece)

    def piece(self, number: int, context: RunContext) -> dict[str, float]:
        """Sample the completions of the prompts of one piece, and store their values and rates."""
        first = number * self.prompts_per_piece
        indices = range(first, min(first + self.prompts_per_piece, _examples(context)))
        rows = context.sample([replace(context.request(index), completions=self.completions) for index in indices])
        rows, store = subset(rows, rows.valid_b), context.state_of(self)
        if not store:
            zeros = torch.zeros(_examples(context), dtype=torch.float64)
            store |= {"value": zeros, "rate": zeros.clone(), "right": []}
        for index in indices:
            own = rows.index_b == index
            right_n, reward_n = rows.scores.correct_b[own], rows.scores.reward_b[own]
            store["value"][index] = soft_value(reward_n, self.beta)
            store["rate"][index] = float(right_n.mean()) if len(right_n) else 0.0
            if right_n.any():
                store["right"].append(pack(subset(rows, np.flatnonzero(own)[right_n][:1])))
        requested = store["rate"][list(indices)]
        return {"initial_rate": float(requested.mean()), "initial_solved": float((requested > 0).double().mean())}

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.baseline` and `past.rate`."""
        store, index_b = context.state_of(self), torch.from_numpy(samples.index_b)
        found = {"baseline": store["value"][index_b], "rate": store["rate"][index_b]}
        return batch.replace(past={**batch.past, **{name: x.to(batch.dtype) for name, x in found.items()}})

    def extra_samples(self, run: RunFacts) -> str:
        """Say how many completions are sampled before the first step."""
        total = self.completions * (run.examples or 0)
        return f"{run.examples} × {self.completions} = {total:,} completions before the first step"

    @override
    def words(self) -> str:
        mean = "mean reward" if self.beta == 0 else f"soft mean of their rewards (temperature {self.beta:g})"
        return (
            f"sample {self.completions} completions of the initial policy to every prompt, once: the {mean}, the "
            "share of "
            "right ones and one correct completion are kept"
        )

    @override
    def formula(self) -> str:
        return "V* = mean_j r_j" if self.beta == 0 else f"V* = {self.beta:g}·log mean_j exp(r_j/{self.beta:g})"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a task whose prompts never end."""
        return [f"{self.name} {ENDLESS}"] if run.examples is None else []


def _examples(context: RunContext) -> int:
    assert context.examples is not None, "an endless task is refused before the run"
    return context.examples
