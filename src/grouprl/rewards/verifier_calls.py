"""Calls of verifiers that may hang, exhaust memory or run a completion as code, each in a separate process.

A failure that the completion causes (no end, no memory, an exception, a forbidden action) is returned as `Spoiled`, for
which every caller gives a reward of 0. A failure of the machine (no process can be started, too little processor time)
is raised. So a call is judged by its processor time, never by wall-clock time, which also passes on a busy machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from grouprl.core.errors import RunError
from grouprl.processes.forked_call import MEMORY, outcome
from grouprl.processes.forked_call_main import ForkedCall
from grouprl.rewards import clock
from grouprl.rewards.contract import Crowded

CPU_SECONDS = 1.0
"""Limit of the processor time of a call, in seconds."""
WALL_SECONDS = 8.0
"""Wall-clock seconds after which the machine, not the call, is to blame; less than the default `reward.timeout`."""
TRIES = 3
"""Largest number of tries of a call that gets too little processor time, as far as the reward's time limit allows."""


@dataclass(frozen=True)
class Spoiled:
    """A call that failed through its own fault, with the reason."""

    why: str


@dataclass
class Allowance:
    """The share of `reward.timeout` that a call may use; set in the process that runs the reward."""

    timeout: float = 10.0

    @property
    def cpu(self) -> float:
        """Limit in seconds of processor time: a fifth of the reward's time limit, so that the call ends first."""
        return min(CPU_SECONDS, self.timeout / 5)

    @property
    def wall(self) -> float:
        """Limit in seconds of wall-clock time."""
        return min(WALL_SECONDS, 0.8 * self.timeout)


ALLOWANCE = Allowance()


@dataclass(frozen=True)
class Apart:
    """A function whose calls each run in a fresh fork of a single process that has imported it.

    `target` is "module:name"; arguments are pickled, the value is JSON. With a `recipe`, the target is called once with
    it and returns the function. `runs_text` says whether the function may run text as a program, as sympy's parser
    does; such text must first match a grammar.
    """

    target: str
    runs_text: bool = False
    recipe: tuple[object, ...] | None = None
    seconds: float | None = None
    """Limit of the processor time of a call, in seconds; None for that of `Allowance`."""

    def __call__(self, *arguments: object) -> object:
        """Return the value of one call, or `Spoiled`.

        Raises:
            RunError: if the function cannot be imported, or no process can be started.
            Crowded: if every try got too little processor time.
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
            raise RunError(f"'{self.target}' cannot be imported: {said}. Check the installation")
        if kind == "overdue" and said == "wall":
            raise Crowded(f"this machine gave '{self.target}' less than {cpu:g} s of processor time within {wall:g} s")
        return Spoiled(f"more than {cpu:g} s of processor time" if kind == "overdue" else str(said))
