"""PettingZoo's parallel environments without text: every agent reads arrays and acts with numbers or arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from grouprl.core.errors import InputError, shortened
from grouprl.core.json_types import JsonMapping
from grouprl.envs.adapters.common_spaces import agent_names, common_spaces, padded
from grouprl.envs.adapters.gymnasium_calls import closed_if_refused, flag, one_number, reset_by
from grouprl.envs.adapters.gymnasium_spaces import MASK, own_action, reader_of, spaces_of
from grouprl.envs.environment import ArrayObservation
from grouprl.envs.joint_world import JointStep
from grouprl.protocols import Box, Discrete, Spaces

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv

    from grouprl.records.examples import Example


RETURNS = {
    "reset": "observations and infos",
    "step": "observations, rewards, terminations, truncations and infos",
}
"""The values that each method of a parallel environment returns."""


class PettingZooWorld:
    """An episode of a parallel PettingZoo environment.

    The example's column `seed` determines how it begins, the seed of `begin` what happens by chance afterwards. Agents
    that are missing from its observations are dead or not there yet. Agents with smaller spaces than others have zeros
    at the end of their observations, and a mask of the actions that they have.

    Args:
        make: returns the environment.
        rounds: rounds after which the episode is cut off.
        success: the lowest mean return of the agents of a correct episode; None: it is only rewarded.
    """

    def __init__(self, make: Callable[[], ParallelEnv], *, rounds: int, success: float | None = None) -> None:
        self._env, self._rounds, self._success = make(), rounds, success
        with closed_if_refused(self._env, "an environment"):
            self.agents = agent_names(self._env)
            self._own = agents_spaces(self._env)
            self.spaces = common_spaces(self._own)
        self._round, self._total = 0, 0.0
        self._ended: set[str] = set()

    @property
    def filled(self) -> str:
        """A sentence on what agents with smaller spaces than others are shown; '' if all have the same."""
        if all(own == self.spaces for own in self._own.values()):
            return ""
        seen, action = self.spaces.observation, self.spaces.action
        most = f"{seen.size} numbers" if isinstance(seen, Box) else "what the largest sees"
        choices = f" and {action.count} actions" if isinstance(action, Discrete) else ""
        return f"; spaces differ: each has {most}{choices}, of which what it lacks is 0 or illegal"

    def begin(self, example: Example, seed: int) -> Mapping[str, object]:
        """Begin the episode. Raises InputError if the example has no seed."""
        if "seed" not in example.columns:
            raise InputError(f"Example '{example.id}' has no column 'seed'", "it says how the episode begins")
        from gymnasium.utils.seeding import np_random

        found, infos = self._told("reset", 2, reset_by(self._env, int(example.columns["seed"])))
        if hasattr(self._env.unwrapped, "np_random"):
            self._env.unwrapped.np_random = np_random(seed)[0]
        return {agent: self._shown("reset", agent, found, infos) for agent in self._living("reset")}

    def act(self, actions: Mapping[str, int | np.ndarray]) -> JointStep:
        """Let the agents act at once."""
        told = {agent: self._fitted(agent, action) for agent, action in actions.items()}
        found, paid, ended, cut, infos = self._told("step", 5, self._env.step(told))
        for what, by_agent in {"reward": paid, "termination": ended, "truncation": cut}.items():
            self._check_names(f"returned a {what} of", by_agent)
        if lacking := [agent for agent in actions if agent not in paid]:
            raise InputError(
                f"step() returned no reward of the agent '{lacking[0]}'",
                "every agent that has acted is paid something",
                "Return 0.0 where there is none",
            )
        rewards = {agent: one_number(reward, f"reward of '{agent}'") for agent, reward in paid.items()}
        self._round += 1
        self._total += sum(rewards.values())
        over = {agent for agent in actions if _flag(ended, agent, "termination")}
        stopped = {agent for agent in actions if _flag(cut, agent, "truncation")} - over
        # Not every environment takes those that have ended off its list. One that it did take off may come back.
        listed = self._living("step")
        self._ended = (self._ended | over | stopped) & set(listed)
        living = [agent for agent in listed if agent not in self._ended]
        late = self._round >= self._rounds
        last = [agent for agent in actions if agent in stopped or (late and agent in living)]
        finals = {agent: self._shown("step", agent, found, infos) for agent in last}
        going = {} if late else {agent: self._shown("step", agent, found, infos) for agent in living}
        return JointStep(going, rewards, finals)

    def correct(self) -> float | None:
        """Return whether the agents' mean return is a success."""
        return None if self._success is None else float(self._total / len(self.agents) >= self._success)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _told(self, method: str, count: int, found: object) -> tuple[JsonMapping, ...]:
        """Return what reset() or step() returned: as many mappings by agent as it has to."""
        if not isinstance(found, tuple) or len(found) != count or not all(isinstance(each, Mapping) for each in found):
            raise InputError(
                f"{method}() returned {shortened(found)}", f"it must return {RETURNS[method]}, each by agent"
            )
        return found

    def _living(self, method: str) -> Sequence[str]:
        """Return the agents that the environment lists. Raises InputError if it never named one of them."""
        self._check_names("lets", self._env.agents, method, "act")
        return self._env.agents

    def _check_names(self, does: str, names: Iterable[object], method: str = "step", then: str = "") -> None:
        # In a list, as the names of strangers may be unhashable.
        if unknown := [name for name in names if name not in self.agents]:
            raise InputError(
                f"{method}() {does} the agent {unknown[0]!r} {then}".rstrip(),
                f"the agents are {', '.join(self.agents)}, as possible_agents names them when the environment is made",
                "Name all that an episode may have in possible_agents",
            )

    def _shown(
        self, method: str, agent: str, found: Mapping[str, object], infos: Mapping[str, object]
    ) -> ArrayObservation:
        if agent not in found:
            rule = "every agent that is alive, or that a limit has just cut off, is shown something"
            raise InputError(f"{method}() returned no observation of the agent '{agent}'", rule)
        values, mask = reader_of(self._env.observation_space(agent))(found[agent])
        info = infos.get(agent)
        if not isinstance(info, Mapping | None):
            raise InputError(
                f"{method}() returned the info {shortened(info)} of the agent '{agent}'",
                "it must be a mapping",
                "Return {} where there is nothing to tell",
            )
        return padded(self._own[agent], self.spaces, agent, values, (info or {}).get(MASK) if mask is None else mask)

    def _fitted(self, agent: str, action: object) -> object:
        return own_action(self._env.action_space(agent), np.asarray(action))


def _flag(flags: Mapping[str, object], agent: str, what: str) -> bool:
    """Return whether an agent's flag is set; an agent without one has not ended."""
    return flag(flags.get(agent, False), f"the {what} of '{agent}'")


class _OfAgent:
    """The spaces of one agent, named as a Gymnasium environment's are."""

    def __init__(self, env: ParallelEnv, agent: str) -> None:
        self.observation_space, self.action_space = env.observation_space(agent), env.action_space(agent)


def agents_spaces(env: ParallelEnv) -> dict[str, Spaces]:
    """Return the spaces of every agent.

    Raises:
        InputError: as `agent_names`, and if the agents' values are not arrays of numbers.
    """
    return {agent: spaces_of(agent, _OfAgent(env, agent)) for agent in agent_names(env)}
