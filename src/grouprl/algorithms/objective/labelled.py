"""Labels: a completion alone, liked or not, should score above or below a threshold."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.link.link import Link, Logistic, slope_of
from grouprl.algorithms.losses import RowLoss, counted
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.pair_metrics import label_metrics, with_labels
from grouprl.algorithms.objective.regression import completion_value
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.score import LogRatio, Score, over_tokens
from grouprl.algorithms.score.shifted import Shifted
from grouprl.core.batch import Batch
from grouprl.core.edges import share_right
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative


@part("objective")
class Labelled(Objective):
    """link(s(y)) of a desirable completion and link(-s(y)) of an undesirable one, each with its weight.

    Desirable is an advantage above `threshold`. Score and link are those of pairs: the completion's score takes the
    place of a difference. `sequence_mean` averages completions.

    Raises:
        InputError: a score that exists for pairs only, or a link that judges both scores of a pair.
    """

    score: Score = LogRatio()
    link: Link = Logistic()
    desirable: NonNegative = 1.0
    undesirable: NonNegative = 1.0
    threshold: float = 0.5
    says = "let completions with an advantage above {threshold:g} score high, and the others low, one by one"

    def __post_init__(self) -> None:
        if type(self.score).__call__ is Score.__call__:
            raise InputError(
                f"labelled has the score '{self.score.name}'",
                "it exists for pairs only, and a label belongs to a single completion",
                "Use log_ratio, above_mismatched or above_running_mean",
            )
        if not self.link.margins:
            raise InputError(
                f"labelled has the link '{self.link.name}'",
                "it judges both scores of a pair, and a label belongs to a single completion",
                "Use a link of the difference, such as saturating or logistic",
            )

    def __call__(self, logp_bt: Tensor, batch: Batch) -> RowLoss:
        """Return weight · link(±s(y)) of each completion."""
        adv_bt = batch.need("advantage_bt", self.name)
        liked_b = completion_value(adv_bt, batch.active_bt) > self.threshold
        score_b = self.score(logp_bt, batch)
        gap_b, zero_b = torch.where(liked_b, score_b, -score_b), torch.zeros_like(score_b)
        weight_b = torch.where(liked_b, zero_b + self.desirable, zero_b + self.undesirable)
        size_b = over_tokens(logp_bt, batch, "sum") if self.score.log_probs else score_b
        right_b = share_right(gap_b, size_b.abs())
        metrics = {"label_accuracy": right_b, **self._trl_metrics(score_b, logp_bt, liked_b, batch)}
        if isinstance(self.score, Shifted):
            metrics["score_baseline"] = self.score.baseline(logp_bt.detach(), batch)
            metrics |= dict.fromkeys(self.score.aliases, metrics["score_baseline"])
        return RowLoss(weight_b * self.link.of_scores(gap_b, zero_b, zero_b), metrics)

    def _trl_metrics(self, score_b: Tensor, logp_bt: Tensor, liked_b: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return TRL's metrics of labels, whose rewards are β times the scores before any baseline."""
        if not self.score.log_probs:
            return {}
        plain_b = self.score.of(logp_bt, batch) if isinstance(self.score, Shifted) else score_b
        return label_metrics(slope_of(self.link) * plain_b.detach(), logp_bt.detach(), liked_b, batch)

    @override
    def compute_loss_weights(self, batch: Batch) -> Batch:
        """Return an optimiser step with the numbers of its liked and of its disliked completions."""
        value_b = completion_value(batch.need("advantage_bt", self.name), batch.active_bt)
        return with_labels(batch, value_b > self.threshold)

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that do not count, or have no token in the loss."""
        return counted(batch) == 0

    @override
    def formula(self) -> str:
        weights = f"{self.desirable:g}·ℓ(s) if A > {self.threshold:g}, else {self.undesirable:g}·ℓ(-s)"
        return f"{weights},  ℓ(Δs) = {self.link.formula()} at m = 0,  {self.score.formula()}"

    def idle(self, run: RunFacts) -> list[str]:
        """Say that a class of completions weighs nothing."""
        named = (("desirable", self.desirable), ("undesirable", self.undesirable))
        return [f"{name} completions have no effect: labelled.{name} is 0" for name, weight in named if weight == 0]

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        score, link = self.score.code(), self.link.code()
        if not score or not link:
            return ""
        return f"""{score}
liked_b = completion_value(adv_bt, active_bt) > {self.threshold!r}
gap_e = torch.where(liked_b, score_b, -score_b)
better_e, worse_e, margin_e = gap_e, torch.zeros_like(gap_e), torch.zeros_like(gap_e)
{link}
loss_b = torch.where(liked_b, {self.desirable!r} * loss_e, {self.undesirable!r} * loss_e)
loss_bt = loss_b[:, None] * active_bt"""
