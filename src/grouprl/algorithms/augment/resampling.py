"""Sampling a prompt that already has rows again, and replacing old rows by new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grouprl.algorithms.data_part import RunContext
from grouprl.core.batch import SOURCES
from grouprl.records.joining import join
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples, sort_by_group, subset
from grouprl.records.text_samples import TextSamples, as_text


def again(samples: ScoredSamples, row: int, skip: int = 0, **changes: Any) -> RolloutRequest:
    """Return a request for one more completion of the prompt of `row`, under the same prompt and keys.

    Its number is the first that no row of the prompt has, plus `skip`; `changes` are fields of the request. A prompt
    with an environment shows its own first observation.
    """
    keys = {n.partition(".")[2]: int(x[row]) for n, x in samples.extras.items() if n.startswith("keys.")}
    example, ordinal = samples.examples[row], samples.ordinal_b[row]
    played = "keys.episode" in samples.extras
    requested = RolloutRequest(
        ordinal=int(ordinal),
        index=int(samples.index_b[row]),
        example=example,
        completions=1,
        first=int(samples.sample_b[samples.ordinal_b == ordinal].max()) + 1 + skip,
        prompt=None if played else as_text(samples).prompts[row],
        keys=keys,
    )
    return replace(requested, **changes)


def further_numbers(samples: ScoredSamples, rows: np.ndarray) -> np.ndarray:
    """Return [N] numbers among the completions of their prompts that no row has yet, for rows made of
    `rows` ([N] int).
    """
    of_b = samples.ordinal_b
    last = {ordinal: int(samples.sample_b[of_b == ordinal].max()) for ordinal in set(of_b[rows].tolist())}
    numbers = []
    for ordinal in of_b[rows].tolist():
        last[ordinal] += 1
        numbers.append(last[ordinal])
    return np.array(numbers, dtype=np.int64)


def groups(samples: ScoredSamples, rows_b: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows [N] of each group among `rows_b` ([B] bool), groups in the order in which they come."""
    for group in dict.fromkeys(samples.group_b[rows_b].tolist()):
        yield np.flatnonzero(rows_b & (samples.group_b == group))


def sampled_rows(samples: ScoredSamples) -> np.ndarray:
    """Return [B] bool: rows that were sampled for this step in the ordinary way and have a score."""
    return samples.valid_b & (samples.source_b == SOURCES["sampled"])


def dead_groups(samples: ScoredSamples) -> list[np.ndarray]:
    """Return the rows [N] of each group of which no sampled completion is right."""
    found = groups(samples, sampled_rows(samples))
    return [rows for rows in found if not samples.scores.correct_b[rows].any()]


def splice(samples: ScoredSamples, gone_b: np.ndarray, added: Sequence[ScoredSamples]) -> ScoredSamples:
    """Return the rows without those of `gone_b` ([B] bool) and with `added`, group by group.

    New rows get the greedy reward of their group. Rows that stay keep every value.
    """
    known = samples.greedy_reward_b
    if known is not None:
        of_group = dict(zip(samples.group_b.tolist(), known.tolist(), strict=True))
        greedy = [np.array([of_group[g] for g in part.group_b.tolist()], dtype=known.dtype) for part in added]
        added = [replace(part, greedy_reward_b=x) for part, x in zip(added, greedy, strict=True)]
    return sort_by_group(join([subset(samples, ~gone_b), *added]))


def prefixes(samples: TextSamples, rows: Iterable[int], context: RunContext) -> list[tuple[int, ...]]:
    """Return the token ids that the completion of each of `rows` was forced to begin with, () for none."""
    rows = list(rows)
    shown = {id(prompt): prompt for prompt in (samples.prompts[i] for i in rows)}
    encoded = zip(shown, context.text.policy.encode_prompts(list(shown.values())), strict=True)
    sizes = {key: len(ids) for key, ids in encoded}
    return [tuple(samples.prompt_ids[i][sizes[id(samples.prompts[i])] :]) for i in rows]


def through(context: RunContext, ids: Sequence[int], sign: str) -> int | None:
    """Return how many tokens of `ids` it takes until the text contains `sign`; None if it never does."""
    if sign not in context.text.decode([ids])[0]:
        return None
    low, high = 0, len(ids)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if sign in context.text.decode([ids[:middle]])[0] else (middle, high)
    return high
