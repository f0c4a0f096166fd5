"""Worlds in which several agents see arrays and act at once, played turn by turn or together as an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.array_spaces import entries, for_each, reaching_zero
from grouprl.envs.environment import ArrayObservation, Step, misused
from grouprl.protocols import ArraySpace, Box, DictSpace, Discrete, MultiDiscrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

T = TypeVar("T")
TEAM = ("team", "there", "done")
"""Entries of an observation that tell of the whole team: what each observes, who acts, and what was done before."""


@dataclass(frozen=True)
class JointStep:
    """Observations and rewards of the agents of a `JointWorld` after they have acted."""

    seen: Mapping[str, object]
    """Observations (arrays or `ArrayObservation`) of the agents that act next; others are dead or not there yet."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    finals: Mapping[str, object] = field(default_factory=dict)
    """Last observations of the agents that a limit cuts off."""


class JointWorld(Protocol):
    """One episode of a world whose agents act at once. All agents have the same spaces."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Every agent that may appear."""
        ...

    @property
    def spaces(self) -> Spaces:
        """The spaces of a single agent."""
        ...

    def begin(self, example: Example, seed: int) -> Mapping[str, object]:
        """Begin the episode; return the observations of the agents that act first."""
        ...

    def act(self, actions: Mapping[str, int | np.ndarray]) -> JointStep:
        """Let the agents act at once."""
        ...

    def correct(self) -> float | None:
        """Return whether the episode was right, 0 or 1; None if it is only rewarded."""
        ...

    def close(self) -> None:
        """Release what the world holds."""
        ...


class ToldWorld:
    """A world whose agents are told the number of a strategy, the same for all of them and for a whole episode.

    Observations have the entry `strategy` besides the world's own. The number is the example's column `told`, if it has
    one, else drawn with the episode's seed: how a policy of several strategies is trained (MRA, arXiv:2108.12988).

    Args:
        world: the world.
        strategies: how many there are.

    Raises:
        InputError: fewer than two strategies.
    """

    def __init__(self, world: JointWorld, strategies: int) -> None:
        if strategies < 2:
            raise InputError(
                f"strategies = {strategies}", "agents are told one of two or more", "Use the world as it is"
            )
        single = world.spaces
        self._world, self.strategies, self.agents = world, strategies, tuple(world.agents)
        told = DictSpace({**entries(single.observation), "strategy": Discrete(strategies)})
        self.spaces = Spaces(told, single.action, single.context)
        self._number = 0

    def begin(self, example: Example, seed: int) -> Mapping[str, object]:
        """Begin the episode with the strategy that the example tells. Raises InputError if there is no such
        strategy.
        """
        # A stream of its own: the world draws from the same seed, and both would begin with the same numbers.
        drawn = int(np.random.default_rng((seed, 1)).integers(self.strategies))
        self._number = int(example.columns.get("told", drawn))
        if not 0 <= self._number < self.strategies:
            raise InputError(
                f"the example {example.id!r} tells strategy {self._number}", f"it is below {self.strategies}"
            )
        return self._telling(self._world.begin(example, seed))

    def act(self, actions: Mapping[str, int | np.ndarray]) -> JointStep:
        """Let the agents act, and tell them their strategy again."""
        found = self._world.act(actions)
        return JointStep(self._telling(found.seen), found.rewards, self._telling(found.finals))

    def correct(self) -> float | None:
        """Return the world's own verdict."""
        return self._world.correct()

    def close(self) -> None:
        """Close the world."""
        self._world.close()

    def _telling(self, seen: Mapping[str, object]) -> dict[str, object]:
        return {agent: self._told(what) for agent, what in seen.items()}

    def _told(self, seen: object) -> ArrayObservation:
        given = _observed(seen)
        values = {**_named(given.values), "strategy": np.asarray(self._number)}
        return ArrayObservation(values, given.legal, given.context)


def told(world: JointWorld, strategies: int) -> JointWorld:
    """Return the world with agents that are told one of `strategies`; with one strategy there is nothing to tell."""
    return world if strategies == 1 else ToldWorld(world, strategies)


