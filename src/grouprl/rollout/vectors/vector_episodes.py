"""Rows that are episodes of arrays, or chains that a policy takes by its own dynamics."""

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
    """Lets a policy over arrays act in environments that have `grouprl.protocols.Spaces`."""

    text = False

    @classmethod
    def spaces_of(cls, task: Task) -> Spaces | None:
        """Return what the task's environments show and are acted on with."""
        return task.spaces

    def _play(self, starts: Sequence[Start], *, greedy: bool, scaling: EntropyScaling | None) -> Episodes:
        if scaling is not None:
            raise InputError(
                "the temperature of an action over arrays is to follow its entropy",
                "only tokens are sampled so",
                "Leave out the sampling rule",
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
    """Return how many numbers the observations of a longest episode are; 0 where they are no arrays."""
    spaces = task.spaces
    return (
        0 if spaces is None else task.max_turns * spaces.chain * numbers(spaces.observation) + numbers(spaces.context)
    )
