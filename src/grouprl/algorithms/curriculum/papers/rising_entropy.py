"""Prompts whose next token is sure first, those whose next token is open later (RMT)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from grouprl.algorithms.curriculum.papers.curriculum import Chooser, pool_size
from grouprl.algorithms.data_part import RunContext
from grouprl.algorithms.part import part
from grouprl.core.numbers import Positive
from grouprl.core.outputs import ENTROPY
from grouprl.records.tokens import Tokens


@part("curriculum")
class RisingEntropy(Chooser):
    """Sample prompts by the entropy of the next token, low entropies first and high ones at the end (RMT).

    Entropies are those of the policy before the first step. With z the rank of a prompt, from 0 to 1, and u the share
    of the run that is over, its weight is exp(sharp·(2u - 1)·z): all weigh the same half-way.

    The idea is Reinforcement Mid-Training's; the form of the weights and `sharp` are ours.
    """

    needs_text = True
    async_safe: ClassVar[bool] = True

    sharp: Positive = 4.0
    says = "prompts by the entropy of the next token before training, from low to high over the run"
    equation = "P(prompt) ∝ exp({sharp:g}·(2u - 1)·z),  z rank of its entropy"

    def pick(self, count: int, rng: np.random.Generator, chosen: Sequence[int], context: RunContext) -> list[int]:
        """Sample by the weights of the step, those of `chosen` only if there are too few others."""
        weight_n = weights(self._ranks(context), context.step / max(1, context.steps - 1), self.sharp)
        left = np.setdiff1d(np.arange(len(weight_n)), np.array(chosen, dtype=int))
        among = left if len(left) >= count else np.arange(len(weight_n))
        share_n = weight_n[among] / weight_n[among].sum()
        return [int(i) for i in rng.choice(among, size=count, replace=count > len(among), p=share_n)]

    def _ranks(self, context: RunContext) -> np.ndarray:
        """Return [N] rank of each prompt's entropy, from 0 to 1, found once."""
        store = context.state_of(self)
        if "rank" not in store:
            prompts = [context.task.example("train", i).prompt for i in range(pool_size(context))]
            policy = context.text.policy
            tokens = Tokens.of(policy.encode_prompts(prompts), [[policy.eos_ids[0]]] * len(prompts))
            entropy_n = policy.evaluate(tokens, (ENTROPY,))[ENTROPY][:, 0].cpu().numpy()
            store["rank"] = ranks(entropy_n).tolist()
        return np.array(store["rank"])


def ranks(value_n: np.ndarray) -> np.ndarray:
    """Return [N] ranks from 0 (smallest) to 1, in the order of the numbers where values are equal."""
    order = np.argsort(np.argsort(value_n, kind="stable"), kind="stable")
    return np.asarray(order / max(1, len(value_n) - 1))


def weights(rank_n: np.ndarray, over: float, sharp: float) -> np.ndarray:
    """Return [N] weights when the share `over` of the run is over."""
    return np.asarray(np.exp(sharp * (2 * over - 1) * rank_n))
