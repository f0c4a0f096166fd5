"""A mixture of two language models, to be sampled from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from grouprl.policy.language.causal_lm import CausalPolicy

Mean = Literal["geometric", "arithmetic"]


class BlendedPolicy:
    """A policy that mixes the distributions of two, token by token.

    By the geometric mean its logits are (1-share)·first + share·second, π ∝ π_first^(1-share) · π_second^share; by the
    arithmetic one π = (1-share)·π_first + share·π_second at the first one's temperature. It is only sampled from.
    Everything but the logits is the first one's: tokenizer, temperature, settings.
    """

    def __init__(self, first: CausalPolicy, second: CausalPolicy, share: float, mean: Mean = "geometric") -> None:
        self.first, self.second, self.share, self.mean = first, second, share, mean

    def __getattr__(self, name: str) -> object:
        return getattr(self.first, name)
