"""Rows that are segments of environments which continue from step to step (`grouprl.rollout.vectors.lanes`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.core.json_types import State
from grouprl.core.spans import span
from grouprl.core.timeout import CallClock
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.protocols import EntropyScaling, Spaces
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import Rows as SampleRows
from grouprl.records.samples import ScoredSamples
from grouprl.rollout.episodes import score_type
from grouprl.rollout.row_settings import Rows, rows_of
from grouprl.rollout.vectors.lanes import Beginning, Lane, LaneStep, collect
from grouprl.rollout.vectors.segments import scored_segments
from grouprl.rollout.vectors.vector_episodes import VectorEpisodes
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.config.run import Config

STRIDE = 1_000_003
"""Distance in the training split between the prompts of successive episodes that begin in one lane and step."""


class LaneRows(VectorEpisodes):
    """Source of segments for training: each requested completion is a lane, which takes `task.horizon` actions.

    The n-th completion that a step requests is always the same lane. Evaluations and probes play whole episodes.
    Environments of lanes run in this process, in its main thread, with the clock that workers would have.
    """

    whole = "a step's actions are of one version of the weights; episodes continue with that of the next step"
    _carried: list[Lane] | None = None
    _before: State | None = None
    """The state that the lanes continue from when they are next played; None: they are in play here."""

    @property
    def lanes(self) -> list[Lane]:
        """The environments in play, in the order of the completions that a step requests."""
        self._carried = [] if self._carried is None else self._carried
        return self._carried

    @classmethod
    def refusals(cls, config: Config, task: Task, looked_at: Sequence[object]) -> list[str]:
        """Say that lanes need steps in order, environments that see every action, and one completion per prompt."""
        found = []
        if config.run.async_steps and config.run.samplers > 1:
            found.append(
                f"task.horizon with run.samplers = {config.run.samplers}: environments continue from step to step, in "
                "order. Set run.samplers to 1"
            )
        if task.spaces is not None and task.spaces.chain > 1:
            found.append("task.horizon with chains of actions: a step would end within a chain")
        if len(task.agents) > 1:
            found.append("task.horizon with several agents: their episodes are played to the end")
        return found

    def rows(
        self,
        requests: Sequence[RolloutRequest],
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> ScoredSamples:
        """Return the segments of this step; for probes, whole episodes."""
        if greedy or scaling is not None or not count_failures:
            return super().rows(requests, greedy=greedy, scaling=scaling, count_failures=count_failures)
        return self.counted(self.ahead(requests))

    def ahead(self, requests: Sequence[RolloutRequest]) -> ScoredSamples:
        """Return the segments of this step; failures are not counted."""
        horizon, rows = self.task.actions_per_step, rows_of(requests)
        assert horizon is not None
        self._continue()
        self.lanes.extend([self._lane() for _ in range(len(rows) - len(self.lanes))])
        places = [self._place(lane, *row) for lane, row in zip(self.lanes, rows, strict=False)]
        with self.watch("rollout"), span("environments"), self._clock.running(), self.sampler.session() as session:
            collect(places, session, horizon, self.task.max_turns)
        return self._scored(rows, places)

    def counted(self, samples: SampleRows) -> SampleRows:
        """Apply the error policy to segments, and let the policy observe those that are kept."""
        # Segments of a lane are not compared with each other: where one fails, the others count all the same.
        return self._admitted(samples, samples.extras["keys.episode"])

    def state(self) -> State:
        """Return how the episode of each lane began, and its actions."""
        return {"lanes": [lane.state() for lane in self.lanes]} if self._before is None else self._before

    def restore(self, state: State) -> None:
        """Continue from `state` when the lanes are next played, which may be in another process."""
        self._before = state

    def _continue(self) -> None:
        """Rebuild the episodes of a state. Raises RunError if an environment is not reproducible."""
        if self._before is None:
            return
        self.lanes.clear()
        with self._clock.running():
            for one in self._before.get("lanes", []):
                self.lanes.append(self._lane())
                self.lanes[-1].restore(one)
        self._before = None

    def close(self) -> None:
        """Close the environments of the lanes, and the processes that run those of evaluations."""
        with self._clock.running():
            for lane in self.lanes:
                lane.stop()
        super().close()

    def _lane(self) -> Lane:
        return Lane(self.task.environment, self._spaces, lambda index: self.task.example("train", index), self._clock)

    @cached_property
    def _clock(self) -> CallClock:
        return CallClock(self.stage.timeout if isinstance(self.stage, WorkerStage) else 0.0)

    @property
    def _spaces(self) -> Spaces:
        assert self.task.spaces is not None
        return self.task.spaces

    def _place(self, lane: Lane, request: RolloutRequest, number: int) -> LaneStep:
        size, seeds = self.task.size("train"), self.settings.seeds
        if request.prompt is not None or request.prefix or request.prefix_turns:
            raise InputError(
                "a request with another prompt or with a beginning", "a lane continues where it is", "Remove the part"
            )

        def beginning(begun: int) -> Beginning:
            index = request.index + (number + request.completions * begun) * STRIDE * (number + begun > 0)
            return Beginning(
                index if size is None else index % size,
                seeds.of_environment(request.ordinal, number + request.completions * begun),
            )

        temperature = request.temperature or self.settings.temperature
        return LaneStep(lane, beginning, seeds.of_actions(request.ordinal, number), temperature)

    def _scored(self, rows: Rows, places: Sequence[LaneStep]) -> ScoredSamples:
        """Arrange the segments as scored rows; the n-th segment of a request is its n-th sample."""
        segments = [(r, s) for r, place in enumerate(places) for s in place.segments]
        which = [(rows[r][0], n) for r, n in _numbered([r for r, _ in segments], rows)]
        own = [segment for _, segment in segments]
        return scored_segments(which, own, self._spaces, self.settings, score_type(self.policy))


def _numbered(row_n: Sequence[int], rows: Rows) -> list[tuple[int, int]]:
    """Return (row, number of the segment) of each segment; numbers are unique within a request."""
    seen: dict[int, int] = {}
    found = []
    for row in row_n:
        request, number = rows[row]
        count = seen.get(row, 0)
        seen[row] = count + 1
        found.append((row, number + request.completions * count))
    return found
