"""Assertions that name the rule that does not hold."""

from __future__ import annotations

from collections.abc import Callable

from grouprl.core.errors import InputError


def hold(true: bool, words: str) -> None:
    """Raise AssertionError with the rule `words` unless it holds; unlike `assert`, with optimised bytecode too."""
    if not true:
        raise AssertionError(f"does not hold: {words}")


def refuses(call: Callable[[], object], words: str) -> None:
    """Raise AssertionError with the rule `words` unless `call` raises InputError."""
    try:
        call()
    except InputError:
        return
    raise AssertionError(f"does not hold: {words} (InputError)")
