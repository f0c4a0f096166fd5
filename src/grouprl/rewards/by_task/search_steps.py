"""Rewards of single steps of a search: the sub-questions, their retrievers, and the final answer."""

from __future__ import annotations

import math
import re
from collections import Counter
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
    short. A text that cannot be read earns 0. The cosine of word counts, times the ratio of lengths, replaces the
    cosine of embeddings.

    Differs from the paper: its recall of words would pay "=not oslo" and "=oslo rome paris" for "oslo".

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
    """Return twice the shared words (a multiset) over the words of both texts; 1 only for the same order."""
    shared = (Counter(said) & Counter(gold)).total()
    ratio = 2 * shared / (len(said) + len(gold)) if said or gold else 1.0
    return ratio if ratio < 1 or list(said) == list(gold) else 1 - 1 / (len(said) + 1)


def nearness(ours: str, theirs: str) -> float:
    """Return the cosine of two texts times the ratio of their word counts, so that repeating a text costs."""
    first, second = len(ours.split()), len(theirs.split())
    return cosine(ours, theirs) * min(first, second) / max(1, first, second)


def cosine(ours: str, theirs: str) -> float:
    """Return the cosine between the word counts of two texts; 0 if one has no words."""
    first, second = Counter(ours.lower().split()), Counter(theirs.lower().split())
    norms = math.sqrt(sum(n * n for n in first.values()) * sum(n * n for n in second.values()))
    return sum(count * second[word] for word, count in first.items()) / norms if norms else 0.0
