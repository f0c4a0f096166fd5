"""Scores less the policy's own estimate of the completions' quality (Sr-DPO, Sr-IPO)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.augment.papers.preferences.prefixed import TWIN
from grouprl.algorithms.part import part
from grouprl.algorithms.score.score import LogRatio, Score
from grouprl.algorithms.score.shifted import Shifted
from grouprl.core.batch import Batch
from grouprl.core.numbers import NonNegative


@part("score")
class Refined(Shifted):
    """s(y|x) - coef·sg[s(y|p, x)]: the larger the gap that the policy sees after the prefix p, the larger the margin.

    The second score is that of the same completion after a prompt that asks for good ones (`prefixed`), without
    gradient; a completion without such a row has none (arXiv:2405.21040).
    """

    of: Score = LogRatio()
    coef: NonNegative = 0.5
    couples: ClassVar[str] = "group"
    reads = (TWIN,)

    def baseline(self, logp_bt: Tensor, batch: Batch) -> Tensor:
        """Return coef·s of each row's twin after the prefix."""
        twin_b = batch.need(TWIN, self.name)
        score_b = self.of(logp_bt, batch.replace(loss_mask_bt=None))
        meets_bb = (twin_b[:, None] > 0) & (twin_b[:, None] == -twin_b)
        return self.coef * torch.where(meets_bb, score_b, 0).sum(1)

    @override
    def words(self) -> str:
        return f"{self.of.words()}, less {self.coef:g} times that after a prompt that asks for good completions"

    @override
    def formula(self) -> str:
        inner = self.of.formula().replace("s(y)", "u(y|x)")
        return f"s(y) = u(y|x) - {self.coef:g}·u(y|p, x) (detached),  {inner}"

    def code(self) -> str:
        """Return the part as lines of plain torch."""
        lines = self.of.code()
        if not lines or "score_2e" in lines:
            return ""
        whole = lines.replace("active_bt", "mask_bt")  # prefixed rows have left the loss
        return f"""{whole}
meets_bb = (keys['twin'][:, None] > 0) & (keys['twin'][:, None] == -keys['twin'])
refined_b = {self.coef!r} * torch.where(meets_bb, score_b, 0).sum(1).detach()
{lines}
score_b = score_b - refined_b"""
