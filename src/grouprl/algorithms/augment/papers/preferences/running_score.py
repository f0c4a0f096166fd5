"""The mean score of all completions of a run so far: BCO's threshold between liked and disliked ones."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.part import part
from grouprl.algorithms.score.papers.baselines import RUNNING
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.core.batch import Batch
from grouprl.records.samples import ScoredSamples


@part("augment")
class RunningScore(Augmentation):
    """Give `past.score_mean`: the mean score of every completion that the run has trained on, this step's included.

    BCO (arXiv:2404.04656): each completion counts once each time it is seen, with the score that the policy gave it
    before the update. The rows are unchanged.
    """

    score: Score = LogRatio()
    reads_old = True
    says = "keep the mean score of all completions so far"
    equation = "δ = mean of s(y) over all completions so far"
    fills = (RUNNING,)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows unchanged."""
        return samples

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.score_mean`, and remember the completions of this step."""
        memory = context.state_of(self)
        count, mean = after(float(memory.get("count", 0.0)), float(memory.get("mean", 0.0)), self._scores(batch))
        memory |= {"count": count, "mean": mean}
        mean_b = torch.full_like(batch.reward_b, mean)
        return batch.replace(past={**batch.past, RUNNING.partition(".")[2]: mean_b})

    def _scores(self, batch: Batch) -> Tensor:
        """Return [N] scores of the completions under the policy before the update."""
        score_b = self.score(batch.need("old_bt", self.name), batch)
        return score_b[batch.mask_bt.any(1)]


def after(count: float, mean: float, score_n: Tensor) -> tuple[float, float]:
    """Return the number and the mean of the scores so far once those of `score_n` ([N]) have joined them."""
    added = float(score_n.sum(dtype=torch.float64))
    total = count + len(score_n)
    return total, (count * mean + added) / total if total else 0.0
