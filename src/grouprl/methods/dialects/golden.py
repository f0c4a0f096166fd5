"""A golden example that dialects share."""

from __future__ import annotations

from typing import Any

from grouprl.methods.card import Golden


def one_right(**known: Any) -> Golden:
    """Return a golden example with one correct completion of two tokens and three wrong completions of one."""
    return Golden(rewards=[1, 0, 0, 0], lengths=[2, 1, 1, 1], **known)


def gradient(right: float, wrong: float) -> list[list[float]]:
    """Return the gradient rows of `one_right`, the same for all tokens of a kind of completion."""
    return [[right, right], [wrong], [wrong], [wrong]]
