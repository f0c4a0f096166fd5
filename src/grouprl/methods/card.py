"""The card of a method: everything a reader needs in order to trust it, as data.

Command-line help, `docs/methods/`, and the tests of golden values and reductions are generated from cards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Confidence = Literal["verified", "partly", "abstract-only"]


@dataclass(frozen=True)
class Paper:
    """A paper, by title and arXiv number (or another reference)."""

    title: str
    arxiv: str = ""
    year: int = 0

    def __str__(self) -> str:
        where = f" (arXiv:{self.arxiv})" if self.arxiv else ""
        return f"{self.title}{where}" + (f", {self.year}" if self.year else "")


@dataclass(frozen=True)
class Golden:
    """A hand-computed example: rewards and log-ratios in, advantages, loss and gradient out.

    Rows have `lengths` tokens, by default one each; `log_ratio` (ragged, one number per token, default 0) is
    logp - old_logp; old log-probs are -1 everywhere. `fields` holds further [B] or ragged [B,T] batch fields by name.
    `grad` is dLoss/dlogp, ragged; of a method that reads outputs of whole rows (`row_outputs.…` of `fields`) dLoss/d
    of each, in their order; of a value learner, log-probs stand for the values of actions.
    `advantage` is one number per row or ragged per token. Fields that are None are not checked.
    """

    rewards: Sequence[float]
    lengths: Sequence[int] = ()
    groups: Sequence[int] | None = None
    log_ratio: Sequence[Sequence[float]] | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    advantage: Sequence[object] | None = None
    loss: float | None = None
    grad: Sequence[Sequence[float]] | None = None
    why: str = ""
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if not self.lengths:
            object.__setattr__(self, "lengths", [1] * len(self.rewards))


Condition = Literal[
    "always",
    "on_policy",
    "equal_lengths",
    "one_group",
    "binary_rewards",
    "mixed_groups",
    "two_completions",
    "one_token_turns",
    "all_sampled",
    "no_turn_rewards",
    "one_turn",
    "distinct_states",
    "all_valid",
    "equal_durations",
    "known_worth",
    "format_alone",
    "accuracy_alone",
    "one_agent",
    "no_opponents",
    "one_data_group",
    "one_strategy",
    "all_apart",
    "none_prefixed",
    "no_penalty",
    "same_values",
]


@dataclass(frozen=True)
class Reduction:
    """A limit in which this method equals another, checked by a test.

    With `settings` of this method and `other` settings of the method `to`, on batches for which all `when` hold, the
    gradients are equal up to the factor `scale` (None: up to any positive factor per batch).
    """

    to: str
    when: Sequence[Condition] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    other: Mapping[str, object] = field(default_factory=dict)
    scale: float | None = 1.0
    why: str = ""


@dataclass(frozen=True)
class Card:
    """Description of a catalogue entry."""

    title: str
    summary: str
    formula: str
    papers: Sequence[Paper] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Origin of each setting's default."""
    differs: Sequence[str] = ()
    """Each departure from the paper, or one sentence that none is known."""
    reduces: Sequence[Reduction] = ()
    needs: Sequence[str] = ()
    """Requirements on a run, as sentences."""
    confidence: Confidence = "verified"
    uncertain: str = ""
    """Claims that could not be verified (required unless confidence is 'verified')."""
    source: str = ""
    """Sources against which the formula was checked."""
    golden: Sequence[Golden] = ()
    notes: Sequence[str] = ()
    recommended: Mapping[str, object] = field(default_factory=dict)
    """Run settings the paper uses (learning rate, group size …), as information."""
    run: Sequence[str] = ()
    """Changes to the recipe 'addition' without which the method cannot train, such as its task: ("task=words",)."""
    first: str = ""
    """A command that makes what these changes name, such as a teacher's folder; '' if they name nothing of the kind."""
