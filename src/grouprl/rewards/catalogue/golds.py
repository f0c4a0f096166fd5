"""Completions that are correct by definition: the gold of a row in the form that the built-in reward expects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from grouprl.rewards.catalogue.library import LibraryScore
from grouprl.rewards.catalogue.loading import BUILTIN
from grouprl.rewards.contract import Columns, Reward, reward_name
from grouprl.rewards.math.math_text import whole_gold
from grouprl.rewards.scoring import score
from grouprl.rewards.validation import plain_rewards


def _plain(columns: Columns) -> str:
    return str(columns["answer"])


def _route(columns: Columns) -> str:
    first = columns["gold"][0]
    return f"{first}@{columns['retriever']}" if columns["kind"] == "ret" else f"={first}"


GOLD_COMPLETIONS: Mapping[str, Callable[[Columns], str]] = {
    "bleu": lambda columns: columns["references"][0],
    "contains_answer_tag": lambda columns: f"<answer>{columns['answer']}</answer>",
    "exact_match": _plain,
    "fuzzy_count": _plain,
    "json_after_thought": lambda columns: f"|{columns['answer']}",
    "json_match": _plain,
    "knowledge": lambda columns: f"{columns['fact']}|{columns['answer']}",
    "math_equal": lambda columns: f"\\boxed{{{whole_gold(str(columns['answer']))}}}",
    "mean_relative_accuracy": _plain,
    "number_after_bar": lambda columns: f"|{columns['answer']}",
    "numeric_match": _plain,
    "quality": lambda columns: json.dumps(columns["answer"]),
    "reflection": lambda columns: f"1|{columns['answer']};right;1|{columns['answer']}",
    "relaxed_accuracy": _plain,
    "route_step": _route,
    "self_search": lambda columns: f"={columns['answer']}",
    "tolerance_ramp": _plain,
    "tool_calls": lambda columns: f"<tool_call>\n{columns['answer']}\n</tool_call>",
}
"""Functions from a row to its gold as a completion, by built-in reward; rewards without a gold are absent."""


def gold_completion(reward: Reward, columns: Columns) -> str | None:
    """Return the gold of a row as a completion that the reward must score as correct; None if it has no gold.

    Raises:
        Exception: if the gold is of the wrong kind.
    """
    while isinstance(reward, partial):
        reward = reward.func
    if isinstance(reward, LibraryScore):
        answer = columns["entry"]["answer"]
        return answer if isinstance(answer, str) else None
    name = getattr(reward, "__name__", "")
    return GOLD_COMPLETIONS[name](columns) if name in GOLD_COMPLETIONS and BUILTIN.get(name) is reward else None


def refused_golds(reward: Reward, rows: Sequence[Columns], labels: Sequence[str]) -> list[str]:
    """Return a message for every row whose gold the reward cannot read or does not accept as correct."""
    found = []
    for plain in plain_rewards(reward):
        cases: list[tuple[str, Columns, str]] = []
        for columns, label in zip(rows, labels, strict=True):
            try:
                text = gold_completion(plain, columns)
            except Exception as error:  # a gold may be anything
                found.append(f"{label}: {type(error).__name__}: {error}")
                continue
            if text is not None:
                cases.append((text, columns, label))
        if cases:
            found += _refused(plain, cases)
    return found


def _refused(reward: Reward, cases: list[tuple[str, Columns, str]]) -> list[str]:
    texts, columns, labels = (list(values) for values in zip(*cases, strict=True))
    scores = score(reward, texts, columns, ids=labels)
    reasons = {problem.sample_id: problem.what for problem in scores.problems}
    sentences = []
    for label, text, right in zip(labels, texts, scores.correct_b.tolist(), strict=True):
        if not right:
            why = reasons.get(
                label, f"the gold itself, {text[:80]!r}, is not correct according to '{reward_name(reward)}'"
            )
            sentences.append(f"The gold in {label} cannot be graded: {why}")
    return sentences
