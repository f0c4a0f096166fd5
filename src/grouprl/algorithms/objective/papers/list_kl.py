"""The scores of a prompt's completions as one choice among them, matched to the choice that their rewards make."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import RowLoss, counted
from grouprl.algorithms.objective.listwise import LISTS, Listwise, log_softmax_code
from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("objective")
class ListKl(Listwise):
    """The reverse KL between two softmaxes over a group, of scores and of advantages (EXO-rw, arXiv:2402.00856).

    Σ_i f_i·log(f_i/g_i), f = softmax(β_π·s) and g = softmax(A/β_r); its gradient flows through f. It is 0 where the
    scores differ as the advantages do, divided by β_π·β_r. Rows that do not count are in neither softmax.

    Raises:
        InputError: a score that exists for pairs only.
    """

    score: Score = LogRatio()
    beta_pi: Positive = 1.0
    beta_r: Positive = 1.0
    says = (
        "choose among a prompt's completions by {beta_pi:g} times their scores as by their advantages over {beta_r:g}"
    )

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return Σ_j f_j·log(f_j/g_j) of the group of each row that counts."""
        weight_b = counted(batch)
        log_f_b = levels.log_softmax(self.beta_pi * self.score_b(logp_bt, batch), batch.group_b, weight_b)
        log_g_b = self.log_target_b(batch, self.beta_r)
        kl_b = levels.total(log_f_b.exp() * (log_f_b - log_g_b), batch.group_b, weight_b)
        return RowLoss(kl_b * weight_b)

    @override
    def formula(self) -> str:
        softmaxes = f"f = softmax({self.beta_pi:g}·s),  g = softmax(A/{self.beta_r:g})"
        return f"Σ_i f_i·log(f_i/g_i),  {softmaxes} over the group,  {self.score.formula()}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if not (score := self.score.code()):
            return ""
        return f"""{LISTS}
{score}
score_b = {self.beta_pi!r} * score_b
target_b = completion_value(adv_bt, active_bt) / {self.beta_r!r}
log_f_b = {log_softmax_code("score_b")}
log_g_b = {log_softmax_code("target_b")}
kl_b = (peer_bb * (log_f_b.exp() * (log_f_b - log_g_b))).sum(1)
loss_bt = (kl_b * known_b)[:, None] * active_bt"""
