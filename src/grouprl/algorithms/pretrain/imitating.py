"""Rows that a policy imitates before reinforcement, in passes with an optimiser of their own."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from grouprl.algorithms.data_part import Pretraining, RunContext
from grouprl.core.metric import Metric
from grouprl.core.outputs import LOG_PROB
from grouprl.records.tokens import Tokens

GRAD_CLIP = 1.0
LOSS = Metric(unit="nats", words="mean -log π of the tokens that are imitated, before each pass", good="it falls")


class Imitating(Pretraining):
    """Base: rows are collected in pieces, then imitated in `epochs` passes over all of them, `batch` rows per step.

    The store's `kept` holds the rows, each a list of the prompt's token ids and of those to imitate.
    """

    needs_text = True
    one_policy: ClassVar[bool] = True
    loss_name: ClassVar[str]
    """The metric of the loss."""
    epochs: int
    lr: float
    batch: int

    def collections(self, context: RunContext) -> int:
        """Return the number of pieces in which rows are collected."""
        raise NotImplementedError

    def collect(self, number: int, context: RunContext) -> dict[str, float]:
        """Add the rows of piece `number` to the store's `kept`; return metrics."""
        raise NotImplementedError

    def count(self, context: RunContext) -> int:
        """Return the number of pieces: the collections, then the passes."""
        return self.collections(context) + self.epochs

    def piece(self, number: int, context: RunContext) -> dict[str, float]:
        """Collect rows, or make a pass over those kept."""
        return self.collect(number, context) if number < self.collections(context) else self._imitate(number, context)

    def finish(self, context: RunContext) -> None:
        """Act after the last pass; nothing by default."""

    def _imitate(self, number: int, context: RunContext) -> dict[str, float]:
        """Make one pass over the rows kept, in a new order."""
        store = context.state_of(self)
        kept, losses = store.get("kept", []), []
        order = context.rng(self).permutation(len(kept)).tolist()
        for first in range(0, len(kept), self.batch):
            rows = [kept[i] for i in order[first : first + self.batch]]
            losses.append(self._step(Tokens.of([row[0] for row in rows], [row[1] for row in rows]), context))
        if number + 1 == self.count(context):
            store.clear()
            context.cache_of(self).clear()
            self.finish(context)
        return {self.loss_name: float(np.mean(losses))} if losses else {}

    def _step(self, tokens: Tokens, context: RunContext) -> float:
        """Take one optimiser step on rows to imitate; return the loss before it."""
        policy, optimizer = context.text.policy, self._optimizer(context)
        loss, slope_bt = imitation(policy.logp(tokens), tokens.present_bt())
        optimizer.zero_grad(set_to_none=True)
        policy.backward(tokens, {LOG_PROB: slope_bt})
        torch.nn.utils.clip_grad_norm_(policy.parameters(), GRAD_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        context.state_of(self)["optimizer"] = optimizer.state_dict()
        return loss

    def _optimizer(self, context: RunContext) -> torch.optim.Optimizer:
        held, store = context.cache_of(self), context.state_of(self)
        if "optimizer" not in held:
            trained = [p for p in context.text.policy.parameters() if p.requires_grad]
            held["optimizer"] = torch.optim.AdamW(trained, lr=self.lr, weight_decay=0.0)
            if "optimizer" in store:
                held["optimizer"].load_state_dict(store["optimizer"])
        optimizer: torch.optim.Optimizer = held["optimizer"]
        return optimizer


def imitation(logp_bt: Tensor, mask_bt: Tensor) -> tuple[float, Tensor]:
    """Return the mean of -log π over the tokens of `mask_bt` ([B,T] bool), and its gradient [B,T]."""
    slope_bt = -mask_bt.to(logp_bt) / mask_bt.sum().clamp(min=1)
    return float((slope_bt * logp_bt.detach()).sum()), slope_bt
