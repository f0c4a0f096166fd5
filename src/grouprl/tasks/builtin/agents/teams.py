"""Tasks of several agents."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from grouprl.envs.builtin.signals import COLOURS, LISTENER, SHAPES, SIGNS, SPEAKER, Signals, agreed
from grouprl.envs.builtin.team import PLANNER, WORKER, Team
from grouprl.records.examples import Columns, Example
from grouprl.rewards import KnownExample
from grouprl.tasks.environments import EnvironmentTask
from grouprl.tasks.options import POOR
from grouprl.tasks.registry import register_task


@register_task("signals")
class SignalsTask(EnvironmentTask):
    """A speaker tells in two meaningless signs which of several things is meant; a listener points at it.

    The speaker's prompt is "r3: g1 r3 b2>", its message "cg"; the listener's prompt is "cg: b2 r3 g1>", its completion
    "r3".
    """

    levels = tuple({"things": things} for things in (2, 3, 4, 6, 8, 12))

    things: int = Field(4, ge=2, le=16, description="things to choose from")
    noise: float = Field(0.5, ge=0, le=1, description="chance that a demonstrated sign or choice is random")

    agents: ClassVar[tuple[str, ...]] = (SPEAKER, LISTENER)
    """The speaker and the listener."""
    max_turns: ClassVar[int] = 2
    """The number of turns: one for each agent."""
    max_new_tokens: ClassVar[int] = 4
    """The token budget of a turn: two signs, the end of sequence, and one spare token."""

    @property
    def alphabet(self) -> str:
        """Colours, shapes, signs, and the separators between them."""
        return "".join(sorted({*COLOURS, *SHAPES, *SIGNS})) + " :>?"

    def environment(self) -> Signals:
        """Return a fresh episode."""
        return Signals(self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return different things, one of which is meant."""
        things = rng.sample([colour + shape for colour in COLOURS for shape in SHAPES], self.things)
        meant, shown = rng.choice(things), rng.sample(things, len(things))
        return f"{meant}: {' '.join(things)}>", {"things": things, "shown": shown, "meant": meant}

    def solve(self, example: Example) -> str:
        """Return the message that demonstrations use, and the thing that is meant."""
        meant = str(example.columns["meant"])
        return f"{agreed(meant)}\n{meant}"


@register_task("team")
class TeamTask(EnvironmentTask):
    """A planner adds many numbers with workers that add two, each in its own context.

    The planner's prompt is "7+5+8=". "w7+5" calls a worker, whose prompt is "7+5="; its completion "12" is shown to
    the planner. "a20" gives the answer.
    """

    levels = tuple(
        {"terms": terms, "largest": largest} for terms, largest in ((2, 9), (3, 9), (4, 9), (3, 20), (4, 50), (5, 99))
    )

    terms: int = Field(3, ge=2, le=8, description="numbers to add")
    largest: int = Field(9, ge=1, le=99, description="the largest number")
    spare: int = Field(2, ge=0, description="turns beyond those that are needed")
    shared: bool = Field(False, description="whether workers are rewarded for the planner's outcome, not their own")
    noise: float = Field(0.15, ge=0, le=1, description=POOR)

    agents: ClassVar[tuple[str, ...]] = (PLANNER, WORKER)
    """The planner, whose outcome is the episode's, and the workers."""
    max_new_tokens: ClassVar[int] = 10
    """The token budget of a turn: the longest call, the end of sequence, and one spare token."""
    alphabet: ClassVar[str] = "0123456789+=wa>!?"
    """Digits and the signs of sums, calls and final answers."""

    @property
    def max_turns(self) -> int:
        """The largest number of turns: a call and its result for every number but the first, the final answer, and
        spare turns.
        """
        return 2 * self.terms - 1 + self.spare

    def environment(self) -> Team:
        """Return a fresh episode."""
        return Team(self.max_turns, self.shared, self.noise)

    def generate(self, rng: random.Random) -> tuple[str, Columns]:
        """Return numbers to add."""
        terms = [str(rng.randint(1, self.largest)) for _ in range(self.terms)]
        return f"{'+'.join(terms)}=", {"terms": terms}

    def solve(self, example: Example) -> str:
        """Return the calls, results and final answer without a mistake, one per line."""
        held, *rest = [int(term) for term in example.columns["terms"]]
        turns = []
        for term in rest:
            turns += [f"w{held}+{term}", str(held + term)]
            held += term
        return "\n".join([*turns, f"a{held}"])

    def reward_examples(self) -> tuple[KnownExample, ...]:
        """Return correct episodes and an empty one: in an episode played from text the workers' rewards count as well
        as the outcome.
        """
        return tuple(each for each in super().reward_examples() if each.correct or not each.completion)
