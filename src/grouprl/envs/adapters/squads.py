"""PettingZoo's parallel environments without text: every agent reads arrays and acts with numbers or arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.adapters.gymnasium_spaces import MASK, arrays_of, spaces_of
from grouprl.envs.environment import ArrayObservation
from grouprl.envs.joint_world import JointStep
from grouprl.protocols import Spaces

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

    from grouprl.records.examples import Example


class PettingZooWorld:
    """An episode of a parallel PettingZoo environment.

    The example's column `seed` determines how it begins, the seed of `begin` what happens by chance afterwards. Agents
    that are missing from its observations are dead or not there yet.

    Args:
        make: returns the environment.
        rounds: rounds after which the episode is cut off.
        success: the lowest mean return of the agents of a correct episode; None: it is only rewarded.
    """

    def __init__(self, make: Callable[[], ParallelEnv], *, rounds: int, success: float | None = None) -> None:
        self._env, self._rounds, self._success = make(), rounds, success
        self.agents = tuple(self._env.possible_agents)
        self.spaces = shared_spaces(self._env)
        self._round, self._total = 0, 0.0

    def begin(self, example: Example, seed: int) -> Mapping[str, object]:
        """Begin the episode. Raises InputError if the example has no seed."""
        if "seed" not in example.columns:
            raise InputError(f"Example '{example.id}' has no column 'seed'", "it says how the episode begins")
        from gymnasium.utils.seeding import np_random

        found, infos = self._env.reset(seed=int(example.columns["seed"]))
        if hasattr(self._env.unwrapped, "np_random"):
            self._env.unwrapped.np_random = np_random(seed)[0]
        return {agent: self._shown(agent, found[agent], infos.get(agent, {})) for agent in self._env.agents}

    def act(self, actions: Mapping[str, int | np.ndarray]) -> JointStep:
        """Let the agents act at once."""
        told = {agent: self._fitted(agent, action) for agent, action in actions.items()}
        found, rewards, ended, cut, infos = self._env.step(told)
        self._round += 1
        self._total += sum(map(float, rewards.values()))
        living, late = list(self._env.agents), self._round >= self._rounds
        seen = {agent: self._shown(agent, found[agent], infos.get(agent, {})) for agent in found}
        finals = {
            agent: seen[agent]
            for agent in actions
            if (cut.get(agent) and not ended.get(agent)) or (late and agent in living)
        }
        going = {} if late else {agent: seen[agent] for agent in living}
        return JointStep(going, {agent: float(reward) for agent, reward in rewards.items()}, finals)

    def correct(self) -> float | None:
        """Return whether the agents' mean return is a success."""
        return None if self._success is None else float(self._total / len(self.agents) >= self._success)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _shown(self, agent: str, found: object, info: Mapping[str, object]) -> ArrayObservation:
        values, mask = arrays_of(self._env.observation_space(agent), found)
        return ArrayObservation(values, info.get(MASK) if mask is None else mask)

    def _fitted(self, agent: str, action: object) -> object:
        space = self._env.action_space(agent)
        fitted = np.asarray(action).astype(space.dtype).reshape(space.shape) + getattr(space, "start", 0)
        return fitted if space.shape else int(fitted)


class _OfAgent:
    """The spaces of one agent, named as a Gymnasium environment's are."""

    def __init__(self, env: ParallelEnv, agent: str) -> None:
        self.observation_space, self.action_space = env.observation_space(agent), env.action_space(agent)


def shared_spaces(env: ParallelEnv) -> Spaces:
    """Return the spaces of every agent.

    Raises:
        InputError: the agents' spaces differ, or their values are not arrays of numbers.
    """
    found = {agent: spaces_of(agent, _OfAgent(env, agent)) for agent in env.possible_agents}
    first = env.possible_agents[0]
    for agent, spaces in found.items():
        if spaces != found[first]:
            raise InputError(
                f"the agents {first} and {agent} have the spaces {found[first]} and {spaces}",
                "agents are rows of one policy, so their spaces must be equal",
                "Pad them, as supersuit's pad_observations_v0 and pad_action_space_v0 do",
            )
    return found[first]
