"""Rewards of completions in which the policy answers its own search queries."""

from __future__ import annotations

import re

from grouprl.rewards.contract import known_examples

TURN = re.compile(r"\?[^?\[\]=]+\[[^?\[\]=]+\]")
ANSWER = re.compile(r"=[^?\[\]=]+")
MOST = 10


@known_examples(
    ("?bako lives[miru]=miru", {"answer": "miru"}, True),
    ("?bako lives[miru]=tofe", {"answer": "miru"}, False),
    ("=miru", {"answer": "miru"}, True),
    ("miru", {"answer": "miru"}, False),
)
def self_search(completion: str, answer: str, form: float = 0.2) -> dict[str, float]:
    """Return the sum of outcome and form in SSRL (Self-Search Reinforcement Learning, 2025).

    The last answer counts: 1 if it is right and the text valid, 1 - `form` if it is only right, `form` if the text is
    only valid; a quarter of the outcome for more than ten answers, as in the authors' code. "?bako lives" is a query,
    "[miru]" its information and "=oslo" the answer.
    `form` 0.2 is from memory of the paper.
    """
    said = [found[1:] for found in ANSWER.findall(completion)]
    right = bool(said) and completion.rpartition("=")[2] == answer  # nothing may follow the last answer
    outcome = (1 - form) * right * (0.25 if len(said) > MOST else 1.0)
    return {"outcome": outcome, "form": form * valid(completion), "correct": float(right)}


def valid(completion: str) -> bool:
    """Return whether a text is one or more queries, each with its information, and then one answer."""
    place, searched = 0, False
    while turn := TURN.match(completion, place):
        place, searched = turn.end(), True
    return searched and ANSWER.fullmatch(completion, place) is not None
