"""Weights of pairs: detached factors of their losses."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import Part, part
from grouprl.algorithms.score.score import over_tokens
from grouprl.core.batch import Batch
from grouprl.core.numbers import Limit, NonNegative

Alignment = Literal["sampled", "none"]


class PairWeight(Part):
    """Base: factors of the losses of pairs."""

    kind: ClassVar[str] = "pair_weight"

    def __call__(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the factor of each pair of rows `index_e2` ([E,2]), better first, [E]; `logp_bt` has no gradient."""
        raise NotImplementedError


@part("pair_weight")
class Even(PairWeight):
    """Every pair counts the same: `value`, a coefficient of the whole loss of pairs."""

    value: NonNegative = 1.0
    plain = "weight_e = {value!r}"

    def __call__(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the value for each pair."""
        return torch.full((len(index_e2),), self.value, dtype=logp_bt.dtype, device=logp_bt.device)

    @override
    def words(self) -> str:
        return "every pair counts the same" + ("" if self.value == 1 else f": {self.value:g} times its loss")

    @override
    def formula(self) -> str:
        return "" if self.value == 1 else f"× {self.value:g}"


@part("pair_weight")
class LikelyPairs(PairWeight):
    """w(y_w)·w(y_l), w(y) = exp(1/|y| Σ_t [log π(y_t) - log c_t]): pairs that the policy could sample (WPO).

    From arXiv:2406.11827. With `alignment` "sampled" c_t = Σ_a π(a)² is the mean probability of a sampled token (as it
    was before the update), so that a token as likely as those weighs 1; with "none" c_t = 1. `limit` bounds the weight
    of a pair.
    """

    alignment: Alignment = "sampled"
    limit: Limit = 1.0

    def __call__(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return w(y_w)·w(y_l), at most `limit`."""
        if self.alignment == "sampled":
            collision_bt = batch.need("stats.collision", self.name)
            logp_bt = logp_bt - torch.where(batch.active_bt, collision_bt, 1).log()
        log_e = over_tokens(logp_bt, batch, "mean")[index_e2].sum(1)
        return log_e.exp() if self.limit is None else log_e.exp().clamp(max=self.limit)

    @override
    def needs(self) -> tuple[str, ...]:
        return ("stats.collision",) if self.alignment == "sampled" else ()

    @override
    def words(self) -> str:
        against = ", against that of tokens it samples" if self.alignment == "sampled" else ""
        limit = "" if self.limit is None else f", at most {self.limit:g}"
        return f"pairs count by the mean token probability of both completions under the policy{against}{limit}"

    @override
    def formula(self) -> str:
        c, limit = "Σ_a π(a)²" if self.alignment == "sampled" else "1", "" if self.limit is None else f"{self.limit:g}"
        weight = "exp(Σ_{y ∈ w,l} 1/|y| Σ_t [log π(y_t) - log c_t])"
        return f"× {f'min({limit}, {weight})' if limit else weight} (detached),  c = {c}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        logs = "logp_bt.detach()"
        if self.alignment == "sampled":
            logs += " - torch.where(active_bt, stats['collision'], 1).log()"
        mean = f"torch.where(active_bt, {logs}, 0).sum(1) / active_bt.sum(1).clamp(min=1)"
        limit = "" if self.limit is None else f".clamp(max={self.limit!r})"
        return f"weight_e = ({mean})[index_2e].sum(0).exp(){limit}"
