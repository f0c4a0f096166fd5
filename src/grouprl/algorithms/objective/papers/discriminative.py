"""Losses that classify right and wrong completions: implicit negatives (NFT), PACS, DisCO."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.losses import RowLoss, TokenLoss
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.ratio import log_ratio, ratio_code, within
from grouprl.algorithms.objective.regression import completion_value, counted, log_distance
from grouprl.algorithms.part import RunFacts, part
from grouprl.core import levels
from grouprl.core.batch import Batch
from grouprl.core.edges import without_rounding
from grouprl.core.numbers import NonNegative, Positive


def completion_sum(value_bt: Tensor, active_bt: Tensor) -> Tensor:
    """Return [B] sum over each row's active tokens."""
    return torch.where(active_bt, value_bt, 0).sum(1)


@part("objective")
class ImplicitNegative(Objective):
    """Likelihood of correct completions, and of wrong ones under the policy that remains without the right ones (NFT).

    With odds o = p/(1-p) (-A of a wrong completion): -A·log ρ_t where A > 0; -negative·log max(1 + o(1-ρ_t), floor)
    where A < 0, the maximum with a straight-through gradient; log ρ at most `limit` (arXiv:2505.18116).
    """

    negative: NonNegative = 1.0
    floor: Positive = 1.0
    limit: Positive = 10.0
    reads = ("old_bt",)
    plain = (
        "log_bt = torch.where(active_bt, logp_bt - old_bt, 0).clamp(max={limit!r})\n"
        "left_bt = 1 + adv_bt.clamp(max=0) * log_bt.expm1()  # what is left to wrong completions\n"
        "left_bt = left_bt + (left_bt.clamp(min={floor!r}) - left_bt).detach()\n"
        "loss_bt = torch.where(adv_bt > 0, -adv_bt * log_bt, -{negative!r} * left_bt.log())\n"
        "loss_bt = torch.where(adv_bt != 0, loss_bt, 0)"
    )
    idle_at = ("negative", 0, "wrong completions have no effect: implicit_negative.negative is 0")

    def __call__(self, logp_bt: Tensor, batch: Batch) -> TokenLoss:
        """Return -A·log ρ_t where right, -negative·log max(1 + o(1-ρ_t), floor) where wrong."""
        adv_bt = batch.need("advantage_bt", self.name)
        log_bt = within(log_distance(logp_bt, batch, "old"), high=self.limit)
        left_bt = 1 + adv_bt.clamp(max=0) * log_bt.expm1()
        held_bt = left_bt + (left_bt.clamp(min=self.floor) - left_bt).detach()
        loss_bt = torch.where(adv_bt > 0, -adv_bt * log_bt, -self.negative * held_bt.log())
        below_bt = without_rounding(left_bt.detach() - self.floor, logp_bt.detach().abs()) < 0  # at ρ = 1 it is 1
        floored_bt = (below_bt & (adv_bt < 0)).to(adv_bt.dtype)
        return TokenLoss(torch.where(adv_bt != 0, loss_bt, 0), {"capped_fraction": floored_bt})

    @override
    def words(self) -> str:
        share = "that" if self.negative == 1 else f"{self.negative:g} times that"
        return (
            f"raise the likelihood of correct completions, and {share} of wrong ones under the policy that is "
            "left when the "
            f"right ones are taken out; its ratio (1 - pρ)/(1 - p) is held at {self.floor:g} or above"
        )

    @override
    def formula(self) -> str:
        wrong = f"-{self.negative:g}·log max((1 - p·ρ_t)/(1 - p), {self.floor:g})"
        return f"-log ρ_t if right, {wrong} if wrong,  ρ_t = π(y_t)/π_old(y_t)"


