"""Evenly spaced entries of tensors that are too many to be kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def thinned(tensors: Sequence[Tensor], every: int) -> list[Tensor]:
    """Return every `every`-th entry of the tensors, laid end to end, tensor by tensor: copies on the CPU, in float32 or
    better.
    """
    begin, kept = 0, []
    for each in tensors:
        wide = torch.promote_types(each.dtype, torch.float32)
        kept.append(each.detach().reshape(-1)[-begin % every :: every].to("cpu", wide, copy=True))
        begin += each.numel()
    return kept
