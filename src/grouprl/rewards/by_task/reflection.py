"""Rewards of answers that are given, reflected on, and given again."""

from __future__ import annotations

import math
from collections.abc import Mapping

from grouprl.rewards.contract import known_examples

PARTS = 5
"""Number of parts of a completion: thought, answer, reflection, thought, answer."""

CORRECTED, KEPT, SPOILED, MISSED, SINGLE = 1.0, 0.75, 0.25, 0.0, 0.5


@known_examples(
    ("22|4;wrong;23|5", {"answer": "5"}, True),
    ("23|5;right;23|5", {"answer": "5"}, True),
    ("23|5;wrong;22|4", {"answer": "5"}, False),
    ("4", {"answer": "5"}, False),
)
def reflection(completion: str, answer: str, length_weight: float = 0.1) -> dict[str, float]:
    """Return SRPO's sum of accuracy, format and 0.1 length (Wan et al. 2025, arXiv 2506.01713, released code).

    The completion is "thought|answer;reflection;thought|answer". Format is 0.5 for exactly these five parts, none of
    them empty. The length is counted in characters, without the separators. The authors' code also pays 1 if the
    question has no readable answer, or if the letter of a choice occurs anywhere; neither is done here.
    """
    first, second = answers(completion)
    accuracy = truth_table(first == answer, None if second is None else second == answer)
    return {
        "accuracy": accuracy,
        "format": 0.5 * (len(pieces(completion)) == PARTS and all(pieces(completion))),
        "length": length_weight * doubled(completion),
        "correct": float((first if second is None else second) == answer),
    }


def truth_table(first: bool, second: bool | None) -> float:
    """Return the accuracy reward for the correctness of two answers; `second` is None if there is no second answer."""
    if second is None:
        return SINGLE if first else MISSED
    table: Mapping[tuple[bool, bool], float] = {
        (False, True): CORRECTED,
        (True, True): KEPT,
        (True, False): SPOILED,
        (False, False): MISSED,
    }
    return table[first, second]


def target_length(length: int, first: int) -> float:
    """Return exp(-((L - 2T)/(0.5T))²), which is 1 if length L is twice the first part's, T; 0 without a first part."""
    return math.exp(-(((length - 2 * first) / (0.5 * first)) ** 2)) if first else 0.0


def doubled(completion: str) -> float:
    """Return the `target_length` of a completion by its first thought and answer; 0 without a second answer."""
    if answers(completion)[1] is None:
        return 0.0
    first, signs = completion.partition(";")[0], "|;"
    return target_length(*(len(text) - sum(map(text.count, signs)) for text in (completion, first)))


def answers(completion: str) -> tuple[str, str | None]:
    """Return the first answer and the second; None without a second block with a bar."""
    blocks = completion.split(";")
    first = blocks[0].rpartition("|")[2]
    return first, blocks[2].rpartition("|")[2] if len(blocks) > 2 and "|" in blocks[2] else None


def pieces(completion: str) -> list[str]:
    """Return the parts between bars and semicolons if these are in the format's order, else the whole text as one."""
    blocks = [block.split("|") for block in completion.split(";")]
    found = [piece for block in blocks for piece in block]
    return found if [len(block) for block in blocks] in ([2, 1, 2], [2]) else [completion]
