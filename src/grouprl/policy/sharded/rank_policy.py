"""A rank's part of a sharded policy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grouprl.policy.engine import Head, Readout
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.sharded.outline import Outline
from grouprl.policy.sharded.rank_model import RankModel
from grouprl.records.tokens import Tokens


class RankPolicy(RankModel, CausalPolicy):
    """A policy of which this process holds a part; see `RankModel`.

    Args:
        outline: a transformers causal LM.
        value_head: see `CausalPolicy`.
        settings: further arguments of `RankModel` and of `CausalPolicy`.
    """

    def __init__(self, outline: Outline, *, device: torch.device, value_head: bool = False, **settings: Any) -> None:
        self.model, self._place = outline.model, device
        self.value_head = self._build_value_head() if value_head else None
        self.load_value_head(Path(outline.spec))
        head = self.value_head  # the base class would build one of a whole model
        super().__init__(outline, device=device, **settings)
        self.value_head = head

    def _beside(self) -> nn.Module | None:
        return self.value_head

    @torch.no_grad()
    def read(self, tokens: Tokens) -> Readout:
        """Run all rows in one pass of all ranks, without a graph; the output layer is kept with what was read, also
        when its weights are divided again.
        """
        return self._trunk(partial(self._kept_read, tokens))

    def _kept_read(self, tokens: Tokens) -> Readout:
        found = super().read(tokens)
        return found if found.head is None or self.mixed else replace(found, head=_kept(found.head))


def _kept(head: Head) -> Head:
    """Return an output layer with its own copy of the weights, because FSDP frees those that it gathered."""
    return replace(head, weight_vd=head.weight_vd.clone(), bias_v=None if head.bias_v is None else head.bias_v.clone())
