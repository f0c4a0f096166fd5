"""Rewards of answers from memory: right, refused or wrong, and whether the thought was true."""

from __future__ import annotations

from grouprl.rewards.contract import known_examples

REFUSAL = "?"
RIGHT, REFUSED, WRONG = 2.0, 1.0, -1.0


@known_examples(
    ("bako lives miru|miru", {"answer": "miru", "fact": "bako lives miru"}, True),
    ("|?", {"answer": "miru", "fact": "bako lives miru"}, False),
    ("bako lives tofe|tofe", {"answer": "miru", "fact": "bako lives miru"}, False),
    ("miru", {"answer": "miru", "fact": "bako lives miru"}, False),
)
def knowledge(completion: str, answer: str, fact: str) -> dict[str, float]:
    """Return KnowRL's sum of format and correctness (Ren et al. 2025, arXiv 2506.19807), "?" being the refusal.

    Format is 1 or -1 (a thought, one bar, an answer), correctness 2 for right, 1 for refused, -1 for wrong, and 0 if
    the format is missing. The truth of the thought, the share of its words that `fact` has at the same place, counts
    only for a wrong answer, as in the authors' code. A comparison of texts replaces their judges.
    """
    thought, bar, said = completion.partition("|")
    if not bar or not said or "|" in said:
        return {"format": -1.0, "correctness": 0.0, "factuality": 0.0, "correct": 0.0}
    right, refused = said == answer, said == REFUSAL
    paid = RIGHT if right else REFUSED if refused else WRONG
    truth = 0.0 if right or refused else true_share(thought, fact)
    return {"format": 1.0, "correctness": paid, "factuality": truth, "correct": float(right)}


def true_share(thought: str, fact: str) -> float:
    """Return the share of a thought's words that the fact has at the same position; 0 without words."""
    words, told = thought.split(), fact.split()
    return sum(x == y for x, y in zip(words, told, strict=False)) / len(words) if words else 0.0
