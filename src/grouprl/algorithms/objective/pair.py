"""Preferences: the better of every two completions of a prompt should score higher."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.link.link import Link, Logistic, slope_of
from grouprl.algorithms.losses import PairLoss, ordered_pairs, out_of, pairs_of
from grouprl.algorithms.margin.margin import Constant, Margin
from grouprl.algorithms.objective.objective import Objective
from grouprl.algorithms.objective.pair_metrics import pair_metrics, sizes
from grouprl.algorithms.objective.regression import completion_value
from grouprl.algorithms.pair_weight.pair_weight import Even, PairWeight
from grouprl.algorithms.pairing.pairing import AllPairs, Pairing
from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.score import LogRatio, Score, pairs_code
from grouprl.algorithms.stage_checks import chosen_pairs, pair_values
from grouprl.core.batch import Batch
from grouprl.core.edges import share_right
from grouprl.core.errors import InputError
from grouprl.core.numbers import NonNegative

PAIRS = """known_b = counts_b & active_bt.any(1)
value_b = completion_value(adv_bt, active_bt)
better_bb = same_bb & known_b[:, None] & known_b & (value_b[:, None] > value_b)
index_2e = better_bb.nonzero().T"""
"""Lines of plain torch that find the pairs."""


class Pairwise(Objective):
    """Base: a loss of each pair of a prompt's completions with different advantages."""

    kind: ClassVar[str] = "objective"
    couples: ClassVar[str] = "group"

    def __call__(self, logp_bt: Tensor, batch: Batch) -> PairLoss:
        """Return the loss of each pair, in the order of `batch.edges['pairs']`."""
        raise NotImplementedError

    def pairs(self, batch: Batch) -> Tensor:
        """Return [E,2] the better and the worse completion of every two of a prompt, by their advantages."""
        return ordered_pairs(completion_value(batch.need("advantage_bt", self.name), batch.active_bt), batch)

    def zero_rows(self, batch: Batch) -> Tensor:
        """Return [B] bool: rows that are in no pair."""
        return out_of(pairs_of(batch, self.name).index_e2, batch)

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, which have no pairs."""
        lone = f"{self.name} compares completions of one prompt, but batch.group_size is 1"
        return [f"{lone}. Use batch.group_size of 2 or more"] if run.group_size == 1 else []


@part("objective")
class Pair(Pairwise):
    """A loss of each pair of a prompt's completions with different advantages: link(s(better), s(worse), margin).

    Score, link, margin, weight and the choice of pairs are parts of their own. At the defaults it is DPO
    (arXiv:2305.18290); link `squared` makes it IPO, `hinge` SLiC, score `log_prob` with a constant margin SimPO.
    `sequence_mean` averages pairs within a group, and groups by their size.

    Raises:
        InputError: a margin beside a link that judges each score by itself, where it would have no effect.
    """

    score: Score = LogRatio()
    link: Link = Logistic()
    margin: Margin = Constant()
    pair_weight: PairWeight = Even()
    pairing: Pairing = AllPairs()
    says = "of every two completions of a prompt let the one with the larger advantage score higher"

    def __post_init__(self) -> None:
        if not self.link.margins and self.margin != Constant():
            raise InputError(
                f"pair has the margin '{self.margin.name}' beside the link '{self.link.name}'",
                "this link judges each score by itself, so that no margin acts",
                "Leave the margin out, or use a link of the difference: grouprl parts --kind link",
            )

    @override
    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse groups of one completion, unless their partners are sampled in addition."""
        return [] if self.pairing.adds else super().refuse(run)

    @override
    def pairs(self, batch: Batch) -> Tensor:
        """Return [E,2] the pairs that are compared, the better completion first."""
        index_e2 = super().pairs(batch)
        return index_e2[chosen_pairs(self.pairing, batch, index_e2)]

    def __call__(self, logp_bt: Tensor, batch: Batch) -> PairLoss:
        """Return weight · link(s(better), s(worse), margin) of each pair."""
        index_e2 = pairs_of(batch, self.name).index_e2
        score_e2 = pair_values(self.score, self.score.of_pairs, index_e2, logp_bt, batch, index_e2, each=2)
        margin_e = pair_values(self.margin, self.margin, index_e2, batch, index_e2)
        weight_e = pair_values(self.pair_weight, self.pair_weight, index_e2, logp_bt.detach(), batch, index_e2)
        better_e, worse_e = score_e2.unbind(1)
        loss_e = pair_values(self.link, self.link.of_scores, index_e2, better_e, worse_e, margin_e)
        loss_e = loss_e.mean().expand_as(loss_e) if self.score.ranked and len(loss_e) else loss_e
        gap_e = better_e - worse_e
        right_e = share_right(gap_e, sizes(self.score, score_e2, logp_bt, batch, index_e2))
        metrics = {"pair_accuracy": right_e, "pair_margin": gap_e}
        if self.score.log_probs:
            metrics |= self._rewards(score_e2, logp_bt.detach(), batch, index_e2)
        return PairLoss(weight_e.detach() * loss_e, metrics)

    def _rewards(self, score_e2: Tensor, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> dict[str, Tensor]:
        """Return the metrics of pairs [E]; rewards are β times the implicit scores, whatever the loss makes of them."""
        score = self.score.implicit()
        reward_e2 = score_e2 if score == self.score else score.of_pairs(logp_bt, batch, index_e2)
        right_e = share_right(reward_e2[:, 0] - reward_e2[:, 1], sizes(score, reward_e2, logp_bt, batch, index_e2))
        return pair_metrics(slope_of(self.link), reward_e2, logp_bt, batch, index_e2, right_e)

    @override
    def formula(self) -> str:
        margin = self.margin.formula() if self.link.margins else ""
        parts = (self.score.formula(), margin, self.pair_weight.formula(), self.pairing.formula())
        return f"{self.link.formula()},  Δs = s(w) - s(l),  {',  '.join(x for x in parts if x)}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        held = [pairs_code(self.score), *(part.code() for part in (self.margin, self.pair_weight, self.link))]
        if not all(held) or not (pairs := self._pairs_code()):
            return ""
        score, *others = held
        lines = [pairs, score, "better_e, worse_e = score_2e", "gap_e = better_e - worse_e", *others]
        lines += ["loss_e = loss_e.mean().expand_as(loss_e)  # of all ranks"] if self.score.ranked else []
        to_rows = "pairs_to_rows(weight_e * loss_e, index_2e, group_b, known_b)"
        return "\n".join([*lines, f"loss_bt = {to_rows}[:, None] * active_bt"])

    def _pairs_code(self) -> str:
        """Return the lines of plain torch up to `index_2e`, the pairs that are compared; '' if there are none."""
        if self.pairing == AllPairs():
            return PAIRS
        return f"{PAIRS}\n{chosen}" if (chosen := self.pairing.code()) else ""


@part("objective")
class PairSum(Pairwise):
    """A weighted sum of two losses of the same pairs; the second may be such a sum itself (MPO, arXiv:2411.10442)."""

    first: Pairwise = Pair()
    second: Pairwise = Pair()
    first_weight: NonNegative = 1.0
    second_weight: NonNegative = 1.0
    says = "{first_weight:g} times one loss of pairs plus {second_weight:g} times another"

    def pairs(self, batch: Batch) -> Tensor:
        """Return [E,2] the pairs that the first loss compares, and the second as well."""
        return self.first.pairs(batch)

    def __call__(self, logp_bt: Tensor, batch: Batch) -> PairLoss:
        """Return the weighted sum of both losses of each pair; metrics are those of the first."""
        first, second = self.first(logp_bt, batch), self.second(logp_bt, batch)
        loss_e = self.first_weight * first.loss_e + self.second_weight * second.loss_e
        return PairLoss(loss_e, {**second.metrics, **first.metrics})

    @override
    def formula(self) -> str:
        return f"{self.first_weight:g}·[{self.first.formula()}] + {self.second_weight:g}·[{self.second.formula()}]"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        first, second = self.first.code(), self.second.code()
        if not first or not second or isinstance(self.second, PairSum):
            return ""
        added = f"{self.first_weight!r} * first_bt + {self.second_weight!r} * loss_bt"
        return f"{first}\nfirst_bt = loss_bt\n{second}\nloss_bt = {added}"
