"""PettingZoo's environments as text, turn-based or parallel: every agent has its own context."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from grouprl.core.errors import InputError
from grouprl.envs.adapters.gymnasium_calls import flag, one_number, reset_by
from grouprl.envs.environment import Observation, Step, misused
from grouprl.envs.spaces import SpaceWording, countable, number_words, spell
from grouprl.envs.success import End, Success

if TYPE_CHECKING:
    from gymnasium import Space
    from pettingzoo import AECEnv

    from grouprl.core.json_types import JsonMapping
    from grouprl.records.examples import Example

MASK = "action_mask"


class PettingZooEnvironment:
    """An episode of a turn-based PettingZoo environment; parallel ones are converted first.

    The example's column `seed` determines how the episode begins, and the seed of `reset` determines what happens by
    chance afterwards. A reward that arrives at an agent's next turn, or at its end, belongs to its latest action.
    Observations and actions are written as Gymnasium's are (`grouprl.envs.adapters.gym`); actions are numbers. Agents
    that have finished are skipped, and those of `others` choose any legal action.
    """

    def __init__(
        self,
        make: Callable[[], object],
        *,
        max_turns: int,
        instructions: str = "",
        decimals: int = 2,
        success: Success = Success(),  # noqa: B008 (it is frozen)
        invalid: float = -1.0,
        others: Sequence[str] = (),
    ) -> None:
        """Prepare an episode; see `grouprl.envs.adapters.gym.GymEnvironment`. `max_turns` is for all agents."""
        self._others, self._luck = frozenset(others), random.Random(0)
        self._make, self._max_turns, self._instructions = make, max_turns, instructions
        self._decimals, self._success, self._invalid = decimals, success, invalid
        self._env: AECEnv = None
        self._phase, self._turns = "new", 0
        self._end: End = "none"
        self._totals: dict[str, float] = {}
        self._met: set[str] = set()
        self._text, self._state = "", ""
        self._legal: tuple[str, ...] = ()

    def reset(self, example: Example, seed: int) -> Observation:
        """Begin the episode. Raises InputError if the object was used before or the example has no seed."""
        if self._phase != "new":
            raise misused("reset() was called twice")
        if "seed" not in example.columns:
            raise InputError(f"Example '{example.id}' has no column 'seed'", "it says how the episode begins")
        from gymnasium.utils.seeding import np_random

        self._env, self._phase = self._make(), "playing"
        reset_by(self._env, int(example.columns["seed"]))
        # After the reset, which is to draw the same beginning for all completions of a group.
        if hasattr(self._env.unwrapped, "np_random"):
            self._env.unwrapped.np_random = np_random(seed)[0]
        self._totals = dict.fromkeys(self._env.possible_agents, 0.0)
        self._luck = random.Random(int(example.columns["seed"]))  # the same agent begins in all completions
        self._totals.update(self._pass_on()[0])
        self._luck = random.Random(seed)
        if not self._env.agents or self._env.agent_selection in self._others:
            others = f" but {', '.join(sorted(self._others))}" if self._others else ""
            raise RuntimeError(f"the episode was over before any agent{others} acted")
        return self._seen(self._text)

    def step(self, action: str) -> Step:
        """Apply an action. Raises InputError before `reset` and after the end."""
        if self._phase != "playing":
            raise misused(f"step({action!r}) was called when no episode was under way")
        self._turns += 1
        agent = self._env.agent_selection
        taken = self._wording(agent).read(self._env.action_space(agent), action, self._legal)
        late = self._turns >= self._max_turns
        if taken is None:
            self._ends("limit" if late else "none")
            self._totals[agent] += self._invalid
            return Step(self._seen(f"!{self._text}"), self._invalid, truncated=late, valid=False)
        self._env.step(taken)
        rewards, terminated = self._pass_on()
        for name, reward in rewards.items():
            self._totals[name] += reward
        rewards = {name: reward for name, reward in rewards.items() if name not in self._others}
        over, late = not self._env.agents, self._turns >= self._max_turns
        self._ends("own" if over else "limit" if late else "none")
        late = late or (over and not terminated)
        unseen = over or self._env.agent_selection in self._others
        seen = Observation("", agent=agent) if unseen else self._seen(self._text)
        return Step(seen, terminated=over and terminated, truncated=late and not (over and terminated), rewards=rewards)

    def scores(self) -> dict[str, dict[str, float]]:
        """Return `correct` for each agent: whether its total reward is a success; see `grouprl.envs.success`."""
        totals = {agent: total for agent, total in self._totals.items() if agent not in self._others}
        return {agent: {"correct": float(self._success.reached(t, self._end))} for agent, t in totals.items()}

    def _ends(self, end: End) -> None:
        self._end, self._phase = end, "playing" if end == "none" else "ended"

    def score(self) -> dict[str, float]:
        """Return the score of the first agent."""
        return next(iter(self.scores().values()))

    def close(self) -> None:
        """Close the PettingZoo environment."""
        if self._env is not None:
            self._env.close()
        self._env, self._phase = None, "closed"

    def demonstrate(self, rng: random.Random) -> str:
        """Return a random action, which shows only how actions are spelt."""
        return self._any(rng)

    def _any(self, rng: random.Random | None = None) -> str:
        agent = self._env.agent_selection
        return self._wording(agent).any_action(self._env.action_space(agent), self._legal, rng or self._luck)

    def _wording(self, agent: str) -> SpaceWording:
        return SpaceWording(number_words(self._env.action_space(agent)), self._decimals)

    def _pass_on(self) -> tuple[dict[str, float], bool]:
        """Go to the next agent that can act; return the rewards on the way, and whether an agent reached its end.

        An agent that has finished must step once more, with None. Agents of `others` act on the way.
        """
        rewards: dict[str, float] = {}
        terminated = False
        while self._env.agents:
            agent = self._env.agent_selection
            self._check_names()
            found, reward, *ends, info = self._env.last()
            ended, cut = (flag(end, f"the end of '{agent}'") for end in ends)
            if paid := one_number(reward):
                rewards[agent] = rewards.get(agent, 0.0) + paid
            if not (ended or cut):
                self._take(agent, found, info or {})
                if agent not in self._others or self._turns >= self._max_turns:
                    break
                self._turns += 1
                self._env.step(self._wording(agent).read(self._env.action_space(agent), self._any(), self._legal))
                continue
            terminated = terminated or ended
            self._env.step(None)
        return rewards, terminated

    def _check_names(self) -> None:
        # In a list, as the names of strangers may be unhashable.
        named = [*self._env.agents, *(getattr(self._env, "rewards", None) or {})]
        if unknown := [name for name in named if name not in self._env.possible_agents]:
            raise InputError(
                f"an episode has the agent {unknown[0]!r}",
                f"the agents are {', '.join(self._env.possible_agents)}, as possible_agents names them",
                "Name all that an episode may have in possible_agents",
            )

    def _take(self, agent: str, found: object, info: JsonMapping) -> None:
        """Write an agent's observation out, and keep its legal actions."""
        space, mask = shown_space(self._env.observation_space(agent)), info.get(MASK)
        if isinstance(found, dict) and MASK in found:
            mask = found[MASK]
            found = {name: value for name, value in found.items() if name != MASK}
            found = found if len(found) > 1 else next(iter(found.values()))
        self._legal = self._wording(agent).legal(mask)
        self._text = f"{spell(space, found, self._decimals)}>"
        self._state = f"{agent} {self._text[:-1]}" if countable(space) else ""

    def _seen(self, text: str) -> Observation:
        agent = self._env.agent_selection
        first = "" if agent in self._met else self._instructions
        self._met.add(agent)
        return Observation(first + text, self._state, agent, self._legal if self._phase == "playing" else ())


def shown_space(space: object) -> Space:
    """Return the part of an observation space that an agent sees: a Dict without its mask of actions; a single entry
    without its name.
    """
    from gymnasium.spaces import Dict

    if not isinstance(space, Dict) or MASK not in space.spaces:
        return space
    rest = {name: inner for name, inner in space.spaces.items() if name != MASK}
    return Dict(rest) if len(rest) > 1 else next(iter(rest.values()))
