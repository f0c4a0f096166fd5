"""Rows that are stored trajectories of arrays; evaluations play whole episodes in the task's environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.batch import SOURCES
from grouprl.envs.environment import ArrayObservation
from grouprl.protocols import EntropyScaling
from grouprl.records.offline import StoredEpisode, StoredRows
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import ScoredSamples
from grouprl.rollout.episodes import score_type
from grouprl.rollout.offline_rows import named_components, refuse_sampling, stored_refusals
from grouprl.rollout.vectors.lanes import Segment
from grouprl.rollout.vectors.segments import scored_segments
from grouprl.rollout.vectors.vector_episodes import VectorEpisodes
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.config.run import Config


class StoredEpisodes(VectorEpisodes):
    """Source of the stored trajectories of a task's prompts, with their stored rewards."""

    samples = False

    @classmethod
    def refusals(cls, config: Config, task: Task, looked_at: Sequence[object]) -> list[str]:
        """Say why a run on stored trajectories cannot work."""
        assert isinstance(task, StoredRows)
        found = stored_refusals(config, task, looked_at)
        spaces = task.spaces
        if spaces is not None and spaces.chain > 1:
            found.append(f"'{task.name}' with chains of actions, which stored trajectories do not have")
        if len(task.agents) > 1:
            found.append(f"'{task.name}' with several agents: a stored trajectory is that of one")
        return found

    @classmethod
    def components_of(cls, task: Task, looked_at: Sequence[object]) -> tuple[str, ...]:
        """Return the components that are stored with the trajectories of a few prompts."""
        assert isinstance(task, StoredRows)
        rows = [row for example in looked_at for row in task.stored_rows(example)]
        return ("turn_rewards", *named_components(rows), "return")

    def rows(
        self,
        requests: Sequence[RolloutRequest],
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> ScoredSamples:
        """Return every stored trajectory of the requested prompts; old log-probs have to be scored by the policy.

        Those whose log-probs are known have the source 'replay', others 'demonstration'.

        Raises:
            InputError: something is to be sampled (`refuse_sampling`).
        """
        refuse_sampling(self.task.name, requests, greedy or scaling is not None)
        assert isinstance(self.task, StoredRows)
        assert self.task.spaces is not None
        found = [(r, n, row) for r in requests for n, row in enumerate(self.task.stored_rows(r.example))]
        which = [(request, number) for request, number, _ in found]
        segments = [segment_of(row, self.settings.seeds.of_actions(r.index, n)) for r, n, row in found]
        samples = scored_segments(which, segments, self.task.spaces, self.settings, score_type(self.policy))
        known_b = np.array([row.behavior_logp is not None for _, _, row in found])
        samples = replace(
            samples,
            source_b=np.where(known_b, SOURCES["replay"], SOURCES["demonstration"]).astype(np.int64),
            foreign_b=np.ones(len(found), dtype=bool),
        )
        return self._admitted(samples) if count_failures else samples


def segment_of(row: StoredEpisode, seed: int) -> Segment:
    """Return a stored trajectory as the segment that would have been played."""
    steps = range(len(row))
    return Segment(
        seed,
        row.context,
        [ArrayObservation(_at(row.observations, t), None if row.legal is None else row.legal[t]) for t in steps],
        [int(action) if action.ndim == 0 else action for action in map(np.asarray, row.actions)],
        [None] * len(row),
        [0.0] * len(row) if row.behavior_logp is None else row.behavior_logp.tolist(),
        [0.0] * len(row),
        row.rewards.tolist(),
        ArrayObservation(_at(row.observations, len(row)), row.final_legal),
        "terminated" if row.terminated else "truncated",
        True,
        float(row.rewards.sum()),
        {**row.components, "correct": float(bool(row.correct))},
        judged=row.correct is not None,
    )


def _at(observations: np.ndarray | Mapping[str, np.ndarray], place: int) -> object:
    """Return the observation at a place, by name for named arrays."""
    if isinstance(observations, Mapping):
        return {name: values[place] for name, values in observations.items()}
    return observations[place]
