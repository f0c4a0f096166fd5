"""Advantages from a critic of whole utterances (ArCHer)."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from grouprl.algorithms.advantage.advantage import Advantage
from grouprl.algorithms.part import part
from grouprl.core.batch import Batch


def utterance_advantage(batch: Batch, reader: str) -> Tensor:
    """Return [B] how much more an action is worth than its observation: `past.q` - `past.v`."""
    return (batch.need("past.q", reader) - batch.need("past.v", reader)).to(batch.dtype)


@part("advantage")
class UtteranceAdvantage(Advantage):
    """ArCHer: A = min Q(o,a) - min V(o), the same for all tokens of the action (arXiv:2402.19446).

    With `baseline` each token has A - b(o, a_<t) instead, b being the value head fitted to A (`token_baseline`).
    """

    baseline: bool = False

    def __call__(self, batch: Batch) -> Tensor:
        """Return A [B,T]."""
        adv_bt = batch.broadcast(utterance_advantage(batch, self.name))
        return adv_bt - batch.need("value_bt", self.name) * batch.mask_bt if self.baseline else adv_bt

    @override
    def code(self) -> str:
        lines = 'adv_bt = (past["q"] - past["v"])[:, None] * mask_bt'
        return f"{lines}\nadv_bt = adv_bt - value_bt * mask_bt" if self.baseline else lines

    @override
    def needs(self) -> tuple[str, ...]:
        return ("past.q", "past.v", *(["value_bt"] if self.baseline else []))

    @override
    def words(self) -> str:
        less = ", less what the tokens so far let expect" if self.baseline else ""
        return f"how much more an action is worth than its observation, by a critic of utterances{less}"

    @override
    def formula(self) -> str:
        return "A = min Q(o,a) - min V(o)" + (" - b(o, a_<t)" if self.baseline else "")
