"""Knock-out tournaments of a group: its best and its worst completion, with fewer comparisons than all pairs.

As INPO finds its pairs (arXiv:2407.00617): eight completions take eleven comparisons, all pairs of them twenty-eight.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TypeAlias, TypeVar

from grouprl.rewards.judging.comparing import ALONE, Ask, FailedComparison, Judgement, Match, decided, verdict_of
from grouprl.rewards.validation import Verdict

T = TypeVar("T")
Play: TypeAlias = Generator[list[Match], Sequence[Judgement], T]
"""A part of a tournament: it yields the matches of a round, is sent what is said of them, and returns an outcome."""
DRAWN = 0.5


def comparisons(rows: int) -> int:
    """Return how many comparisons a tournament of so many completions takes at most."""
    return 0 if rows < 2 else (rows - 1) + (rows // 2 - 1) + (rows > 2)


def standings(groups: Sequence[Sequence[int]], ask: Ask) -> dict[int, Verdict]:
    """Return the verdict of each row: 1 for the best of its group, 0 for the worst, ½ for others.

    Groups play at the same time, round by round. Where the best row is not preferred to the worst, all have ½. A judge
    that abstained on all matches of a group leaves it without rewards, and a comparison that failed fails the group.
    """
    plays = [_standing(rows) for rows in groups]
    found: dict[int, Verdict] = {}
    said: dict[int, Sequence[Judgement] | None] = dict.fromkeys(range(len(plays)))
    while True:
        rounds: dict[int, list[Match]] = {}
        for number, answers in said.items():
            try:
                rounds[number] = plays[number].send(answers)  # type: ignore[arg-type]  # None begins it
            except StopIteration as end:
                found |= end.value
        if not rounds:
            return found
        answered = iter(ask([match for each in rounds.values() for match in each]))
        said = {number: [next(answered) for _ in each] for number, each in rounds.items()}


def _standing(rows: Sequence[int]) -> Play[dict[int, Verdict]]:
    """Play a group's tournament, and return the verdict of each of its rows."""
    if len(rows) == 1:
        return {rows[0]: verdict_of([ALONE])}
    said: list[Judgement] = []
    best, worst, sure = yield from _ends(rows, said)
    failed = [each for each in said if isinstance(each, FailedComparison)]
    if failed or not decided(said):
        return dict.fromkeys(rows, verdict_of(failed))
    rewards = {**dict.fromkeys(rows, DRAWN), **({best: 1.0, worst: 0.0} if sure else {})}
    return {row: verdict_of([reward]) for row, reward in rewards.items()}


def _ends(rows: Sequence[int], said: list[Judgement]) -> Play[tuple[int, int, bool]]:
    """Play for the best row among the winners of each round, and for the worst among the losers of the first.

    Returns both, and whether the best is preferred to the worst.
    """
    first = _paired(rows)
    chances = dict(zip(first, (yield from _round(first, said)), strict=True))
    winners = [_passing(match, chance) for match, chance in chances.items()]
    losers = [one if winner == other else other for (one, other), winner in zip(first, winners, strict=True)]
    best = yield from _last([*winners, *_free(rows)], said)
    worst = yield from _last(losers, said, lower=True)
    # The best and the worst may have met in the first round, and no pair is asked about twice.
    known = {**chances, **{match[::-1]: 1 - chance for match, chance in chances.items()}}
    if (best, worst) in known:
        return best, worst, known[best, worst] > DRAWN
    (chance,) = yield from _round([(best, worst)], said)
    return best, worst, chance > DRAWN


def _last(rows: list[int], said: list[Judgement], *, lower: bool = False) -> Play[int]:
    """Play rounds until one row is left: the one that is preferred, or with `lower` the one that is not."""
    while len(rows) > 1:
        pairs = _paired(rows)
        chances = yield from _round(pairs, said)
        rows = [*(_passing(m, 1 - c if lower else c) for m, c in zip(pairs, chances, strict=True)), *_free(rows)]
    return rows[0]


def _round(pairs: list[Match], said: list[Judgement]) -> Play[list[float]]:
    """Play a round, keep what is said of it, and return the chances; no verdict is a draw."""
    answers = yield pairs
    said.extend(answers)
    return [DRAWN if each is None or isinstance(each, FailedComparison) else each for each in answers]


def _paired(rows: Sequence[int]) -> list[Match]:
    return list(zip(rows[::2], rows[1::2], strict=False))


def _free(rows: Sequence[int]) -> Sequence[int]:
    """Return the last of an odd number of rows, which meets nobody in this round."""
    return rows[len(rows) // 2 * 2 :]


def _passing(match: Match, chance: float) -> int:
    """Return the row that passes on; in a draw it is the first, which stands there by chance."""
    return match[0] if chance >= DRAWN else match[1]
