"""Probes: answers drawn only to measure questions. They are scored, counted and never trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grouprl.algorithms.data_part import Desk
from grouprl.rollout.requests import Ask
from grouprl.rollout.samples import Collected, join, subset


def probe(desk: Desk, asks: Sequence[Ask], *, greedy: bool = False) -> Collected:
    """Draw the answers of `asks` (or one greedy answer each) a batch at a time; returns those that could be scored."""
    width = desk.prompts * desk.answers
    per_ask = 1 if greedy else max(1, max(ask.answers for ask in asks))
    size = max(1, width // per_ask)
    pieces = [asks[start : start + size] for start in range(0, len(asks), size)]
    drawn = join([desk.draw(piece, greedy=greedy, count_failures=False) for piece in pieces])
    desk.note("answers_probed", len(drawn))
    return subset(drawn, drawn.scores.ok_b)


def probe_questions(desk: Desk, indices: Sequence[int], answers: int) -> Collected:
    """Draw `answers` answers to each of the training questions `indices`."""
    return probe(desk, [replace(desk.ask(int(index)), answers=answers) for index in indices])


def rows_of(key_b: np.ndarray) -> dict[int, np.ndarray]:
    """Rows of each value of `key_b` [B], values in the order in which they first come."""
    return {key: np.flatnonzero(key_b == key) for key in dict.fromkeys(key_b.tolist())}


def right_share(collected: Collected, key_b: np.ndarray) -> dict[int, float]:
    """Share of right answers for each value of `key_b` [B]."""
    return {key: float(collected.scores.correct_b[rows].mean()) for key, rows in rows_of(key_b).items()}
