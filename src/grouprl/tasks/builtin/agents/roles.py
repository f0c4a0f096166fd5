"""Tasks in which roles play against each other, or are chosen."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import ClassVar

from pydantic import Field

from grouprl.core.hashing import generator
from grouprl.envs.builtin.propose import PROPOSER, SOLVER, Pay, Propose, around, coming_to, value
from grouprl.envs.builtin.team_builder import ROLES, Host
from grouprl.records.examples import Columns, Example, Split
from grouprl.rewards import KnownExample
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task
from grouprl.tasks.task import check_request, split_of


def held_out(problem: str) -> bool:
    """Return whether a problem is reserved for evaluation."""
    return split_of(f"{problem}=") == "eval"


@register_task("propose")
class ProposeTask(EnvironmentTask):
    """Self-play: a proposer writes a sum that comes to a given number, and a solver solves it several times.

    The proposer's prompt is "12?", its problem "7+5"; the solver's prompt is "7+5=", its completion "12". The held-out
    prompts are problems for the solver alone, which do not occur in training.
    """

    levels = tuple({"largest": largest} for largest in (20, 30, 40, 50, 70, 90))

    largest: int = Field(20, ge=2, le=90, description="the largest number that is shown to the proposer")
    below: int = Field(100, ge=4, le=100, description="the numbers of a problem are below this")
    free: bool = Field(False, description="whether a problem only has to contain the number shown, with any result")
    attempts: int = Field(4, ge=1, description="how often the solver tries a problem")
    pay: Pay = Field("failure", description="reward of a problem for the proposer: 1 - p, or 4p(1-p) (middle)")
    invalid: float = Field(-1.0, le=0, description="reward of an invalid problem for the proposer")
    noise: float = Field(0.3, ge=0, le=1, description="chance that a demonstrated answer is off by one")

    agents: ClassVar[tuple[str, ...]] = (SOLVER, PROPOSER)
    """The solver, whose success is the episode's, and the proposer."""
    max_new_tokens: ClassVar[int] = 13
    """The token budget of a turn: the longest problem of four numbers and its end."""
    alphabet: ClassVar[str] = "0123456789+-=?"
    """Digits and signs."""

    def model_post_init(self, context: object) -> None:
        """Refuse numbers for which there is no problem."""
        if self.largest >= self.below:
            raise ValueError(
                f"largest = {self.largest} is not below = {self.below}: problems reach or contain it. Lower largest"
            )

    @property
    def max_turns(self) -> int:
        """The number of turns: the problem and the attempts."""
        return self.attempts + 1

    def environment(self) -> Propose:
        """Return a fresh episode."""
        return Propose(self.attempts, self.pay, self.invalid, self.noise, self.free, self.below, held_out)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a number for the proposer."""
        shown = rng.randint(2, self.largest)
        return f"{shown}?", {"answer": shown}

    def example(self, split: Split, index: int) -> Example:
        """Return prompt `index` (any number from 0): in training a number for the proposer, otherwise a problem to
        solve.

        Raises:
            InputError: an unknown split, or a negative index.
        """
        check_request(self.name, split, index, None)
        rng = generator(self.seed, self.name, split, index)
        while True:
            prompt, columns = self.generate(rng)
            if split == "train":
                return Example(f"{self.name}/{split}/{index}", prompt, columns, self._level_number())
            problem = (around if self.free else coming_to)(columns["answer"], self.below, rng)
            if held_out(problem):
                columns = {"problem": problem}
                return Example(f"{self.name}/{split}/{index}", f"{problem}=", columns, self._level_number())

    def solve(self, example: Example) -> str:
        """Return a problem, if one is requested, and correct attempts, one per line."""
        if "problem" in example.columns:
            return str(value(example.columns["problem"]))
        rng, proposer = random.Random(0), self.environment()
        proposer.begin(example.columns, rng)
        problem = proposer.demonstrate(rng)
        return "\n".join([problem, *[str(value(problem))] * self.attempts])

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return correct episodes, and an empty one: in an episode played from text both agents' rewards count."""
        return tuple(each for each in super().reward_examples() if each.correct or not each.completion)


@register_task("host")
class HostTask(EnvironmentTask):
    """Build a team for a job: add only the roles that it needs, each of which hears the previous one.

    The prompt is "b>d>a:"; "b", "db", "ad" and "." do the job. Adding a role costs 0.1.
    """

    levels = tuple(
        {"length": length, "roles": roles} for length, roles in ((2, 6), (2, 8), (3, 6), (3, 8), (4, 8), (5, 8))
    )

    length: int = Field(2, ge=1, le=8, description="roles that a job takes")
    roles: int = Field(8, ge=2, le=8, description="roles to choose from")
    spare: int = Field(3, ge=0, description="turns beyond those that are needed")
    noise: float = Field(0.5, ge=0, le=1, description=POOR)

    max_new_tokens: ClassVar[int] = 4
    """The token budget of a turn: a role, the role that it hears, the end, and one more."""
    alphabet: ClassVar[str] = f"{ROLES}>:.-!"
    """Roles and signs."""

    def model_post_init(self, context: object) -> None:
        """Refuse jobs with more roles than exist."""
        if self.length > self.roles:
            raise ValueError(f"length = {self.length} exceeds roles = {self.roles}: give more roles, or shorter jobs")

    @property
    def max_turns(self) -> int:
        """The largest number of turns: one for each role, one to run the team, and spare turns."""
        return self.length + 1 + self.spare

    def environment(self) -> Host:
        """Return a fresh episode."""
        return Host(self.max_turns, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return a job."""
        chain = "".join(rng.sample(ROLES[: self.roles], self.length))
        return f"{'>'.join(chain)}:", {"chain": chain, "roles": self.roles}

    def solve(self, example: Example) -> str:
        """Return the chain, role by role."""
        chain = str(example.columns["chain"])
        return "\n".join([chain[0], *(b + a for a, b in pairwise(chain)), "."])
