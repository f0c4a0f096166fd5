"""Numbers that sampling keeps of a row: keys and values of all tokens or of a window of them, and states."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeptNumbers:
    """The numbers that all layers of a model keep of one row."""

    per_token: int
    """Numbers of each token."""
    windows: tuple[tuple[int, int], ...] = ()
    """For layers that keep only the last tokens: how many tokens, and the numbers of each in all such layers."""
    state: int = 0
    """Numbers of a row of any length."""

    def numbers(self, tokens: float) -> float:
        """Return how many numbers are kept of a row of so many tokens."""
        return self.state + self.per_token * tokens + sum(each * min(tokens, room) for room, each in self.windows)

    def said(self, tokens: int) -> str:
        """Return the arithmetic of `numbers` for one row."""
        short = [f"{room:,} tokens × {each:,}" for room, each in self.windows if room < tokens]
        each = self.per_token + sum(each for room, each in self.windows if room >= tokens)
        rest = [*short, *[f"{self.state:,} of states"] * (self.state > 0)]
        said = f"{tokens:,} tokens × {each:,} numbers"
        return f"({' + '.join([said, *rest])})" if rest else said

    @property
    def whole(self) -> KeptNumbers:
        """The same layout with all tokens in place of windows, as a session of several turns keeps them."""
        return KeptNumbers(self.per_token + sum(each for _, each in self.windows), (), self.state)


def keys_of_layers(layers: int, kv_width: int) -> KeptNumbers:
    """Return the layout of a model whose layers all keep keys and values of `kv_width` numbers each of every token."""
    return KeptNumbers(2 * layers * kv_width)
