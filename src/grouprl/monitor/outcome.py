"""The outcome of a run in one sentence: a comparison of held-out numbers before and after training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grouprl.core.json_types import JsonMapping
from grouprl.evaluation.gain import recorded_gain
from grouprl.evaluation.pass_at_k import Estimate

MEASURES = (
    *(("eval/pair_accuracy", "pair accuracy"), ("eval/pass@1", "sampled pass@1"), ("eval/greedy", "greedy pass@1")),
    ("eval/reward", "mean reward"),
)
"""Measures for a verdict, of which the first evaluated one counts; where `mean_first`, from the last one on."""

ROUNDING = 1e-9
"""Share of a measure by which it may differ where nothing has changed: sums of the same returns in another order."""
TRUE = ("eval/reward/gold", "true reward (gold)")
"""The measure for a verdict where the reward itself only compares completions of a group."""
COMPARED = (
    "No gain can be shown: the reward is how often a completion is preferred in its own group, and its mean stays near "
    "one half. Beside a judge, reward.gold measures another."
)
"""The verdict where nothing else is measured."""
PROPORTIONAL = "That is neither a gain nor a loss: the method samples in proportion to rewards."
"""Added to the numbers of a verdict where the mean reward is not optimised."""


@dataclass(frozen=True)
class Verdict:
    """The kind of a verdict, and a sentence that states it with its numbers."""

    kind: Literal["learned", "worse", "unclear", "unfinished"]
    words: str


def mean_first(record: JsonMapping) -> bool:
    """Return whether the mean reward of an evaluation says more than its shares: of graded rewards, and of returns."""
    return bool(record.get("eval/graded") or record.get("eval/returns"))


def verdict(before: JsonMapping, after: JsonMapping, steps: int | None = None) -> Verdict:
    """Compare the first and the last evaluation of a run, both of the same held-out prompts.

    `steps` is the number of training steps between them, if known.
    A run learned (or got worse) if the 95 % interval of the difference lies above (or below) 0.
    """
    if not before or not after:
        return Verdict("unfinished", "Not finished: there is no evaluation after training yet.")
    if steps == 0:
        return Verdict("unfinished", "Nothing was trained: the run has no steps.")
    compared = bool(after.get("eval/compared"))
    measures = (TRUE,) if compared else MEASURES[::-1] if mean_first(after) else MEASURES
    found = [(name, label, recorded_gain(before, after, name)) for name, label in measures]
    for name, label, gain in found:
        if gain is not None and before.get(name) is not None:
            numbers = f"held-out {label} {before[name]:.2f} → {after[name]:.2f}, difference {_signed(gain.value)}"
            numbers += f" [{_signed(gain.low)}, {_signed(gain.high)}]"
            if after.get("eval/proportional"):
                return Verdict("unclear", f"{numbers[0].upper()}{numbers[1:]}. {PROPORTIONAL}")
            return _judge(gain, numbers, ROUNDING * max(abs(before[name]), abs(after[name])))
    if compared:
        return Verdict("unclear", COMPARED)
    return Verdict("unfinished", "The evaluations before and after have no measure with intervals in common.")


def _signed(value: float) -> str:
    """Return a difference with its sign and two decimals; what rounds to zero is +0.00."""
    return f"{round(value, 2) + 0.0:+.2f}"


def _judge(gain: Estimate, numbers: str, rounding: float) -> Verdict:
    if gain.low > rounding:
        return Verdict("learned", f"Learned: {numbers}.")
    if gain.high < -rounding:
        return Verdict("worse", f"Got worse: {numbers}.")
    return Verdict("unclear", f"No gain shown: {numbers}; the 95 % interval of the difference includes 0.")
