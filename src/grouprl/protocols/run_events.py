"""Events of a run, and the listeners that receive them.

The loop only sends events; listeners write files, draw and judge. Each event reaches every listener before the next
event is sent: first the run's own record, then the display, then added listeners in the order in which they were given,
and last the health report, whose findings are events themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from grouprl.core.finding import RunFinding
from grouprl.core.json_types import JsonMapping

if TYPE_CHECKING:
    import pyarrow as pa

Phase = Literal["warmup", "pretraining", "train", "eval"]


class Sample(NamedTuple):
    """One prompt with a completion of the policy; in an evaluation the greedy completion, if one was sampled.

    `correct` is None if the reward is graded, so that completions are neither right nor wrong.
    """

    prompt: str
    completion: str
    reward: float
    correct: bool | None

    def without_mark(self) -> Sample:
        """Return the sample with `correct` set to None."""
        return self._replace(correct=None)


@dataclass(frozen=True)
class RunBegan:
    """A run begins, or continues after `step` steps of `phase`."""

    folder: Path
    config: JsonMapping
    """Every setting, resolved."""
    phase: str
    step: int
    resumed: bool
    actions: bool = False
    """Whether the policy takes actions instead of writing tokens."""


@dataclass(frozen=True)
class PhaseBegan:
    """A phase of `total` steps begins, or continues after `done` of them; an evaluation counts prompts instead of
    steps.
    """

    name: str
    total: int
    done: int = 0


@dataclass(frozen=True)
class PhaseEnded:
    """A phase ends because it is complete, the run is to stop, or an error occurred."""

    name: str


@dataclass(frozen=True)
class Progress:
    """An evaluation has sampled `done` of `total` completions."""

    done: int
    total: int


@dataclass(frozen=True)
class RolloutScored:
    """The rollout of a step is scored, its advantages are known, and its update has been made."""

    step: int
    table: Callable[[], pa.Table]
    """Function that makes the table stored in `rollouts/`: one row per completion, or per row of an episode. It is
    slow.
    """


@dataclass(frozen=True)
class StepEnded:
    """A step of a phase ends; `record` is its line of metrics.jsonl."""

    phase: str
    step: int
    record: JsonMapping
    samples: tuple[Sample, ...] | None = None
    """A few completions of the step; None if it samples none."""


@dataclass(frozen=True)
class EvaluationEnded:
    """An evaluation on held-out prompts ends; `record` is its line of metrics.jsonl."""

    step: int
    when: Literal["before", "between", "after"]
    """The time of the evaluation: before, between or after the steps of training."""
    record: JsonMapping
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class FindingChanged:
    """The health report has a finding that is new, reads differently, or no longer holds."""

    finding: RunFinding
    change: Literal["new", "changed", "over"]
    """'new': it begins to hold, perhaps again; 'changed': its numbers or severity differ; 'over': it no longer holds.
    """


@dataclass(frozen=True)
class UserMessage:
    """A sentence for the user. It may come from another thread, at any time."""

    text: str


@dataclass(frozen=True)
class CheckpointWritten:
    """A checkpoint from which the run can continue is on disk."""

    folder: Path
    phase: str
    step: int


@dataclass(frozen=True)
class RunEnded:
    """A run ends because it is finished, it was interrupted, or `error` occurred."""

    folder: Path
    phase: str
    step: int
    before: EvaluationEnded | None = None
    after: EvaluationEnded | None = None
    """The evaluation after training; None if the run did not finish."""
    verdict: str = ""
    """The result of a finished run in one sentence."""
    remarks: tuple[str, ...] = ()
    report: Path | None = None
    error: BaseException | None = None


Event: TypeAlias = (
    RunBegan
    | PhaseBegan
    | PhaseEnded
    | Progress
    | RolloutScored
    | StepEnded
    | EvaluationEnded
    | FindingChanged
    | UserMessage
    | CheckpointWritten
    | RunEnded
)


class RunListener:
    """Base class of listeners to a run's events: each method does nothing until it is overridden."""

    def begin(self, event: RunBegan) -> None:
        """Handle the beginning of the run, or its continuation after some step."""

    def phase_begin(self, event: PhaseBegan) -> None:
        """Handle the beginning of a phase."""

    def phase_end(self, event: PhaseEnded) -> None:
        """Handle the end of a phase."""

    def progress(self, event: Progress) -> None:
        """Handle the progress of an evaluation."""

    def rollout(self, event: RolloutScored) -> None:
        """Handle the completions of a step, before its record."""

    def step(self, event: StepEnded) -> None:
        """Handle the end of a step, with its metrics."""

    def evaluation(self, event: EvaluationEnded) -> None:
        """Handle the end of an evaluation, with its metrics."""

    def finding(self, event: FindingChanged) -> None:
        """Handle a change in the health report."""

    def message(self, event: UserMessage) -> None:
        """Handle a message for the user."""

    def checkpoint(self, event: CheckpointWritten) -> None:
        """Handle a checkpoint that has been written to disk."""

    def end(self, event: RunEnded) -> None:
        """Handle the end of the run."""


METHODS: dict[type, str] = {
    RunBegan: "begin",
    PhaseBegan: "phase_begin",
    PhaseEnded: "phase_end",
    Progress: "progress",
    RolloutScored: "rollout",
    StepEnded: "step",
    EvaluationEnded: "evaluation",
    FindingChanged: "finding",
    UserMessage: "message",
    CheckpointWritten: "checkpoint",
    RunEnded: "end",
}
"""The method of a listener that handles each kind of event."""
