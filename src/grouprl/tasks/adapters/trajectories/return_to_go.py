"""Returns to go: observations that also show what is still to be earned, in stored trajectories and in episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.array_spaces import zeros
from grouprl.envs.async_methods import awaited, close
from grouprl.envs.environment import ArrayObservation, Environment, Observation, Step
from grouprl.protocols import ActionSpace, ArraySpace, Box, DictSpace, Discrete, MultiDiscrete, Spaces
from grouprl.records.examples import Example
from grouprl.records.offline import BEFORE, TO_GO, StoredEpisode

SEEN = "seen"
"""Entry of an observation that is a single array by itself."""


def asking_spaces(spaces: Spaces) -> Spaces:
    """Return the spaces whose observations also show the return to go and the action before.

    Raises:
        InputError: the environment has an array of one of these names, or takes chains of actions.
    """
    own = spaces.observation.spaces if isinstance(spaces.observation, DictSpace) else {SEEN: spaces.observation}
    if {TO_GO, BEFORE} & own.keys() or spaces.chain > 1:
        raise InputError(
            f"observations named {sorted(own)}, {spaces.chain} actions in a row",
            f"the entries {TO_GO} and {BEFORE} are added to an observation, one for each action",
            "Leave task.target out",
        )
    added: dict[str, ArraySpace] = {TO_GO: Box((1,)), BEFORE: _before(spaces.action)}
    return replace(spaces, observation=DictSpace({**own, **added}))


def asking_episode(row: StoredEpisode, spaces: Spaces, scale: float) -> StoredEpisode:
    """Return a stored trajectory with R_t = Σ_{k≥t} r_k in units of `scale` and a_{t-1} in its observations.

    `spaces` are those of the environment. After the last action nothing is to go.
    """
    own = row.observations if isinstance(row.observations, Mapping) else {SEEN: row.observations}
    going_t1 = np.append(returns_to_go(row.rewards), 0.0) / scale
    acts = [None, *row.actions]
    before = np.stack([_shown(spaces.action, action) for action in acts])
    return replace(row, observations={**own, TO_GO: going_t1[:, None].astype(np.float32), BEFORE: before})


def returns_to_go(reward_t: np.ndarray) -> np.ndarray:
    """Return Σ_{k≥t} r_k for each action, [T]."""
    found: np.ndarray = reward_t[::-1].cumsum()[::-1]
    return found


def return_scale(rows: Sequence[StoredEpisode]) -> float:
    """Return the largest magnitude of a return to go in some trajectories; 1 if nothing was ever earned."""
    return max((float(np.abs(returns_to_go(row.rewards)).max()) for row in rows), default=0.0) or 1.0


@dataclass
class AskedEpisode:
    """An episode of an environment that is asked for a return: its observations show how much of it is still to go.

    Args:
        inner: the environment's episode.
        spaces: the environment's own spaces.
        target: the return that is asked for.
        scale: the unit of returns to go.
    """

    inner: Environment
    spaces: Spaces
    target: float
    scale: float

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin the episode: all of the target is to go, and no action was before."""
        self._to_go = self.target
        return self._asked(awaited(self.inner.reset(example, seed)), None)

    def step(self, action: object) -> Step:
        """Act; what was earned is no longer to go."""
        step: Step = awaited(self.inner.step(cast("str", action)))
        self._to_go -= float(step.reward)
        return replace(step, observation=cast("Observation", self._asked(step.observation, action)))

    def score(self) -> dict[str, float]:
        """Return the environment's own components."""
        found: dict[str, float] = awaited(self.inner.score())
        return found

    def close(self) -> None:
        """Release the environment."""
        close(self.inner)

    def _asked(self, shown: object, action: object) -> ArrayObservation:
        whole = shown if isinstance(shown, ArrayObservation) else ArrayObservation(shown)
        own = whole.values if isinstance(self.spaces.observation, DictSpace) else {SEEN: whole.values}
        to_go = np.array([self._to_go / self.scale], np.float32)
        added = {TO_GO: to_go, BEFORE: _shown(self.spaces.action, action)}
        return replace(whole, values={**cast("Mapping[str, object]", own), **added})


def _before(space: ActionSpace) -> ArraySpace:
    """Return the space of the action before, where a number of its own stands for none."""
    if isinstance(space, Discrete):
        return Discrete(space.count + 1)
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(tuple(count + 1 for count in space.counts))
    return Box(space.shape, dtype=space.dtype)


def _shown(space: ActionSpace, action: object) -> np.ndarray:
    """Return an action as a value of `_before`; None is the action before the first."""
    if action is not None:
        return np.asarray(action, space.dtype)
    if isinstance(space, Discrete):
        return np.asarray(space.count, space.dtype)
    return np.asarray(space.counts, space.dtype) if isinstance(space, MultiDiscrete) else np.asarray(zeros(space))
