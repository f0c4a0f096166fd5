"""Rows that are segments of environments which continue from step to step (`grouprl.rollout.vectors.lanes`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from grouprl.core.errors import InputError
from grouprl.core.json_types import State
from grouprl.core.spans import span
from grouprl.envs.array_spaces import spelt, zeros
from grouprl.envs.environment import ArrayObservation
from grouprl.policy.vectors.array_inputs import ArrayInputs
from grouprl.protocols import EntropyScaling, Spaces
from grouprl.records.episode_records import ENDINGS, SAMPLES, Record, Turn
from grouprl.records.requests import RolloutRequest
from grouprl.records.rollout import Rollout
from grouprl.records.samples import ScoredSamples
from grouprl.rewards.contract import Failure
from grouprl.rewards.scoring import score
from grouprl.rollout.episode import LATE
from grouprl.rollout.row_settings import Rows, rows_of, sample_id
from grouprl.rollout.scored_rows import scored_samples
from grouprl.rollout.vectors.array_episodes import masks_of, stacked
from grouprl.rollout.vectors.lanes import Action, Beginning, Lane, LaneStep, Segment, collect
from grouprl.rollout.vectors.vector_episodes import VectorEpisodes
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.config.run import Config

STRIDE = 1_000_003
"""Distance in the training split between the prompts of successive episodes that begin in one lane and step."""


class LaneRows(VectorEpisodes):
    """Source of segments for training: each requested completion is a lane, which takes `task.horizon` actions.

    The n-th completion that a step requests is always the same lane. Evaluations and probes play whole episodes.
    Environments of lanes run in this process, without a clock.
    """

    _carried: list[Lane] | None = None

    @property
    def lanes(self) -> list[Lane]:
        """The environments in play, in the order of the completions that a step requests."""
        self._carried = [] if self._carried is None else self._carried
        return self._carried

    @classmethod
    def refusals(cls, config: Config, task: Task, looked_at: Sequence[object]) -> list[str]:
        """Say that lanes need steps in order, environments that see every action, and one completion per prompt."""
        found = []
        if config.run.async_steps:
            found.append("task.horizon with run.async_steps: environments continue from step to step, in order")
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
        horizon, rows = self.task.actions_per_step, rows_of(requests)
        assert horizon is not None
        self.lanes.extend([self._lane() for _ in range(len(rows) - len(self.lanes))])
        places = [self._place(lane, *row) for lane, row in zip(self.lanes, rows, strict=False)]
        with self.watch("rollout"), span("environments"), self.sampler.session() as session:
            collect(places, session, horizon, self.task.max_turns)
        return self._admitted(self._scored(rows, places))

    def state(self) -> State:
        """Return how the episode of each lane began, and its actions."""
        return {"lanes": [lane.state() for lane in self.lanes]}

    def restore(self, state: State) -> None:
        """Rebuild the episodes of `state`. Raises RunError if an environment is not reproducible."""
        self.lanes.clear()
        for one in state.get("lanes", []):
            self.lanes.append(self._lane())
            self.lanes[-1].restore(one)

    def close(self) -> None:
        """Close the environments of the lanes, and the processes that run those of evaluations."""
        for lane in self.lanes:
            lane.stop()
        super().close()

    def _lane(self) -> Lane:
        return Lane(self.task.environment, self._spaces, lambda index: self.task.example("train", index))

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
        found = [segment for _, segment in segments]
        names = [sample_id(request.example.id, n) for request, n in which]
        verdicts = [_verdict(segment, self.settings.correct_at) for segment in found]
        graded = not any("correct" in segment.components for segment in found if segment.finished)
        scores = score(
            _stated,
            [""] * len(found),
            [{"verdict": v} for v in verdicts],
            ids=names,
            correct_at=self.settings.correct_at,
        )
        total_b = np.array([segment.total for segment in found])
        scores = replace(scores, components={**scores.components, "return": total_b}, graded=graded)
        samples = scored_samples(which, self._rollout(found), scores, self.settings.foreign_b(which))
        return replace(
            samples,
            valid_b=scores.ok_b & np.array([bool(segment.actions) for segment in found]),
            extras={**samples.extras, **_extras(which, found)},
            records=tuple(_record(segment) for segment in found),
        )

    def _rollout(self, segments: Sequence[Segment]) -> Rollout:
        spaces, width = self._spaces, max(1, *(len(segment.actions) for segment in segments))
        nothing = ArrayObservation(zeros(spaces.observation))
        idle: Action = np.asarray(zeros(spaces.action))
        states = [segment.states or [nothing] for segment in segments]
        inputs = ArrayInputs.of(
            [stacked([state.values for state in each]) for each in states],
            [np.stack([np.asarray(action) for action in segment.actions or [idle]]) for segment in segments],
            context_b=[segment.context or zeros(spaces.context) for segment in segments],
            legal_bta=[masks_of(each) for each in states],
            final_b=[nothing.values if segment.final is None else segment.final for segment in segments],
            seed_b=[segment.seed for segment in segments],
        )
        return Rollout(
            inputs,
            logp_bt=torch.from_numpy(padded([s.logp for s in segments], width)).float(),
            entropy_bt=torch.from_numpy(padded([s.entropy for s in segments], width)).float(),
            truncated_b=torch.tensor([segment.ended in LATE for segment in segments]),
        )


def padded(rows: Sequence[Sequence[float]], width: int) -> np.ndarray:
    """Return rows of numbers as float64 [B,width], 0 beyond their ends."""
    out_bt = np.zeros((len(rows), width))
    for row, values in enumerate(rows):
        out_bt[row, : len(values)] = values
    return out_bt


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


def _verdict(segment: Segment, correct_at: float) -> dict[str, float] | Failure:
    """Return the components of a segment's reward: those of its actions, and of the episode where it ends."""
    if segment.failure is not None:
        return segment.failure
    if segment.finished:
        return {"turn_rewards": sum(segment.rewards), **segment.components}
    return {"turn_rewards": sum(segment.rewards), "correct": 0.0}


