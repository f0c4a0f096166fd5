"""The scores of a prompt's completions as one choice among them, matched to the choice that their rewards make."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import RowLoss, counted
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.regression import completion_value
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.algorithms.stage_checks import call, check_shape
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.core.numbers import Positive


@part("objective")
class ListKl(Objective):
    """The reverse KL between two softmaxes over a group, of scores and of advantages (EXO-rw, arXiv:2402.00856).

    Σ_i f_i·log(f_i/g_i), f = softmax(β_π·s) and g = softmax(A/β_r); its gradient flows through f. It is 0 where the
    scores differ as the advantages do, divided by β_π·β_r. Rows that do not count are in neither softmax.

    Raises:
        InputError: a score that exists for pairs only.
    """

    score: Score = LogRatio()
    beta_pi: Positive = 1.0
    beta_r: Positive = 1.0
    couples: ClassVar[str] = "group"
    says = (
        "choose among a prompt's completions by {beta_pi:g} times their scores as by their advantages over {beta_r:g}"
    )

    def __post_init__(self) -> None:
        if type(self.score).__call__ is Score.__call__:
            raise InputError(
                f"list_kl has the score '{self.score.name}'",
                "it needs a score of each completion",
                "Use log_ratio or log_prob",
            )

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return Σ_j f_j·log(f_j/g_j) of the group of each row that counts."""
        score_b = call(self.score, self.score, logp_bt, batch)
        check_shape(self.score, score_b, batch.mask_bt, "scores", (len(batch.group_b),), "row")
        target_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        weight_b = counted(batch)
        log_f_b = levels.log_softmax(self.beta_pi * score_b, batch.group_b, weight_b)
        log_g_b = levels.log_softmax(target_b / self.beta_r, batch.group_b, weight_b)
        kl_b = levels.total(log_f_b.exp() * (log_f_b - log_g_b), batch.group_b, weight_b)
        return RowLoss(kl_b * weight_b)

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that are alone in their group, or do not count in it."""
        weight_b = counted(batch)
        return (levels.count(batch.group_b, weight_b, batch.dtype) <= 1) | (weight_b == 0)

    @override
    def formula(self) -> str:
        softmaxes = f"f = softmax({self.beta_pi:g}·s),  g = softmax(A/{self.beta_r:g})"
        return f"Σ_i f_i·log(f_i/g_i),  {softmaxes} over the group,  {self.score.formula()}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if not (score := self.score.code()):
            return ""
        return f"""known_b = counts_b & active_bt.any(1)
peer_bb = (same_bb & known_b) | torch.eye(len(group_b), dtype=torch.bool)
{score}
score_b = {self.beta_pi!r} * score_b
target_b = completion_value(adv_bt, active_bt) / {self.beta_r!r}
log_f_b = score_b - torch.where(peer_bb, score_b, -torch.inf).logsumexp(1)
log_g_b = target_b - torch.where(peer_bb, target_b, -torch.inf).logsumexp(1)
kl_b = (peer_bb * (log_f_b.exp() * (log_f_b - log_g_b))).sum(1)
loss_bt = (kl_b * known_b)[:, None] * active_bt"""

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, among which there is no choice."""
        lone = "list_kl compares completions of one prompt, but batch.group_size is 1"
        return [f"{lone}. Use batch.group_size of 2 or more"] if run.group_size == 1 else []
