"""Completions that hit their limit have no advantage."""

from __future__ import annotations

import torch
from torch import Tensor

from grouprl.algorithms.advantage_transform.advantage_transform import AdvantageTransform
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


@part("advantage_transform")
class ZeroTruncated(AdvantageTransform):
    """Advantage 0 for completions that hit the length limit (SRPO, arXiv:2504.14286).

    Their rewards count in the group's statistics and their tokens in the denominators; `drop_truncated` takes the
    tokens out as well.
    """

    says = "completions that were cut off get advantage 0; their tokens still count in the denominators"
    equation = "A ← A·[not truncated]"
    reads = ("truncated_b",)
    plain = "adv_bt = torch.where(truncated_b[:, None], 0, adv_bt)"

    def __call__(self, adv_bt: Tensor, batch: Batch) -> Tensor:
        """Return A·[not truncated]."""
        return torch.where(batch.need("truncated_b", self.name)[:, None], 0, adv_bt)
