"""Building a team: choosing its roles, and the role that each member listens to."""

from __future__ import annotations

import random
from collections.abc import Iterable

from grouprl.envs.game import Game, Outcome
from grouprl.records.examples import Columns

ROLES = "abcdefgh"
EXIT = "."
PRICE, NEED = 0.1, 0.2


class Host(Game):
    """A host that builds a team for a job, role by role, and then lets it work.

    Columns: `chain`, the roles that the job needs, each listening to the one before it, and `roles`, the number of
    roles to choose from. The prompt is the job, "b>d>a:". "d" adds a role that listens to nobody, "db" one that listens
    to b, which must be a member; "-d" removes a role, "." lets the team work. The observation is the team, "b.db:"
    (each member with the one it listens to). The job is done, with 1 at the end, if the team has every role of the
    chain, listening to the one before. Adding costs 0.1; a step along the chain earns 0.2, and undoing it costs the
    same. Anything else is invalid.
    """

    def __init__(self, max_turns: int, noise: float = 0.3) -> None:
        """Prepare an episode; `noise` is the chance that a demonstrated action is any legal one."""
        super().__init__(max_turns)
        self.noise = noise
        self.chain, self.roles = "", ""
        self.hears: dict[str, str] = {}
        self.worked = False

    def begin(self, columns: Columns, rng: random.Random) -> None:
        """Read the job."""
        self.chain, self.roles = str(columns["chain"]), ROLES[: int(columns["roles"])]

    @property
    def met(self) -> int:
        """The number of roles of the chain that are in the team and listen to the one before."""
        pairs = zip(self.chain, ["", *self.chain], strict=False)
        return sum(role in self.hears and (before == "" or before in self.hears[role]) for role, before in pairs)

    @property
    def state(self) -> str:
        """The job and the team, members in the order of their names."""
        return f"{self.chain}|{self._team(sorted(self.hears))}"

    @property
    def legal(self) -> tuple[str, ...]:
        """Every action that is possible now; of those that add a listening role, only those with one of the members."""
        free = [role for role in self.roles if role not in self.hears]
        edges = [role + other for role in free for other in self.hears]
        return (EXIT, *free, *edges, *(f"-{role}" for role in self.hears))

    @property
    def correct(self) -> bool:
        """True if a team that can do the job was set to work."""
        return self.worked and self.met == len(self.chain)

    def act(self, action: str) -> Outcome:
        """Add or remove a role, or let the team work."""
        before = self.met
        if action == EXIT:
            self.worked = True
            return Outcome("", float(self.correct), ended=True)
        if not self._change(action):
            return Outcome(f"!{self._seen()}", valid=False)
        cost = 0.0 if action.startswith("-") else PRICE
        return Outcome(self._seen(), NEED * (self.met - before) - cost)

    def demonstrate(self, rng: random.Random) -> str:
        """Add the next role of the chain, with the one it listens to, and let the team work when it is complete. With a
        certain chance do anything legal.
        """
        if rng.random() < self.noise:
            return rng.choice(self.legal)
        for role, before in zip(self.chain, ["", *self.chain], strict=False):
            if role not in self.hears:
                return role + (before if before in self.hears else "")
            if before and before not in self.hears[role]:
                return f"-{role}"
        return EXIT

    def _change(self, action: str) -> bool:
        """Change the team; return False if the action is not possible now."""
        if action.startswith("-"):
            gone = action[1:]
            if gone not in self.hears:
                return False
            del self.hears[gone]
            self.hears = {role: others.replace(gone, "") for role, others in self.hears.items()}
            return True
        role, others = action[:1], action[1:]
        if not role or role not in self.roles or role in self.hears:
            return False
        if len(set(others)) != len(others) or any(other not in self.hears for other in others):
            return False
        self.hears[role] = others
        return True

    def _seen(self) -> str:
        return f"{self._team(self.hears)}:"

    def _team(self, names: Iterable[str]) -> str:
        return ".".join(role + self.hears[role] for role in names)
