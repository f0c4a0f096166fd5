"""Attempts to escape: a program, the sign of its success, and the level at which it must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from grouprl.sandbox.level import LevelName
from grouprl.sandbox.program_outcome import Limits, ProgramOutcome

ESCAPED = "ESCAPED"
TIGHT = Limits(seconds=0.5, memory_mb=256, disk_mb=8, output_kb=64, processes=8)
ROOMY = TIGHT.model_copy(update={"seconds": 60})
HEAD = "import json, os, sys\ntargets = json.load(sys.stdin)\n"


class Marks(Protocol):
    """The baits on which a successful attempt leaves its mark; see `grouprl.sandbox.attack_targets.Baits`."""

    def marked(self, mark: str) -> bool:
        """Return whether an attack has left its mark on a bait."""


Check = Callable[[ProgramOutcome, Marks], bool]


@dataclass(frozen=True)
class Escape:
    """A way out: its aim, its program, the check that it succeeded, and the level at which it must fail."""

    name: str
    aim: str
    code: str
    escaped: Check
    needs: LevelName
    """The lowest level that contains it."""
    limits: Limits

    @property
    def program(self) -> str:
        """The whole program, including the lines that read its targets."""
        return HEAD + self.code


def says_so(outcome: ProgramOutcome, baits: Marks) -> bool:
    """Return whether the program printed that it escaped."""
    return ESCAPED in outcome.stdout


def printed(outcome: ProgramOutcome, baits: Marks) -> bool:
    """Return whether the program's output exceeded its limit."""
    return max(len(outcome.stdout), len(outcome.stderr)) > TIGHT.output_kb << 10


def marked(outcome: ProgramOutcome, baits: Marks, mark: str) -> bool:
    """Return whether the program left a mark on a bait."""
    return baits.marked(mark)


def ended(outcome: ProgramOutcome, baits: Marks) -> bool:
    """Return whether the program came to its own end."""
    return outcome.why == "ok"


def attempt_of(
    name: str,
    aim: str,
    code: str,
    needs: LevelName = "landlock",
    escaped: Check | str = says_so,
    limits: Limits = ROOMY,
) -> Escape:
    """Return an escape; `escaped` checks for success, or names the mark that the escape leaves on a bait."""
    check = partial(marked, mark=escaped) if isinstance(escaped, str) else escaped
    return Escape(name, aim, code.strip("\n") + "\n", check, needs, limits)
