"""A policy that answers and revises its answers, against the best revision that there can be (SRPO)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.augment.papers.preferences.prefixed import TWIN
from grouprl.algorithms.augment.papers.preferences.revised import SHOWN
from grouprl.algorithms.losses import PairLoss, out_of, pairs_of
from grouprl.algorithms.objective.pair import PAIRS, Pairwise
from grouprl.algorithms.objective.pair_metrics import pair_metrics, sizes
from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.core.batch import Batch
from grouprl.core.edges import share_right
from grouprl.core.metric import Metric
from grouprl.core.numbers import Positive


@part("objective")
class SelfImproving(Pairwise):
    """(1-α)·([½ - β(u_wl - u_ll)]² + [½ - β(u_ww - u_lw)]²) + α·[1 - β(u_wl - u_lw + s_w - s_l)]² of each pair.

    s is the score of a completion after its prompt, u_ab that of completion a as a revision of b (`revised`). The first
    two terms teach to revise, the third to answer such that no revision is better (arXiv:2406.01660). The score of a
    revision that does not exist is 0.
    """

    beta: Positive = 0.1
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    score: Score = LogRatio()
    says = "the better of two completions is to win as an answer and as a revision of either"
    reads = (TWIN, SHOWN)
    metrics: ClassVar[dict[str, Metric]] = {
        "revision_margin": Metric(
            unit="nats",
            words="score of the better completion as a revision of the worse one, less that of the worse one itself",
            good="rises towards 1/(2β)",
            level="pair",
        )
    }

    @override
    def pairs(self, batch: Batch) -> Tensor:
        """Return [E,2] the better and the worse of every two completions that stand after their prompt alone."""
        index_e2 = super().pairs(batch)
        return index_e2[(batch.need(TWIN, self.name)[index_e2] >= 0).all(1)]

    def __call__(self, logp_bt: Tensor, batch: Batch) -> PairLoss:
        """Return the loss of each pair."""
        index_e2 = pairs_of(batch, self.name).index_e2
        score_b = self.score(logp_bt, batch)
        better_e, worse_e = index_e2.unbind(1)
        revised_bb = of_revisions(score_b, batch)
        ww_e, wl_e = revised_bb[better_e, better_e], revised_bb[better_e, worse_e]
        lw_e, ll_e = revised_bb[worse_e, better_e], revised_bb[worse_e, worse_e]
        gap_e = score_b[better_e] - score_b[worse_e]
        revising_e = (0.5 - self.beta * (wl_e - ll_e)).square() + (0.5 - self.beta * (ww_e - lw_e)).square()
        answering_e = (1 - self.beta * (wl_e - lw_e + gap_e)).square()
        right_e = share_right(gap_e, sizes(self.score, score_b[index_e2], logp_bt, batch, index_e2))
        metrics = {"pair_accuracy": right_e, "pair_margin": gap_e, "revision_margin": wl_e - ll_e}
        metrics |= pair_metrics(self.beta, score_b[index_e2], logp_bt, batch, index_e2, right_e)
        return PairLoss((1 - self.alpha) * revising_e + self.alpha * answering_e, metrics)

    @override
    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows of groups without a pair, and completions and revisions of what is in none."""
        index_e2 = pairs_of(batch, self.name).index_e2
        twin_b = batch.need(TWIN, self.name)
        paired_n = twin_b[index_e2].flatten()
        revises_b = (twin_b < 0) & torch.isin(-twin_b, paired_n) & torch.isin(batch.need(SHOWN, self.name), paired_n)
        return out_of(index_e2, batch) & ~revises_b

    @override
    def formula(self) -> str:
        revising = f"[½ - {self.beta:g}·(u_wl - u_ll)]² + [½ - {self.beta:g}·(u_ww - u_lw)]²"
        answering = f"[1 - {self.beta:g}·(u_wl - u_lw + s_w - s_l)]²"
        told = f"u_ab the score of a as a revision of b,  {self.score.formula()}"
        return f"{1 - self.alpha:g}·({revising}) + {self.alpha:g}·{answering},  {told}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        score = self.score.code()
        if not score or "score_2e" in score:
            return ""
        beta = repr(self.beta)
        return f"""{PAIRS}
twin_b, shown_b = keys['twin'], keys['shown']
index_2e = index_2e[:, (twin_b[index_2e] >= 0).all(0)]
{score}
better_e, worse_e = index_2e
says_bb = (twin_b < 0)[:, None] & (twin_b[:, None] == -twin_b)
shows_bb = (shown_b > 0)[:, None] & (shown_b[:, None] == twin_b)
revised_bb = says_bb.T.to(score_b.dtype) @ (shows_bb * score_b[:, None])
ww_e, wl_e = revised_bb[better_e, better_e], revised_bb[better_e, worse_e]
lw_e, ll_e = revised_bb[worse_e, better_e], revised_bb[worse_e, worse_e]
gap_e = score_b[better_e] - score_b[worse_e]
revising_e = (0.5 - {beta} * (wl_e - ll_e)).square() + (0.5 - {beta} * (ww_e - lw_e)).square()
answering_e = (1 - {beta} * (wl_e - lw_e + gap_e)).square()
loss_e = {1 - self.alpha!r} * revising_e + {self.alpha!r} * answering_e
loss_bt = pairs_to_rows(loss_e, index_2e, group_b, known_b)[:, None] * active_bt"""


def of_revisions(score_b: Tensor, batch: Batch) -> Tensor:
    """Return [B,B] the score of each row's completion as a revision of the other's; 0 where there is no such row."""
    twin_b, shown_b = batch.need(TWIN, "self_improving"), batch.need(SHOWN, "self_improving")
    says_bb = (twin_b < 0)[:, None] & (twin_b[:, None] == -twin_b)
    shows_bb = (shown_b > 0)[:, None] & (shown_b[:, None] == twin_b)
    return says_bb.T.to(score_b.dtype) @ (shows_bb * score_b[:, None])
