"""Events of a run, and the listeners that are told of them.

The loop only tells; writing files, drawing and judging are done by listeners. An event is told to every listener before
the next one: first to the run's own record, then to the display, then to added listeners in the order in which they
were given, and last to the health report, whose findings are events of their own.
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
    """One prompt with a completion of the policy; of an evaluation the greedy one where it was sampled.

    `correct` is None where the reward is graded, so that there is no right and wrong.
    """

    prompt: str
    completion: str
    reward: float
    correct: bool | None

    def without_mark(self) -> Sample:
        """Return it as neither right nor wrong."""
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
    """Whether the policy takes actions, and writes no tokens."""


@dataclass(frozen=True)
class PhaseBegan:
    """A phase of `total` steps begins, or continues after `done` of them; of an evaluation they are prompts."""

    name: str
    total: int
    done: int = 0


@dataclass(frozen=True)
class PhaseEnded:
    """A phase ends: it is over, the run is to stop, or an error ends it."""

    name: str


@dataclass(frozen=True)
class Progress:
    """An evaluation has sampled `done` of `total` completions."""

    done: int
    total: int


@dataclass(frozen=True)
class RolloutScored:
    """The rollout of a step is scored and its advantages are known; its update is made."""

    step: int
    table: Callable[[], pa.Table]
    """Make the table that `rollouts/` stores: one row per completion, or per row of an episode. This takes a while."""


@dataclass(frozen=True)
class StepEnded:
    """A step of a phase ends; `record` is its line of metrics.jsonl."""

    phase: str
    step: int
    record: JsonMapping
    samples: tuple[Sample, ...] | None = None
    """A few completions of the step; None where it samples none."""


@dataclass(frozen=True)
class EvaluationEnded:
    """An evaluation on held-out prompts ends; `record` is its line of metrics.jsonl."""

    step: int
    when: Literal["before", "between", "after"]
    """Whether it was made before, between or after the steps of training."""
    record: JsonMapping
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class FindingChanged:
    """The health report has a finding that is new, reads differently, or no longer holds."""

    finding: RunFinding
    change: Literal["new", "changed", "over"]
    """Whether it begins to hold (again, perhaps), has other numbers or another severity, or no longer holds."""


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
    """A run ends: it is finished, it was interrupted, or `error` ended it."""

    folder: Path
    phase: str
    step: int
    before: EvaluationEnded | None = None
    after: EvaluationEnded | None = None
    """The evaluation after training; None where the run did not finish."""
    verdict: str = ""
    """What a finished run came to, in one sentence."""
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
    """Base class of what is told of a run's events: each method does nothing until it is overridden."""

    def begin(self, event: RunBegan) -> None:
        """Hear that the run begins, or where it continues."""

    def phase_begin(self, event: PhaseBegan) -> None:
        """Hear that a phase begins."""

    def phase_end(self, event: PhaseEnded) -> None:
        """Hear that a phase ends."""

    def progress(self, event: Progress) -> None:
        """Hear how far an evaluation is."""

    def rollout(self, event: RolloutScored) -> None:
        """Hear of the completions of a step, before its record."""

    def step(self, event: StepEnded) -> None:
        """Hear of a step and its metrics."""

    def evaluation(self, event: EvaluationEnded) -> None:
        """Hear of an evaluation and its metrics."""

    def finding(self, event: FindingChanged) -> None:
        """Hear of a change of the health report."""

    def message(self, event: UserMessage) -> None:
        """Hear a sentence for the user."""

    def checkpoint(self, event: CheckpointWritten) -> None:
        """Hear that a checkpoint is on disk."""

    def end(self, event: RunEnded) -> None:
        """Hear how the run ended."""


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
"""By kind of event the method of a listener that is told of it."""
