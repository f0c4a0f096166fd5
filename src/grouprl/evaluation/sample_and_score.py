"""Sampling and scoring the completions, or episodes, of an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grouprl.core.errors import RunError
from grouprl.evaluation.gain import PromptValues
from grouprl.evaluation.pass_at_k import pass_at_k_each
from grouprl.protocols import RowSource
from grouprl.protocols.run_events import Sample
from grouprl.records.examples import Example, prompt_text
from grouprl.records.outcomes import Outcomes
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.rewards import ErrorPolicy, Scores

Progress = Callable[[int, int], None]
"""Callback with (completions sampled so far, completions in all)."""


@dataclass(frozen=True)
class Completions:
    """R completions and their scores; the completions of a prompt are adjacent."""

    texts: Sequence[str]
    length_b: NDArray[np.float64]
    truncated_b: NDArray[np.float64]
    scores: Scores
    valid_b: NDArray[np.bool_]
    each: int
    openings: Sequence[str]
    """First observations of episodes, if known; they are shown for prompts that have no text."""

    def reward(self) -> PromptValues:
        """Return the mean reward of the scored completions of each prompt."""
        return self.means(self.scores.reward_b)

    def components(self) -> dict[str, PromptValues]:
        """Return the same mean for each component of the reward, over the completions that have it."""
        values = {name: np.where(self.valid_b, x_b, np.nan) for name, x_b in self.scores.components.items()}
        return {name: self.means(x_b) for name, x_b in values.items() if np.isfinite(x_b).any()}

    def means(self, value_b: NDArray[np.float64], *, some: bool = True) -> PromptValues:
        """Return the means by prompt of [R] values, of which NaN marks unknown ones.

        Raises:
            RunError: none is known, and `some` is wanted.
        """
        value_qs = value_b.reshape(-1, self.each)
        known_qs = np.isfinite(value_qs) & self.valid_b.reshape(-1, self.each)
        count_q = known_qs.sum(1)
        mean_q = np.where(known_qs, value_qs, 0.0).sum(1) / np.maximum(count_q, 1)
        known = value_qs[known_qs]
        value_q = np.where(count_q > 0, mean_q, np.nan)
        if not known.size:
            if some:
                raise RunError("a measure of an evaluation has no value on any completion")
            return PromptValues.of(value_q, self.each, shares=False)
        shares = bool(np.isin(known, (0.0, 1.0)).all())
        return PromptValues.of(value_q, self.each, shares=shares, least=float(known.min()), most=float(known.max()))

    @property
    def binary(self) -> bool:
        """True if every reward is 0 or 1."""
        return bool(np.isin(self.scores.reward_b[self.valid_b], (0.0, 1.0)).all())

    def pass_at(self, k: int) -> PromptValues:
        """Return pass@k of each prompt of which at least k completions could be scored.

        Raises:
            RunError: there is no such prompt.
        """
        n_q = self.valid_b.reshape(-1, self.each).sum(1)
        c_q = (self.scores.correct_b & self.valid_b).reshape(-1, self.each).sum(1)
        enough_q = n_q >= k
        if not enough_q.any():
            raise RunError(f"pass@{k}: the reward left no prompt with {k} scored completions")
        value_q = np.full(len(n_q), np.nan)
        value_q[enough_q] = pass_at_k_each(n_q[enough_q], c_q[enough_q], k)
        return PromptValues.of(value_q, self.each, shares=True)

    def show(self, requested: Sequence[Example], count: int) -> tuple[Sample, ...]:
        """Return the first completion of each of the first `count` prompts, if it could be scored."""
        rows = range(0, min(count, len(requested)) * self.each, self.each)
        reward_b, correct_b, graded = self.scores.reward_b, self.scores.correct_b, self.scores.graded
        return tuple(
            Sample(
                example_text(example) or self.openings[row],
                self.texts[row],
                float(reward_b[row]),
                None if graded else bool(correct_b[row]),
            )
            for example, row in zip(requested, rows, strict=False)
            if self.valid_b[row]
        )


def complete(
    source: RowSource[RolloutRequest, ScoredSamples, Outcomes],
    requested: Sequence[Example],
    each: int,
    batch_rows: int,
    meter: Meter,
    *,
    greedy: bool = False,
) -> Completions:
    """Sample and score `each` completions per prompt, as many prompts at a time as `batch_rows` allows.

    Raises:
        RunError: no completion could be scored.
    """
    requests = [RolloutRequest(number, number, example, each) for number, example in enumerate(requested)]
    at_once = max(1, batch_rows // each)
    parts: list[Outcomes] = []
    for start in range(0, len(requests), at_once):
        parts.append(source.outcomes(requests[start : start + at_once], greedy=greedy))
        meter.add(len(parts[-1]))
    return _checked(Outcomes.join(parts), each)


NONE_BETTER = (
    "Completions are compared with others, and none of these is better than another. Evaluate on more prompts "
    "(eval.final_prompts), or on one completion of each, which is compared with none (eval.samples: 1)"
)


def _checked(found: Outcomes, each: int) -> Completions:
    """Return the completions, with a mask of those that could be scored."""
    scores, (lengths, late) = found.scores, (found.lengths, found.truncated)
    valid_b = ErrorPolicy("drop_row").apply(scores, np.arange(len(found)) // each)
    if not valid_b.any():
        what = f"None of the {len(found)} completions could be scored. "
        raise RunError(what + (f"For instance {scores.problems[0]}" if scores.problems else NONE_BETTER))
    return Completions(
        found.texts, np.array(lengths, float), np.array(late, float), scores, valid_b, each, found.openings
    )


class Meter:
    """Counts completions for the progress callback."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def add(self, count: int) -> None:
        """Add `count` completions and report the progress."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)


def example_text(example: Example) -> str:
    """Return the prompt as one text: chat messages as `role: content` lines."""
    return prompt_text(example.prompt)