def _stated(completion: str, *, verdict: object) -> object:
    """Return the environment's own score of a segment."""
    return verdict


def _extras(which: Rows, segments: Sequence[Segment]) -> dict[str, np.ndarray]:
    """Return the Batch fields of segments by name: each action is a turn."""
    length_b = np.array([len(segment.actions) for segment in segments])
    width = max(1, int(length_b.max()))
    mask_bt = np.arange(width) < length_b[:, None]
    ordinal_b = np.array([request.ordinal for request, _ in which], dtype=np.int64)
    number_b = np.array([number for _, number in which], dtype=np.int64)
    nobody_b = np.zeros(len(which), dtype=np.int64)
    return {
        "mask_bt": mask_bt,
        "turn_bt": np.where(mask_bt, np.arange(width), -1),
        "turn_reward_bs": padded([segment.rewards for segment in segments], width),
        "state_bs": np.full(mask_bt.shape, -1),
        "valid_bs": mask_bt,
        "agent_b": nobody_b,
        "keys.ended": np.array([ENDINGS.index(segment.ended) for segment in segments], dtype=np.int64),
        "keys.prompt": ordinal_b,
        "keys.episode": ordinal_b * SAMPLES + number_b,
        "keys.context": nobody_b,
        "keys.caller": np.full(len(which), -1),
        "keys.luck": number_b,
    }


def _record(segment: Segment) -> Record:
    """Return a segment as the turns that a reader sees."""
    after = [*(state.values for state in segment.states[1:]), segment.final]
    turns = zip(segment.actions, segment.rewards, after, strict=False)
    return Record(
        "",
        segment.ended,
        tuple(Turn(n, "", spelt(action), reward, seen=spelt(seen)) for n, (action, reward, seen) in enumerate(turns)),
    )