class _OverWorld:
    """An environment over a joint world."""

    _world: JointWorld
    _phase: str

    def score(self) -> dict[str, float]:
        """Return `correct`, if the world states it."""
        correct = self._world.correct()
        return {} if correct is None else {"correct": correct}

    def close(self) -> None:
        """Close the world."""
        self._phase = "closed"
        self._world.close()


class InTurns(_OverWorld):
    """An environment in which the agents of a world act one after the other, unseen by each other, until all have.

    An observation has the entries `own` (or those of a world's `DictSpace`) and `agent`, the number of the agent; if
    `parents` names any, also `earlier`: the actions of the agent's parents in this round. Parents act before it, so
    that the joint policy is a Bayesian network, π(a|o) = Π_m π(a_m | o_m, a_parents(m)). Its log-prob is the sum of the
    agents'.

    With `team` there are three more, for policies that learn together and act apart (`model: latent_team`): `team`,
    what each agent observes, `there`, 1 for those that act, and `done`, the actions of the round before, one-hot.
    Numbers of agents that do not act are 0.

    Args:
        world: the world.
        parents: for an agent, those that act before it and whose actions it sees; 'all': every earlier agent.
        team: whether rows also hold what the others observe and did.

    Raises:
        InputError: parents that are not earlier agents, actions that are not one number, or with `team` agents that do
            not observe one array.
    """

    def __init__(
        self, world: JointWorld, *, parents: str | Mapping[str, tuple[str, ...]] = "", team: bool = False
    ) -> None:
        self._world, self._agents = world, tuple(world.agents)
        self._parents = _parents(self._agents, parents)
        single = world.spaces
        if any(self._parents.values()) and not isinstance(single.action, Discrete):
            raise InputError(
                f"parents: the actions are {single.action}",
                "parents are shown as numbers, so actions must be discrete",
                "Remove it",
            )
        self._actions = single.action
        observed = _observation(single, self._agents, self._parents)
        observed |= _team(single, self._agents) if team else {}
        self.spaces = Spaces(DictSpace(observed), single.action, single.context)
        self._shares, self._team = team, {}  # type: bool, dict[str, np.ndarray]
        self._phase = "new"
        self._seen: Mapping[str, object] = {}
        self._done: dict[str, int | np.ndarray] = {}

    @property
    def strategies(self) -> int:
        """The number of strategies that agents are told of (`ToldWorld`); 1: they are told nothing."""
        return self._world.strategies if isinstance(self._world, ToldWorld) else 1

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin the episode. Raises InputError if the object was used before, or no agent can act."""
        if self._phase != "new":
            raise misused("reset() was called twice")
        self._phase, self._seen = "playing", self._ordered(self._world.begin(example, seed))
        if not self._seen:
            raise InputError("no agent acts at the beginning", "an episode needs an agent that acts")
        self._team = self._round(self._seen, {})
        return self._shown()

    def step(self, action: int | np.ndarray) -> Step:
        """Take the next agent's action; the world moves when all have acted."""
        if self._phase != "playing":
            raise misused(f"step({action!r}) was called when no episode was under way")
        self._done[self._next] = action
        if len(self._done) < len(self._seen):
            return Step(self._shown())  # type: ignore[arg-type]
        # Before the world moves: at the end of an episode there is no later observation to show.
        last = self._shown(self._next_to_last)
        found = self._world.act(self._done)
        self._team = self._round({**found.seen, **found.finals}, self._done)
        finals = {agent: _unmasked(self._of(agent, seen, {})) for agent, seen in found.finals.items()}
        self._seen, self._done = self._ordered(found.seen), {}
        over = not self._seen
        self._phase = "ended" if over else "playing"
        info = {"finals": finals} if finals else {}
        shown = last if over else self._shown()
        cut = over and bool(finals)
        rewards = dict(_of_agents(found.rewards, self._agents, "pays"))
        return Step(shown, 0.0, over and not cut, cut, True, info, rewards)  # type: ignore[arg-type]

    @property
    def _next(self) -> str:
        return next(agent for agent in self._seen if agent not in self._done)

    @property
    def _next_to_last(self) -> str:
        return list(self._seen)[-1]

    def _ordered(self, seen: Mapping[str, object]) -> dict[str, object]:
        shown = _of_agents(seen, self._agents, "shows")
        return {agent: shown[agent] for agent in self._agents if agent in shown}

    def _shown(self, agent: str = "") -> ArrayObservation:
        agent = agent or self._next
        return self._of(agent, self._seen[agent], self._done)

    def _of(self, agent: str, seen: object, done: Mapping[str, int | np.ndarray]) -> ArrayObservation:
        given = _observed(seen)
        values = {**_named(given.values), "agent": np.asarray(self._agents.index(agent))}
        if any(self._parents.values()):
            values["earlier"] = self._earlier(agent, done)
        return ArrayObservation({**values, **self._team}, given.legal, given.context, agent)

    def _round(self, seen: Mapping[str, object], done: Mapping[str, int | np.ndarray]) -> dict[str, np.ndarray]:
        """Return what rows hold of the team: observations by agent, who acts, and the actions of the round before."""
        if not self._shares:
            return {}
        assert isinstance(self.spaces.observation, DictSpace)
        inner = self.spaces.observation.spaces
        arrays = {name: np.zeros(inner[name].shape, inner[name].dtype) for name in TEAM}
        for agent, what in seen.items():
            number = self._agents.index(agent)
            arrays["team"][number], arrays["there"][number] = _observed(what).values, 1
        for agent, action in done.items():
            arrays["done"][self._agents.index(agent), int(action)] = 1
        return arrays

    def _earlier(self, agent: str, done: Mapping[str, int | np.ndarray]) -> np.ndarray:
        """Return the parents' actions, one-hot; zeros for agents that are not parents or do not act."""
        assert isinstance(self._actions, Discrete)
        earlier_ma = np.zeros((len(self._agents), self._actions.count), dtype=np.float32)
        for other in self._parents[agent]:
            if other in done:
                earlier_ma[self._agents.index(other), int(done[other])] = 1.0
        return earlier_ma