@part("objective")
class Classify(Objective):
    """PACS: cross-entropy of correctness on an implicit score: β·log(π/π_old) of the completion compared with the
    others.

    ψ_i = r_i - mean_{j≠i} r_j with r_i = β Σ_t log(π/π_old), differentiated through all completions of the group; loss
    |A_i|·BCE(sigmoid ψ_i, A_i > 0) (arXiv:2509.02522). `center="none"` takes ψ_i = r_i.
    """

    beta: Positive = 1.0
    center: Literal["leave_one_out", "none"] = "leave_one_out"
    couples: ClassVar[str] = "group"
    reads = ("old_bt",)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return |A_i|·softplus(-sign(A_i)·ψ_i) of completion i."""
        adv_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        reward_b = self.beta * log_distance(logp_bt, batch, "old").sum(1)
        if self.center == "leave_one_out":
            reward_b = reward_b - levels.leave_one_out_mean(reward_b, batch.group_b, counted(batch))
        loss_b = adv_b.abs() * torch.nn.functional.softplus(-adv_b.sign() * reward_b)
        return RowLoss(loss_b)

    @override
    def code(self) -> str:
        lines = ["label_b = adv_bt.sum(1) / active_bt.sum(1).clamp(min=1)"]
        lines.append(f"score_b = {self.beta!r} * torch.where(active_bt, logp_bt - old_bt, 0).sum(1)")
        if self.center == "leave_one_out":
            lines.append("other_bb = same_bb & active_bt.any(1) & ~torch.eye(len(group_b), dtype=torch.bool)")
            lines.append("score_b = score_b - mean(score_b, other_bb)")
        lines.append("loss_b = label_b.abs() * torch.nn.functional.softplus(-label_b.sign() * score_b)")
        return "\n".join([*lines, "loss_bt = loss_b[:, None] * active_bt"])

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows of groups without any label; the others are differentiated through each other."""
        live_b = (batch.need("advantage_bt", self.name) != 0).any(1).to(batch.dtype)
        return (levels.total(live_b, batch.group_b) if self.center == "leave_one_out" else live_b) == 0

    @override
    def words(self) -> str:
        among = "" if self.center == "none" else " minus the mean of the other completions'"
        return f"predict whether a completion is right from {self.beta:g} times its log-ratio{among}, by cross-entropy"

    @override
    def formula(self) -> str:
        among = "" if self.center == "none" else " - mean_{j≠i} r_j"
        return f"|A_i|·BCE(ψ_i, [A_i>0]),  ψ_i = r_i{among},  r_i = {self.beta:g}·log(π/π_old)(y_i)"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which have no others to compare with."""
        if run.group_size == 1 and self.center == "leave_one_out":
            return [
                "classify compares each completion with the others of its group, but batch.group_size is 1. Use "
                "batch.group_size of 2 or more"
            ]
        return []


@part("objective")
class Separate(Objective):
    """DisCO: raise the scores of correct completions, lower those of wrong ones, hard wrong ones most
    (arXiv:2505.12366).

    Score: mean token log-prob, or mean token ratio to the old policy. Correct completions: -A_i s_i. Wrong ones: their
    mean score, or with `tau` the soft maximum τ·log mean_neg exp(s/τ), whose gradient weighs by softmax(s/τ).
    """

    score: Literal["log_likelihood", "ratio"] = "log_likelihood"
    tau: Positive | None = 10.0
    couples: ClassVar[str] = "group"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return -A_i s_i, or |A_i|·τ log mean_neg exp(s/τ) for a wrong completion."""
        adv_b, active_bt = completion_value(batch.need("advantage_bt", self.name), batch.active_bt), batch.active_bt
        value_bt = logp_bt if self.score == "log_likelihood" else log_ratio(logp_bt, batch).exp()
        score_b = completion_sum(value_bt, active_bt) / active_bt.sum(1).clamp(min=1)
        if self.tau is not None:
            score_b = torch.where(adv_b < 0, self._soft_maximum(score_b, adv_b, batch.group_b), score_b)
        return RowLoss(-adv_b * score_b)

    @override
    def code(self) -> str:
        lines = [] if self.score == "log_likelihood" else ratio_code("token", "old")
        value = "logp_bt" if self.score == "log_likelihood" else "ratio_bt"
        lines += [
            "label_b = adv_bt.sum(1) / active_bt.sum(1).clamp(min=1)",
            f"score_b = torch.where(active_bt, {value}, 0).sum(1) / active_bt.sum(1).clamp(min=1)",
        ]
        if self.tau is not None:
            lines += [
                "wrong_bb = (group_b[:, None] == group_b) & (label_b < 0)",
                "top_b = torch.where(wrong_bb, score_b.detach(), -torch.inf).amax(1)",
                f"near_bb = torch.where(wrong_bb, (score_b - top_b[:, None]) / {self.tau!r}, -torch.inf).exp()",
                "near_b = near_bb.sum(1) / wrong_bb.sum(1).clamp(min=1)",
                f"hardest_b = top_b + {self.tau!r} * torch.where(label_b < 0, near_b, 1).log()",
                "score_b = torch.where(label_b < 0, hardest_b, score_b)",
            ]
        return "\n".join([*lines, "loss_bt = -(label_b * score_b)[:, None] * active_bt"])

    def _soft_maximum(self, score_b: Tensor, adv_b: Tensor, id_b: Tensor) -> Tensor:
        """Return [B] τ·log of the mean of exp(s/τ) over the wrong completions of each group; finite for groups without
        any.
        """
        assert self.tau is not None
        wrong_b = (adv_b < 0).to(score_b.dtype)
        top_b = levels.extreme(score_b.detach(), id_b, wrong_b, largest=True)
        scaled_b = torch.where(wrong_b > 0, (score_b - top_b) / self.tau, 0).exp()
        mean_b = levels.mean(scaled_b, id_b, wrong_b)
        return top_b + self.tau * torch.where(mean_b > 0, mean_b, 1).log()

    @override
    def needs(self) -> tuple[str, ...]:
        return ("old_bt",) if self.score == "ratio" else ()

    @override
    def words(self) -> str:
        score = "mean log-prob" if self.score == "log_likelihood" else "mean ratio to the old policy"
        wrong = "lower that of wrong ones"
        if self.tau is not None:
            wrong = f"lower the soft maximum (temperature {self.tau:g}) of the wrong ones', the most likely first"
        return f"raise the {score} of correct completions, {wrong}"

    @override
    def formula(self) -> str:
        score = "1/|y| Σ_t log π(y_t)" if self.score == "log_likelihood" else "1/|y| Σ_t π(y_t)/π_old(y_t)"
        if self.tau is None:
            return f"-A_i·s_i,  s = {score}"
        return f"-A_i·s_i if right, |A_i|·{self.tau:g}·log mean_neg exp(s/{self.tau:g}) if wrong,  s = {score}"
