"""Rewards of single steps of a search: which sub-question is sent where, and the answer in the end."""

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
"""Words up to which an answer is right as a whole or not at all."""


@known_examples(
    ("miru in@text", {"kind": "ret", "gold": ["miru in"], "retriever": "text"}, True),
    ("miru in@table", {"kind": "ret", "gold": ["miru in"], "retriever": "text"}, False),
    ("=oslo", {"kind": "ans", "gold": ["oslo"]}, True),
    ("oslo", {"kind": "ans", "gold": ["oslo"]}, False),
)
def route_step(completion: str, kind: str, gold: Sequence[str], retriever: str = "") -> dict[str, float]:
    """Return R1-Router's reward of a step (Peng et al. 2025, released code): "question@retriever", or "=answer".

    `kind` "ret": half the nearness of the sub-question, half for naming the right retriever alone; 0 for a retriever
    that there is not, and for "none" beside others. "ans": one of the `gold` answers, word for word if it is short.
    What cannot be read is worth 0. Cosine of word counts, times the ratio of lengths, stands for the cosine of
    embeddings.

    Differs from the paper: its recall of words would pay "=not oslo" and "=oslo rome paris" for "oslo".

    Raises:
        ValueError: on another kind, or without `gold`.
    """
    if kind not in ("ret", "ans") or not gold:
        raise ValueError(f"the column 'kind' is {kind!r}, not 'ret' or 'ans', or 'gold' is empty: {gold!r}")
    paid = retrieval(completion, gold[0], retriever) if kind == "ret" else answering(completion, gold)
    return {"step": paid, "correct": float(paid > 1 - 1e-12)}


def retrieval(completion: str, example: str, retriever: str) -> float:
    """Return 0.5·nearness + 0.5·[the retriever, and no other, is named]."""
    found = ASKED.fullmatch(completion)
    named = found["where"].split(",") if found else []
    mixed = "none" in named and len(named) > 1
    if found is None or mixed or not set(named) <= set(RETRIEVERS):
        return 0.0
    return 0.5 * nearness(found["question"], example) + 0.5 * (named == [retriever])


def answering(completion: str, gold: Sequence[str]) -> float:
    """Return the F1 of a long answer's words; 1 or 0 for a short one (five words), and where there are several."""
    found = ANSWERED.fullmatch(completion)
    if found is None:
        return 0.0
    said = found["answer"].lower().split()
    if len(gold) > 1 or len(gold[0].split()) <= SHORT:
        return float(any(said == each.lower().split() for each in gold))
    return word_f1(said, gold[0].lower().split())


def word_f1(said: Sequence[str], gold: Sequence[str]) -> float:
    """Return twice the shared words over all words, each counted as often as it is there; 1 only for the same order."""
    shared = (Counter(said) & Counter(gold)).total()
    ratio = 2 * shared / (len(said) + len(gold)) if said or gold else 1.0
    return ratio if ratio < 1 or list(said) == list(gold) else 1 - 1 / (len(said) + 1)


def nearness(ours: str, theirs: str) -> float:
    """Return the cosine times the ratio of the numbers of words, so that saying it twice is not as near."""
    first, second = len(ours.split()), len(theirs.split())
    return cosine(ours, theirs) * min(first, second) / max(1, first, second)


def cosine(ours: str, theirs: str) -> float:
    """Return the cosine between the word counts of two texts; 0 where one has none."""
    first, second = Counter(ours.lower().split()), Counter(theirs.lower().split())
    norms = math.sqrt(sum(n * n for n in first.values()) * sum(n * n for n in second.values()))
    return sum(count * second[word] for word, count in first.items()) / norms if norms else 0.0
