"""Rewards of completions that search in the policy itself: it writes both queries and information."""

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
    """Return SSRL's outcome and form (Self-Search Reinforcement Learning, 2025): the last answer, and if all is valid.

    1 for right and valid, 1 - `form` for right alone, `form` for valid alone; a quarter of the outcome for more than
    ten answers, as in the authors' code. Here "?bako lives" is a query, "[miru]" information and "=oslo" the answer.
    `form` 0.2 is from memory of the paper.
    """
    said = [found[1:] for found in ANSWER.findall(completion)]
    right = bool(said) and completion.rpartition("=")[2] == answer  # nothing may follow the last answer
    outcome = (1 - form) * right * (0.25 if len(said) > MOST else 1.0)
    return {"outcome": outcome, "form": form * valid(completion), "correct": float(right)}


def valid(completion: str) -> bool:
    """Tell whether a text is queries, each with its information, at least one, and then one answer."""
    place, searched = 0, False
    while turn := TURN.match(completion, place):
        place, searched = turn.end(), True
    return searched and ANSWER.fullmatch(completion, place) is not None