class Together(_OverWorld):
    """An environment whose action is the vector of all agents' actions, and whose observation `own` has a row for each.

    It is for policies whose agents decide by their own rows alone, but learn together (`model: team_values`). A reward
    is the mean of the agents'.

    Args:
        world: a world whose agents see arrays of one shape, choose numbers, and act from its beginning to its end.

    Raises:
        InputError: a world with other spaces.
    """

    def __init__(self, world: JointWorld) -> None:
        single = world.spaces
        if not isinstance(single.action, Discrete) or not isinstance(single.observation, Box):
            raise InputError(
                f"agents that see {single.observation} and act with {single.action}",
                "agents that act together see one array each and choose a number",
                "Wrap the world in InTurns",
            )
        self._world, self._agents = world, tuple(world.agents)
        count, self._choices = len(self._agents), single.action.count
        self.spaces = Spaces(
            DictSpace({"own": for_each(single.observation, count)}), MultiDiscrete((self._choices,) * count)
        )
        self._phase = "new"

    def reset(self, example: Example, seed: int) -> ArrayObservation:
        """Begin the episode. Raises InputError if the object was used before."""
        if self._phase != "new":
            raise misused("reset() was called twice")
        self._phase = "playing"
        return self._shown(self._world.begin(example, seed))

    def step(self, action: np.ndarray) -> Step:
        """Let all agents act."""
        if self._phase != "playing":
            raise misused(f"step({action!r}) was called when no episode was under way")
        found = self._world.act({agent: int(a) for agent, a in zip(self._agents, action, strict=True)})
        paid = _of_agents(found.rewards, self._agents, "pays")
        reward = float(np.mean([paid.get(agent, 0.0) for agent in self._agents]))
        if found.seen:
            self._last = self._shown(found.seen)
            return Step(self._last, reward)  # type: ignore[arg-type]
        self._phase = "ended"
        last = self._shown(found.finals) if found.finals else self._last
        return Step(last, reward, not found.finals, bool(found.finals))  # type: ignore[arg-type]

    def _shown(self, seen: Mapping[str, object]) -> ArrayObservation:
        if set(seen) != set(self._agents):
            raise InputError(
                f"the world shows {', '.join(sorted(seen)) or 'no agent anything'}",
                f"all of {', '.join(self._agents)} act at once, in every round",
                "Wrap the world in InTurns, where agents may come and go",
            )
        each = [_observed(seen[agent]) for agent in self._agents]
        own, masks = np.stack([np.asarray(one.values) for one in each]), [one.legal for one in each]
        self._last = ArrayObservation({"own": own}, _joint_mask(masks, self._choices))
        return self._last


