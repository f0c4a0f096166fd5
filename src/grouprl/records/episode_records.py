"""The record of an episode: its turns, and the agent that acted in each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

ENDINGS = ("terminated", "truncated", "out_of_turns", "out_of_room", "error", "under_way")
"""Reasons for the end of an episode: its own end, a limit of the environment, of turns, or of the model's positions, or
a failure of the environment; last, a row that is a piece of an episode which continues in the next step.
"""
UNDER_WAY = ENDINGS[-1]
SAMPLES = 2**20
"""Upper bound of completions per prompt, which keeps the numbers of episodes of different prompts distinct."""


@dataclass
class Turn:
    """One action, and the observation that followed."""

    number: int
    """Number of the turn within the episode, from 0, over all agents."""
    state: str
    action: str
    reward: float = 0.0
    valid: bool = True
    seen: str = ""
    """Text of the observation that followed, for whichever agent it was."""
    seconds: float = 1.0
    """Duration of the action, if the environment reports it (`Step.info["seconds"]`)."""
    thinking: str = ""
    """The part of the action that is thinking, by the syntax of the policy's chat template."""
    thought: int = 0
    """Number of tokens of that part, counted from the first token and including the markers around it."""
    calls: list[str] | None = None
    """Its calls of tools, each with its arguments; None if no tools are announced."""


@dataclass(frozen=True)
class Record:
    """The record of a row, kept for readers and for replaying it."""

    agent: str
    ended: str
    turns: tuple[Turn, ...]
    judged: bool = True
    """False if nobody said whether the row is right or wrong."""

    def transcript(self) -> str:
        """Return the exchange after the first observation for readers."""
        return transcript((self.agent, turn) for turn in self.turns)

    def calls(self) -> list[list[str]]:
        """Return the calls of tools of each turn in which tools are announced."""
        return [turn.calls for turn in self.turns if turn.calls is not None]


class ArrayRecord(Record):
    """The record of a row over arrays: it calls no tools, and its turns are spelt only when a reader asks for them, as
    numbers take longer to write than a small policy to act.

    Args:
        ended: one of `ENDINGS`.
        spell: returns the turns.
        judged: False if nobody said whether the row is right or wrong.
    """

    def __init__(self, ended: str, spell: Callable[[], tuple[Turn, ...]], *, judged: bool = True) -> None:
        self.__dict__.update(agent="", ended=ended, spell=spell, judged=judged)

    @cached_property
    def turns(self) -> tuple[Turn, ...]:
        """The turns, spelt once."""
        found: tuple[Turn, ...] = self.__dict__.pop("spell")()
        return found

    def calls(self) -> list[list[str]]:
        """Return nothing: actions that are numbers call no tools."""
        return []


def transcript(turns: Iterable[tuple[str, Turn]], told: Callable[[Turn], str] = attrgetter("action")) -> str:
    """Return turns and the agents that took them for readers: a line per action, as `told`, and per observation."""
    pairs = ((f"{agent}> {told(turn)}", turn.seen) for agent, turn in turns)
    return "\n".join(line for pair in pairs for line in pair if line)
