"""A jury that is to agree on what is true, and worlds in which one agent of a team works against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from grouprl.core.errors import InputError
from grouprl.envs.joint_world import InTurns, JointStep, JointWorld
from grouprl.protocols import Box, Discrete, Spaces

if TYPE_CHECKING:
    from grouprl.records.examples import Example

Action = int | np.ndarray
MEMBERS = ("expert", "second", "third", "fourth", "fifth")


class JuryWorld:
    """Five members vote on which of some options is true, several rounds long, and see each other's last votes.

    Each has a hint of its own, which names the truth with probability `expert` for the first member and `others` for
    the rest, else another option. A round pays every member the share of votes that are right.
    """

    agents: ClassVar[tuple[str, ...]] = MEMBERS

    def __init__(self, options: int, expert: float, others: float, rounds: int) -> None:
        if options < 2 or rounds < 1 or not (0 <= expert <= 1 and 0 <= others <= 1):
            raise InputError(
                f"options={options}, expert={expert}, others={others}, rounds={rounds}",
                "options >= 2, rounds >= 1, and expert and others are probabilities, in 0..1",
            )
        self._options, self._rounds = options, rounds
        self._sure_m = np.array([expert] + [others] * (len(MEMBERS) - 1))
        self.spaces = Spaces(Box((options * (1 + len(MEMBERS)) + 1,), 0.0, 1.0), Discrete(options))
        self._votes_mo = np.zeros((len(MEMBERS), options))
        self._round, self._right = 0, 0.0

    def begin(self, example: Example, seed: int) -> dict[str, object]:
        """Choose what is true, and hint at it."""
        luck = np.random.default_rng(seed)
        self._truth = int(luck.integers(self._options))
        wrong_m = (self._truth + luck.integers(1, self._options, len(MEMBERS))) % self._options
        self._hint_m = np.where(luck.random(len(MEMBERS)) < self._sure_m, self._truth, wrong_m)
        return self._seen()

    def act(self, actions: Mapping[str, Action]) -> JointStep:
        """Count the votes and pay for the right ones."""
        vote_m = np.array([int(actions[member]) for member in MEMBERS])
        self._votes_mo = np.eye(self._options)[vote_m]
        self._right = float((vote_m == self._truth).mean())
        self._round += 1
        over = self._round == self._rounds
        return JointStep({} if over else self._seen(), dict.fromkeys(MEMBERS, self._right))

    def correct(self) -> float:
        """Return 1 if more than half of the last votes were right, else 0."""
        return float(self._right > 0.5)

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _seen(self) -> dict[str, object]:
        """Return, per member: its hint, all last votes (zeros before the first), and the share of rounds played."""
        votes, clock = self._votes_mo.ravel(), [self._round / self._rounds]
        hint_mo = np.eye(self._options)[self._hint_m]
        return {member: np.concatenate([hint_mo[m], votes, clock]) for m, member in enumerate(MEMBERS)}


def accomplices(agents: tuple[str, ...], adversary: str) -> tuple[str, ...]:
    """Return the agents that name targets, one for each agent but the adversary, in their order."""
    return tuple(f"target of {agent}" for agent in agents if agent != adversary)


class InfiltratedWorld:
    """A world of which one agent, the adversary, is paid what its team loses (AMI, arXiv:2302.03322).

    For every other agent, a victim, there is one agent more, which sees what the victim sees and names the action that
    the victim should be led to next. Its action changes nothing in the world, and it is paid as the adversary is.
    """

    def __init__(self, world: JointWorld, adversary: str) -> None:
        if adversary not in world.agents:
            raise InputError(f"adversary = {adversary!r}", f"it must be one of {', '.join(world.agents)}")
        self._world, self._adversary = world, adversary
        self.spaces = world.spaces
        self.agents = (*world.agents, *accomplices(world.agents, adversary))

    def begin(self, example: Example, seed: int) -> dict[str, object]:
        """Begin the episode."""
        return self._watched(self._world.begin(example, seed))

    def act(self, actions: Mapping[str, Action]) -> JointStep:
        """Let the team act; pay the adversary and those that name targets what the adversary's place in it loses."""
        found = self._world.act({agent: actions[agent] for agent in self._world.agents if agent in actions})
        lost = -float(found.rewards.get(self._adversary, 0.0))
        helpers = accomplices(self._world.agents, self._adversary)
        rewards = {**found.rewards, **dict.fromkeys((self._adversary, *helpers), lost)}
        return JointStep(self._watched(found.seen), rewards, self._watched(found.finals))

    def correct(self) -> float | None:
        """Return whether the team was right all the same."""
        return self._world.correct()

    def close(self) -> None:
        """Close the world."""
        self._world.close()

    def _watched(self, seen: Mapping[str, object]) -> dict[str, object]:
        more = {f"target of {agent}": what for agent, what in seen.items() if agent != self._adversary}
        return {**seen, **more}


def infiltrated(world: JointWorld, adversary: str) -> InTurns:
    """Return the infiltrated world as an environment, in which those that name targets see all actions of the round."""
    inside = InfiltratedWorld(world, adversary)
    return InTurns(inside, parents=dict.fromkeys(accomplices(world.agents, adversary), tuple(world.agents)))


class Jury(InTurns):
    """Five members of a jury, of which the first knows most, vote in rounds and see each other's votes."""

    agents = MEMBERS

    def __init__(
        self, options: int = 3, expert: float = 0.9, others: float = 0.5, rounds: int = 4, team: bool = False
    ) -> None:
        super().__init__(JuryWorld(options, expert, others, rounds), team=team)


class InfiltratedJury(InTurns):
    """The jury, whose member `MEMBERS[0]`, the expert, wants it to be wrong."""

    agents = (*MEMBERS, *accomplices(MEMBERS, MEMBERS[0]))

    def __init__(self, options: int = 3, expert: float = 0.9, others: float = 0.5, rounds: int = 4) -> None:
        inside = InfiltratedWorld(JuryWorld(options, expert, others, rounds), MEMBERS[0])
        super().__init__(inside, parents=dict.fromkeys(accomplices(MEMBERS, MEMBERS[0]), MEMBERS))
