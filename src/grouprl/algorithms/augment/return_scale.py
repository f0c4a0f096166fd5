"""The running deviation of discounted returns, by which rewards of control are scaled."""

from __future__ import annotations

import numpy as np
import torch

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import part
from grouprl.core.batch import SOURCES, Batch
from grouprl.core.numbers import Share
from grouprl.records.samples import ScoredSamples

EPSILON = 1e-8


@part("augment")
class ReturnScale(Augmentation):
    """Give `past.return_std`: the deviation of discounted sums of rewards over everything sampled so far.

    R_t = γ·R_{t-1} + r_t runs forward along the rewards of a row's turns, from 0, as in Stable-Baselines3's
    VecNormalize; the variance is over all of them, those of this step included. The rows stay as they are.
    *Differs from VecNormalize*: the sum begins anew with each row, also if its episode continues from an earlier step.
    """

    gamma: Share = 0.99
    says = "keep the deviation of discounted returns (discount {gamma:g}) over all that was sampled"
    equation = "σ² = Var over all t of R_t,  R_t = {gamma:g}·R_{{t-1}} + r_t"
    fills = ("past.return_std",)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows unchanged."""
        return samples

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Add this step's returns to the statistics, and set `past.return_std`."""
        store = context.state_of(self)
        sampled_b = samples.source_b == SOURCES["sampled"]
        if "turn_reward_bs" in samples.extras and sampled_b.any():
            valid_bs = samples.extras["turn_bt"].max(1)[:, None] >= np.arange(samples.extras["turn_reward_bs"].shape[1])
            return_bs = discounted_sums(samples.extras["turn_reward_bs"], self.gamma)
            _add(store, return_bs[valid_bs & sampled_b[:, None]])
        std = (store["square"] / store["count"] + EPSILON) ** 0.5 if store.get("count") else 1.0
        std_b = torch.full_like(batch.reward_b, std)
        return batch.replace(past={**batch.past, "return_std": std_b})


def discounted_sums(reward_bs: np.ndarray, gamma: float) -> np.ndarray:
    """Return R [B,S] with R_s = gamma·R_{s-1} + r_s."""
    found_bs, carry_b = np.zeros_like(reward_bs), np.zeros(len(reward_bs))
    for s in range(reward_bs.shape[1]):
        carry_b = gamma * carry_b + reward_bs[:, s]
        found_bs[:, s] = carry_b
    return found_bs


def _add(store: dict[str, float], value_n: np.ndarray) -> None:
    """Merge N numbers into the count, the mean and the sum of squared deviations (Chan et al. 1979)."""
    own, more = store.get("count", 0.0), float(len(value_n))
    if more == 0:
        return
    gap = float(value_n.mean()) - store.get("mean", 0.0)
    square = store.get("square", 0.0) + float(((value_n - value_n.mean()) ** 2).sum())
    store["square"] = square + gap**2 * own * more / (own + more)
    store["mean"] = store.get("mean", 0.0) + gap * more / (own + more)
    store["count"] = own + more
