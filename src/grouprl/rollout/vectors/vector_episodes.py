"""Rows that are episodes over arrays, or chains of actions by a policy's own dynamics."""

from __future__ import annotations

from collections.abc import Sequence

from grouprl.core.errors import InputError
from grouprl.envs.array_spaces import numbers
from grouprl.protocols import EntropyScaling, Spaces
from grouprl.rollout.episodes import Episodes, Start
from grouprl.rollout.played_rows import PlayedRows
from grouprl.rollout.vectors.array_episodes import play_arrays
from grouprl.tasks.task import Task


class VectorEpisodes(PlayedRows):
    """Source of episodes that a policy over arrays plays in environments with `grouprl.protocols.Spaces`."""

    text, spans = False, False

    @classmethod
    def spaces_of(cls, task: Task) -> Spaces | None:
        """Return the observation and action spaces of the task's environments."""
        return task.spaces

    @classmethod
    def canary(cls, policy: object) -> None:
        """Return no rows: a policy over arrays acts and scores by one distribution."""
        return

    def _play(self, starts: Sequence[Start], *, greedy: bool, scaling: EntropyScaling | None) -> Episodes:
        if scaling is not None:
            raise InputError(
                "the temperature of actions over arrays cannot follow their entropy",
                "only tokens can be sampled with such a rule",
                "Remove the sampling rule",
            )
        assert self.task.spaces is not None
        return play_arrays(
            self.sampler,
            self.task.environment,
            starts,
            spaces=self.task.spaces,
            max_turns=self.task.max_turns,
            greedy=greedy,
            stage=self.stage,
        )


def numbers_of_episode(task: Task) -> int:
    """Return how many numbers the observations of an episode of maximal length hold; 0 if they are not arrays."""
    spaces = task.spaces
    return (
        0 if spaces is None else task.max_turns * spaces.chain * numbers(spaces.observation) + numbers(spaces.context)
    )
