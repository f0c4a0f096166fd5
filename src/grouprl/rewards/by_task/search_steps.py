"""Rewards of single steps of a search: the sub-questions, their retrievers, and the final answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from grouprl.rewards.contract import known_examples

ASKED = re.compile(r"(?P<question>[^@=]+)@(?P<where>[a-z]+(?:,[a-z]+)*)")
ANSWERED = re.compile(r"=(?P<answer>[^@=]+)")
RETRIEVERS = ("text", "image", "table", "none")
SHORT = 5
"""Answers of up to this many words earn no partial credit."""


@known_examples(
    ("miru in@text", {"kind": "ret", "gold": ["miru in"], "retriever": "text"}, True),
    ("miru in@table", {"kind": "ret", "gold": ["miru in"], "retriever": "text"}, False),
    ("=oslo", {"kind": "ans", "gold": ["oslo"]}, True),
    ("oslo", {"kind": "ans", "gold": ["oslo"]}, False),
)
def route_step(completion: str, kind: str, gold: Sequence[str], retriever: str = "") -> dict[str, float]:
    """Return R1-Router's reward of a step (Peng et al. 2025, released code): "question@retriever", or "=answer".

    `kind` "ret": half for the similarity of the sub-question, half for naming exactly the right retriever; 0 for an
    unknown retriever, and for "none" together with others. "ans": one of the `gold` answers, word for word if it is
    short. A text that cannot be read earns 0.

    Differs from the paper: words in common, in the same order, replace the cosine of embeddings and the recall of
    words, which would pay "=not oslo" and "=oslo rome paris" for "oslo", and words in any order.

    Raises:
        ValueError: on another kind, or without `gold`.
    """
    if kind not in ("ret", "ans") or not gold:
        raise ValueError(f"the column 'kind' is {kind!r}, not 'ret' or 'ans', or 'gold' is empty: {gold!r}")
    paid = retrieval(completion, gold[0], retriever) if kind == "ret" else answering(completion, gold)
    return {"step": paid, "correct": float(paid > 1 - 1e-12)}


def retrieval(completion: str, example: str, retriever: str) -> float:
    """Return 0.5·similarity + 0.5·[exactly the right retriever is named]."""
    found = ASKED.fullmatch(completion)
    named = found["where"].split(",") if found else []
    mixed = "none" in named and len(named) > 1
    if found is None or mixed or not set(named) <= set(RETRIEVERS):
        return 0.0
    return 0.5 * nearness(found["question"], example) + 0.5 * (named == [retriever])


def answering(completion: str, gold: Sequence[str]) -> float:
    """Return the word F1 of a long answer; 1 or 0 if it is short (up to five words) or several are accepted."""
    found = ANSWERED.fullmatch(completion)
    if found is None:
        return 0.0
    said = found["answer"].lower().split()
    if len(gold) > 1 or len(gold[0].split()) <= SHORT:
        return float(any(said == each.lower().split() for each in gold))
    return word_f1(said, gold[0].lower().split())


def word_f1(said: Sequence[str], gold: Sequence[str]) -> float:
    """Return twice the words that two texts have in common, in the same order, over the words of both."""
    return 2 * in_common(said, gold) / (len(said) + len(gold)) if said or gold else 1.0


def nearness(ours: str, theirs: str) -> float:
    """Return the share of the longer text's words that both have in the same order; repeating a text costs."""
    first, second = ours.lower().split(), theirs.lower().split()
    return in_common(first, second) / max(1, len(first), len(second))


def in_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    longest = [0] * (len(second) + 1)
    for word in first:
        before = 0
        for place, other in enumerate(second, 1):
            above = longest[place]
            longest[place] = before + 1 if word == other else max(above, longest[place - 1])
            before = above
    return longest[-1]
