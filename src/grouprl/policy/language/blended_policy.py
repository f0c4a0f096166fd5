"""The geometric mixture of two language models, to be sampled from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy


class BlendedPolicy:
    """A policy whose logits are (1-share)·first + share·second: π ∝ π_first^(1-share) · π_second^share, token by token.

    It is only sampled from. Everything but the logits is the first one's: tokenizer, temperature, settings.
    """

    def __init__(self, first: CausalPolicy, second: CausalPolicy, share: float) -> None:
        self.first, self.second, self.share = first, second, share

    def __getattr__(self, name: str) -> object:
        return getattr(self.first, name)
