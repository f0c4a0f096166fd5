"""Rows that are episodes over arrays, or chains of actions by a policy's own dynamics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.environment_pool import Stage
from grouprl.policy.vectors.array_inputs import ArrayInputs
from grouprl.policy.vectors.array_policy import ArrayPolicy
from grouprl.protocols import EntropyScaling, RunSampler, Spaces
from grouprl.records.requests import RolloutRequest
from grouprl.records.samples import Rows, ScoredSamples
from grouprl.rollout.episodes import Episodes, Start
from grouprl.rollout.played_rows import PlayedRows
from grouprl.rollout.vectors.array_episodes import play_arrays
from grouprl.tasks.task import Task


class VectorEpisodes(PlayedRows):
    """Source of episodes that a policy over arrays plays in environments with `grouprl.protocols.Spaces`."""

    text, whole = False, "every episode is played to its end with the weights that it began with"

    @classmethod
    def spaces_of(cls, task: Task) -> Spaces | None:
        """Return the observation and action spaces of the task's environments."""
        return task.spaces

    @classmethod
    def canary(cls, policy: object) -> None:
        """Return no rows: a policy over arrays acts and scores by one distribution."""
        return

    def rows(
        self,
        requests: Sequence[RolloutRequest],
        *,
        greedy: bool = False,
        scaling: EntropyScaling | None = None,
        count_failures: bool = True,
    ) -> ScoredSamples:
        """Play the requested episodes and score their rows; the policy observes those to train on."""
        samples = super().rows(requests, greedy=greedy, scaling=scaling, count_failures=False)
        return self._admitted(samples) if count_failures else samples

    def counted(self, samples: Rows) -> Rows:
        """Apply the error policy to rows of another process; the policy observes those that are kept.

        It reads observations by the new statistics from the next version of the weights on, as what samples does: the
        step trains on log-probs of the function that acted.
        """
        return self._admitted(samples)

    def _admitted(self, samples: Rows, group_b: np.ndarray | None = None) -> Rows:
        kept = self._kept(samples, samples.ordinal_b if group_b is None else group_b)
        if isinstance(self.policy, ArrayPolicy) and isinstance(kept.inputs, ArrayInputs) and kept.valid_b.any():
            whole = kept.valid_b.all()
            self.policy.observe(kept.inputs if whole else kept.inputs.rows(kept.valid_b.nonzero()[0]))
        return kept

    def _play(self, starts: Sequence[Start], *, greedy: bool, scaling: EntropyScaling | None) -> Episodes:
        if scaling is not None:
            raise InputError(
                "the temperature of actions over arrays cannot follow their entropy",
                "only tokens can be sampled with such a rule",
                "Remove the sampling rule",
            )
        return play_task(self.task, self.sampler, starts, greedy=greedy, stage=self.stage)


def play_task(
    task: Task, sampler: RunSampler, starts: Sequence[Start], *, greedy: bool = False, stage: Stage | None = None
) -> Episodes:
    """Play an episode of a task over arrays for each of `starts`, all at the same time; see `play_arrays`."""
    assert task.spaces is not None
    return play_arrays(
        sampler,
        task.environment,
        starts,
        spaces=task.spaces,
        max_turns=task.max_turns,
        agents=task.agents,
        greedy=greedy,
        stage=stage,
    )
