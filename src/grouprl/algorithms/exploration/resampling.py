"""Asking a question again that has rows already, and putting the new rows in the place of old ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grouprl.algorithms.data_part import Desk
from grouprl.core.batch import SOURCES
from grouprl.rollout.requests import Ask
from grouprl.rollout.samples import Collected, join, sort_by_group, subset


def again(collected: Collected, row: int, skip: int = 0, **changes: Any) -> Ask:
    """Return an ask for one more answer to the question of `row`, under the same prompt and keys.

    Its number is the first that no row of the question has, plus `skip`; `changes` are fields of the ask. A question
    that is acted out shows its own beginning.
    """
    keys = {n.partition(".")[2]: int(x[row]) for n, x in collected.extras.items() if n.startswith("keys.")}
    question, ordinal = collected.questions[row], collected.ordinal_b[row]
    played = "keys.episode" in collected.extras
    asked = Ask(
        ordinal=int(ordinal),
        index=int(collected.index_b[row]),
        question=question,
        answers=1,
        first=int(collected.answer_b[collected.ordinal_b == ordinal].max()) + 1 + skip,
        prompt=None if played else collected.prompts[row],
        keys=keys,
    )
    return replace(asked, **changes)


def further_numbers(collected: Collected, rows: np.ndarray) -> np.ndarray:
    """[N] numbers among the answers to their questions that no row has yet, for rows made of `rows` ([N] int)."""
    of_b = collected.ordinal_b
    last = {ordinal: int(collected.answer_b[of_b == ordinal].max()) for ordinal in set(of_b[rows].tolist())}
    numbers = []
    for ordinal in of_b[rows].tolist():
        last[ordinal] += 1
        numbers.append(last[ordinal])
    return np.array(numbers, dtype=np.int64)


def groups(collected: Collected, rows_b: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows [N] of each group among `rows_b` ([B] bool), groups in the order in which they come."""
    for group in dict.fromkeys(collected.group_b[rows_b].tolist()):
        yield np.flatnonzero(rows_b & (collected.group_b == group))


def drawn_rows(collected: Collected) -> np.ndarray:
    """[B] bool: rows that were drawn for this step in the ordinary way and have a score."""
    return collected.kept_b & (collected.source_b == SOURCES["drawn"])


def dead_groups(collected: Collected) -> list[np.ndarray]:
    """Rows [N] of each group none of whose drawn answers is right."""
    found = groups(collected, drawn_rows(collected))
    return [rows for rows in found if not collected.scores.correct_b[rows].any()]


def splice(collected: Collected, gone_b: np.ndarray, added: Sequence[Collected]) -> Collected:
    """Return the rows without those of `gone_b` ([B] bool) and with `added`, group by group.

    New rows get the greedy reward of their group. Rows that stay keep every value.
    """
    known = collected.greedy_reward_b
    if known is not None:
        of_group = dict(zip(collected.group_b.tolist(), known.tolist(), strict=True))
        greedy = [np.array([of_group[g] for g in part.group_b.tolist()], dtype=known.dtype) for part in added]
        added = [replace(part, greedy_reward_b=x) for part, x in zip(added, greedy, strict=True)]
    return sort_by_group(join([subset(collected, ~gone_b), *added]))


def leads(collected: Collected, rows: Iterable[int], desk: Desk) -> list[tuple[int, ...]]:
    """Return the token ids that the answer of each of `rows` was made to begin with, () where it was free."""
    rows = list(rows)
    shown = {id(prompt): prompt for prompt in (collected.prompts[i] for i in rows)}
    encoded = zip(shown, desk.policy.encode_prompts(list(shown.values())), strict=True)
    sizes = {key: len(ids) for key, ids in encoded}
    return [tuple(collected.rollout.prompt_ids[i][sizes[id(collected.prompts[i])] :]) for i in rows]


def through(desk: Desk, ids: Sequence[int], sign: str) -> int | None:
    """Return how many tokens of `ids` it takes until the text holds `sign`; None where it never does."""
    if sign not in desk.decode([ids])[0]:
        return None
    low, high = 0, len(ids)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sign in desk.decode([ids[:middle]])[0] else (middle, high)
    return high
