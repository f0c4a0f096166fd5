"""BLEU, the similarity of a sentence to its references, as a reward."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from grouprl.rewards.contract import known_examples

WORD = re.compile(r"\w+|[^\w\s]")
ORDER = 4


@known_examples(
    ("ann is 7 and lives in oslo", {"references": ["ann is 7 and lives in oslo"]}, True),
    ("ann is 8 and lives in oslo", {"references": ["ann is 7 and lives in oslo"]}, False),
    ("", {"references": ["ann is 7"]}, False),
)
def bleu(completion: str, references: Sequence[str]) -> dict[str, float]:
    """Return smoothed sentence BLEU-4 against one or more references, as BLEUBERI rewards it (arXiv 2505.11080).

    `correct` is 1 for one of the references, word for word.

    Raises:
        ValueError: without references.
    """
    if not references:
        raise ValueError("the column 'references' is empty")
    same = any(words(completion) == words(reference) for reference in references)
    return {"bleu": sentence_bleu(completion, references), "correct": float(same)}


def sentence_bleu(text: str, references: Sequence[str]) -> float:
    """Return brevity penalty times the geometric mean of (clipped matches + 1)/(n-grams + 1), n = 1..4; 0 for no words.

    The penalty is exp(1 - r/c) for c words fewer than r, the shortest reference's: the smoothed metric of `evaluate`.
    """
    # sacrebleu and nltk smooth no unigrams and take the closest reference's length: their numbers are not the paper's.
    said, wanted = words(text), [words(reference) for reference in references]
    if not said:
        return 0.0
    logs = [math.log((matches(said, wanted, n) + 1) / (max(0, len(said) - n + 1) + 1)) for n in range(1, ORDER + 1)]
    shortest = min(map(len, wanted))
    return math.exp(sum(logs) / ORDER + min(0.0, 1 - shortest / len(said)))


def matches(said: Sequence[str], wanted: Sequence[Sequence[str]], n: int) -> int:
    """Count the n-grams of a text that occur in a reference, each clipped to its highest count in any one reference."""
    most: Counter[tuple[str, ...]] = Counter()
    for reference in wanted:
        most |= ngrams(reference, n)
    return sum((ngrams(said, n) & most).values())


def ngrams(text: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    """Return the n-grams of a text, counted."""
    return Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1))


def words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text, with their case."""
    return WORD.findall(text)