def _parents(agents: tuple[str, ...], given: str | Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    if given == "all":
        return {agent: agents[:number] for number, agent in enumerate(agents)}
    chosen = {} if given == "" else given
    if not isinstance(chosen, Mapping):
        raise InputError(f"parents = {given!r}", "they must be given by agent, or be 'all'")
    found = {agent: tuple(chosen.get(agent, ())) for agent in agents}
    wrong = [a for a in chosen if a not in agents] + [
        p for number, agent in enumerate(agents) for p in found[agent] if p not in agents[:number]
    ]
    if wrong:
        raise InputError(
            f"parents = {dict(chosen)}", f"parents act earlier, in the order {', '.join(agents)}", f"Remove {wrong[0]}"
        )
    return found


def _team(single: Spaces, agents: tuple[str, ...]) -> dict[str, ArraySpace]:
    """Return the spaces of what rows hold of the team. Raises InputError if an agent does not observe one array."""
    if not isinstance(single.action, Discrete) or not isinstance(single.observation, Box):
        raise InputError(
            f"team with agents that see {single.observation} and act with {single.action}",
            "with team, every agent sees one array and chooses a number",
            "Leave out team",
        )
    count, box = len(agents), single.observation
    low, high = (reaching_zero(bound, least) for bound, least in ((box.low, min), (box.high, max)))
    return {
        "team": for_each(Box(box.shape, low, high, box.dtype), count),
        "there": Box((count,), 0.0, 1.0),
        "done": Box((count, single.action.count), 0.0, 1.0),
    }


def _observation(
    single: Spaces, agents: tuple[str, ...], parents: Mapping[str, tuple[str, ...]]
) -> dict[str, ArraySpace]:
    spaces = {**entries(single.observation), "agent": Discrete(len(agents))}
    if any(parents.values()):
        assert isinstance(single.action, Discrete)
        spaces["earlier"] = Box((len(agents), single.action.count), 0.0, 1.0)
    return spaces


def _of_agents(given: Mapping[str, T], agents: Sequence[str], does: str) -> Mapping[str, T]:
    """Return what a world gives its agents. Raises InputError if it names one that it does not have."""
    if unknown := set(given) - set(agents):
        raise InputError(f"the world {does} the agent {min(unknown)!r}", f"its agents are {', '.join(agents)}")
    return given


def _named(values: object) -> Mapping[str, object]:
    """Return arrays by name; one without a name is `own`."""
    return values if isinstance(values, Mapping) else {"own": values}


def _observed(seen: object) -> ArrayObservation:
    return seen if isinstance(seen, ArrayObservation) else ArrayObservation(seen)


def _unmasked(shown: ArrayObservation) -> object:
    """Return the values of an observation, or if it has a mask of legal actions, the observation."""
    return shown.values if shown.legal is None else shown


def _joint_mask(masks: Sequence[object], count: int) -> np.ndarray | None:
    """Return the agents' masks [count], concatenated; None if no agent has one."""
    if all(mask is None for mask in masks):
        return None
    return np.concatenate([np.ones(count, bool) if mask is None else np.asarray(mask, bool) for mask in masks])
