"""Nouns for what a policy samples: completions made of tokens, or episodes made of actions."""

from __future__ import annotations

import re

ACTIONS = {
    "a completion": "an episode",
    "completion": "episode",
    "completions": "episodes",
    "a token": "an action",
    "token": "action",
    "tokens": "actions",
    "tok": "actions",
}
_WORD = re.compile(r"\b(?:(?:a )?(?:completions?|tokens?)\b|tok(?=/s))", re.IGNORECASE)


def worded(text: str, *, actions: bool) -> str:
    """Return a sentence about completions and tokens; with `actions`, reworded for episodes and actions."""
    return _WORD.sub(_of_actions, text) if actions else text


def _of_actions(found: re.Match[str]) -> str:
    word = ACTIONS[found[0].lower()]
    return word.capitalize() if found[0][0].isupper() else word
