"""Calls of verifiers that may hang, use up memory or run a completion as code: each in a process of its own.

What a completion causes (no end, no memory, an exception, a forbidden act) comes back as `Spoiled` and is a reward of
0 to every caller. What the machine causes (no process can be started, too little processor time) is raised: a call is
judged by the processor time that it used, never by the clock on the wall, which runs as fast on a crowded machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from grouprl.core.errors import RunError
from grouprl.processes.forked_call import MEMORY, outcome
from grouprl.processes.forked_call_main import ForkedCall
from grouprl.rewards import clock
from grouprl.rewards.contract import Crowded

CPU_SECONDS = 1.0
"""Processor time of a call."""
WALL_SECONDS = 8.0
"""Time after which the machine is to blame, not the call: less than `reward.timeout`, 10 s, by default."""
TRIES = 3
"""How often a call is made that the machine gave too little time, as long as the clock of the answer allows it."""


@dataclass(frozen=True)
class Spoiled:
    """A call that gave no value through its own fault, and why."""

    why: str


@dataclass
class Allowance:
    """How much of `reward.timeout` a call may use, set by the process in which a reward runs."""

    timeout: float = 10.0

    @property
    def cpu(self) -> float:
        """Seconds of processor time: a fifth of the reward's own clock, so that the two never meet."""
        return min(CPU_SECONDS, self.timeout / 5)

    @property
    def wall(self) -> float:
        """Seconds of the clock on the wall."""
        return min(WALL_SECONDS, 0.8 * self.timeout)


ALLOWANCE = Allowance()


@dataclass(frozen=True)
class Apart:
    """A function whose calls each run in a fresh fork of the one process that has imported it.

    `target` is "module:name"; arguments are pickled, the value is JSON. With a `recipe`, the target is called with it
    once, and what it returns is the function. `runs_text` says whether it may run text as a program, as sympy's parser
    does: what reaches it must then have passed a grammar.
    """

    target: str
    runs_text: bool = False
    recipe: tuple[object, ...] | None = None
    seconds: float | None = None
    """Processor time of a call; None: as a reward's clock allows."""

    def __call__(self, *arguments: object) -> object:
        """Return the value of one call, or `Spoiled`.

        Raises:
            RunError: if the function cannot be imported, or this machine gave it no process.
            Crowded: if this machine gave it too little processor time, several times where there is time for that.
        """
        cpu, wall = (ALLOWANCE.cpu, ALLOWANCE.wall) if self.seconds is None else (self.seconds, 4 * self.seconds)
        call = ForkedCall(self.target, arguments, (cpu, wall, MEMORY), self.runs_text, self.recipe)
        for _ in range(TRIES):
            kind, said = outcome(call)
            left = clock.left()
            if [kind, said] != ["overdue", "wall"] or (left is not None and left < wall):
                break
        if kind == "value":
            return said
        if kind == "broken":
            raise RunError(f"'{self.target}' cannot be imported: {said}")
        if kind == "overdue" and said == "wall":
            raise Crowded(f"this machine gave '{self.target}' less than {cpu:g} s of processor time within {wall:g} s")
        return Spoiled(f"more than {cpu:g} s of processor time" if kind == "overdue" else str(said))
