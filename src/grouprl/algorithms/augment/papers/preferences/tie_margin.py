"""The parameter of ties, learned by descent on the likelihood of wins and ties."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from grouprl.algorithms.data_part import Augmentation, RunContext
from grouprl.algorithms.link.papers.ties import Davidson, TieLink
from grouprl.algorithms.margin.papers.ties import LEARNED
from grouprl.algorithms.objective.regression import same_group
from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive
from grouprl.records.samples import ScoredSamples


@part("augment")
class TieMargin(Augmentation):
    """Give `past.tie_margin`: the parameter m of a link with ties, learned beside the policy.

    Before each update log m takes one step of size `rate` against the slope of the mean loss of the step's pairs, under
    the policy as it is then (arXiv:2409.17431 fixes m). It begins at `start`, and is remembered. The rows are
    unchanged.
    """

    link: TieLink = Davidson()
    score: Score = LogRatio()
    start: Positive = 0.5
    rate: Positive = 0.1
    reads_old = True
    says = "learn how likely ties are, at rate {rate:g} from {start:g}"
    equation = "log m ← log m - {rate:g}·∂ mean loss/∂ log m"
    fills = (LEARNED,)

    def __call__(self, samples: ScoredSamples, context: RunContext) -> ScoredSamples:
        """Return the rows unchanged."""
        return samples

    def fill(self, batch: Batch, samples: ScoredSamples, context: RunContext) -> Batch:
        """Set `past.tie_margin` to the parameter after one step on the pairs of this rollout."""
        memory = context.state_of(self)
        log = float(memory.get("log", math.log(self.start))) - self.rate * self.slope(batch, memory)
        memory["log"] = log
        margin_b = torch.full_like(batch.reward_b, math.exp(log))
        return batch.replace(past={**batch.past, LEARNED.partition(".")[2]: margin_b})

    def slope(self, batch: Batch, memory: dict[str, float]) -> float:
        """Return the derivative of the mean loss of the pairs in log m; 0 without pairs."""
        score_b = self.score(batch.need("old_bt", self.name), batch).double()
        better_bb = same_group(batch) & (batch.total_reward_b[:, None] > batch.total_reward_b)
        tied_bb = same_group(batch) & (batch.total_reward_b[:, None] == batch.total_reward_b)
        gap_bb = score_b[:, None] - score_b
        won_e, tied_e = gap_bb[better_bb], gap_bb[tied_bb & torch.ones_like(tied_bb).triu(1)]
        if not len(won_e) + len(tied_e):
            return 0.0
        with torch.enable_grad():
            log = torch.tensor(float(memory.get("log", math.log(self.start))), dtype=torch.float64, requires_grad=True)
            total = self._of(won_e, tied_e, log.exp())
            (found,) = torch.autograd.grad(total / (len(won_e) + len(tied_e)), log)
        return float(found)

    def _of(self, won_e: Tensor, tied_e: Tensor, margin: Tensor) -> Tensor:
        """Return the summed loss of decided and tied pairs."""
        won = self.link(won_e, margin.expand_as(won_e)).sum()
        return won + self.link.of_ties(tied_e, margin.expand_as(tied_e)).sum()
