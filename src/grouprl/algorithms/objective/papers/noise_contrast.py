"""Noise contrastive alignment: each completion is noise, or the policy's as far as its reward says."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid
from typing_extensions import override

from grouprl.algorithms.losses import RowLoss, counted
from grouprl.algorithms.objective.listwise import LISTS, Listwise, log_softmax_code
from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.numbers import Positive


@part("objective")
class InfoNca(Listwise):
    """Tell which of a prompt's completions is the policy's by their scores: -Σ_i w_i·log softmax(β·s)_i over the group,
    w = softmax(A/α) (InfoNCA, arXiv:2402.05369).

    With two completions and a small α it is DPO. Only differences of scores count. Rows that do not count are in
    neither softmax.

    Raises:
        InputError: a score that exists for pairs only.
    """

    score: Score = LogRatio()
    beta: Positive = 0.1
    alpha: Positive = 1e-4
    says = (
        "tell which of a prompt's completions is the policy's by {beta:g} times their scores; each is it with a "
        "weight from its advantage over {alpha:g}"
    )

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return -Σ_j w_j·log softmax(β·s)_j of the group of each row that counts."""
        weight_b = counted(batch)
        log_f_b = levels.log_softmax(self.beta * self.score_b(logp_bt, batch), batch.group_b, weight_b)
        chance_b = self.log_target_b(batch, self.alpha).exp()
        return RowLoss(-levels.total(chance_b * log_f_b, batch.group_b, weight_b) * weight_b)

    @override
    def formula(self) -> str:
        softmaxes = f"f = softmax({self.beta:g}·s),  w = softmax(A/{self.alpha:g})"
        return f"-Σ_i w_i·log f_i,  {softmaxes} over the group,  {self.score.formula()}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if not (score := self.score.code()):
            return ""
        return f"""{LISTS}
{score}
score_b = {self.beta!r} * score_b
target_b = completion_value(adv_bt, active_bt) / {self.alpha!r}
log_f_b = {log_softmax_code("score_b")}
log_w_b = {log_softmax_code("target_b")}
loss_b = -(peer_bb * (log_w_b.exp() * log_f_b)).sum(1)
loss_bt = (loss_b * known_b)[:, None] * active_bt"""


@part("objective")
class ListNca(Listwise):
    """Tell whether each completion is the policy's or noise: -Σ_i [w_i·log σ(β·s_i) + 1/K·log σ(-β·s_i)] over a group
    of K, w = softmax(A/α) (NCA, arXiv:2402.05369).

    With two completions and a small α it is the link `nca_pair`. Each score has an optimum of its own, log(K·w_i)/β.
    Rows that do not count are in no list.

    Raises:
        InputError: a score that exists for pairs only.
    """

    score: Score = LogRatio()
    beta: Positive = 0.1
    alpha: Positive = 1e-4
    says = (
        "tell each of a prompt's completions from noise by {beta:g} times its score; it is the policy's with a weight "
        "from its advantage over {alpha:g}, noise as much as any"
    )

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return -Σ_j [w_j·log σ(β·s_j) + 1/K·log σ(-β·s_j)] of the group of each row that counts."""
        weight_b, score_b = counted(batch), self.beta * self.score_b(logp_bt, batch)
        chance_b = self.log_target_b(batch, self.alpha).exp()
        policy_b = levels.total(chance_b * logsigmoid(score_b), batch.group_b, weight_b)
        noise_b = levels.mean(logsigmoid(-score_b), batch.group_b, weight_b)
        return RowLoss(-(policy_b + noise_b) * weight_b)

    @override
    def formula(self) -> str:
        terms = f"w_i·log σ({self.beta:g}·s_i) + 1/K·log σ(-{self.beta:g}·s_i)"
        return f"-Σ_i [{terms}],  w = softmax(A/{self.alpha:g}) over the group's K,  {self.score.formula()}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        if not (score := self.score.code()):
            return ""
        of_z = "torch.nn.functional.logsigmoid"
        return f"""{LISTS}
{score}
score_b = {self.beta!r} * score_b
target_b = completion_value(adv_bt, active_bt) / {self.alpha!r}
log_w_b = {log_softmax_code("target_b")}
policy_b = (peer_bb * (log_w_b.exp() * {of_z}(score_b))).sum(1)
noise_b = (peer_bb * {of_z}(-score_b)).sum(1) / peer_bb.sum(1)
loss_bt = (-(policy_b + noise_b) * known_b)[:, None] * active_bt"""
