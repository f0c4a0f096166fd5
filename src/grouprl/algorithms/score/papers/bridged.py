"""A log-ratio in which the tokens that tell a pair apart count more: DPO-BMC."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.part import RunFacts, part
from grouprl.algorithms.score.score import Score, without_reference
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("score")
class Bridged(Score):
    """Σ_t w_t·log π(y_t) - Σ_t w'_t·log π_ref(y_t), w_t = 1 + min(1/π(y_t), δ) where the pair differs, else 1 (BMC).

    From arXiv:2408.07471. Tokens differ where a shortest edit replaces, inserts or deletes them. Weights are detached;
    as in the authors' code the reference's are by its own probabilities. It exists for pairs only.
    """

    delta: NonNegative = 2.0
    reads = ("ref_bt", "token_bt")
    says = "the log-ratio, with tokens in which the pair differs 1 + min(1/π, {delta:g}) times"

    def of_pairs(self, logp_bt: Tensor, batch: Batch, index_e2: Tensor) -> Tensor:
        """Return the weighted log-ratio of both completions, [E,2]."""
        token_bt, active_bt = batch.need("token_bt", self.name), batch.active_bt
        ref_bt = torch.where(active_bt, batch.need("ref_bt", self.name), 0)
        changed_e2t = changed_in_pairs(token_bt, active_bt, index_e2)
        own_bt = torch.where(active_bt, logp_bt, 0)
        return self._weighted(own_bt[index_e2], changed_e2t) - self._weighted(ref_bt[index_e2], changed_e2t)

    def _weighted(self, log_e2t: Tensor, changed_e2t: Tensor) -> Tensor:
        more_e2t = (-log_e2t.detach()).exp().clamp(max=self.delta)
        return (log_e2t * (1 + changed_e2t * more_e2t)).sum(2)

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        more = f"(-{{}}_e2t.detach()).exp().clamp(max={self.delta!r})"
        return f"""changed_e2t = changed_in_pairs(token_bt, active_bt, index_2e.T)
own_e2t = torch.where(active_bt, logp_bt, 0)[index_2e.T]
base_e2t = torch.where(active_bt, ref_bt, 0)[index_2e.T]
own_e2 = (own_e2t * (1 + changed_e2t * {more.format("own")})).sum(2)
base_e2 = (base_e2t * (1 + changed_e2t * {more.format("base")})).sum(2)
score_2e = (own_e2 - base_e2).T"""

    @override
    def formula(self) -> str:
        weight = f"w_t = 1 + min(1/π(y_t), {self.delta:g}) where the pair differs, else 1 (detached)"
        return f"s(y) = Σ_t w_t·log π(y_t) - Σ_t w'_t·log π_ref(y_t),  {weight}"

    def refuse(self, run: RunFacts) -> list[str]:
        """Refuse a run without a reference model."""
        return without_reference(run, self.name)


def changed_in_pairs(token_bt: Tensor, active_bt: Tensor, index_e2: Tensor) -> Tensor:
    """Return [E,2,T] bool: the active tokens in which the two rows of each pair differ."""
    changed = [changed_tokens(token_bt[e], active_bt[e]) for e in index_e2]
    shape = (*index_e2.shape, active_bt.shape[1])
    return torch.stack(changed) if changed else torch.zeros(shape, dtype=torch.bool)


def changed_tokens(token_2t: Tensor, active_2t: Tensor) -> Tensor:
    """Return [2,T] bool: the active tokens of two rows that a shortest edit of one into the other touches."""
    from difflib import SequenceMatcher  # here, because a printed method carries this function

    first, second = (row[on].tolist() for row, on in zip(token_2t, active_2t, strict=True))
    found_2t = torch.zeros_like(active_2t)
    places = [on.nonzero()[:, 0] for on in active_2t]
    for tag, a, b, c, d in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if tag != "equal":
            found_2t[0, places[0][a:b]] = True
            found_2t[1, places[1][c:d]] = True
    return found_2t
