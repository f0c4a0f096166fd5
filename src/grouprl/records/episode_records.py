"""What is kept of an episode: its turns, and who acted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Turn:
    """One action and what it led to."""

    number: int
    """Which turn of the episode it is, from 0, whoever acted."""
    state: str
    action: str
    reward: float = 0.0
    valid: bool = True
    seen: str = ""
    """Text of the observation that followed, whoever it was for."""
    seconds: float = 1.0
    """How long the action took, where the environment says so (`Step.info["seconds"]`)."""
    thinking: str = ""
    """What of the action is thinking, by the syntax of the policy's chat template."""
    thought: int = 0
    """How many tokens of the action that is, from the first one, its signs included."""


@dataclass(frozen=True)
class Record:
    """What is kept of a row for readers and for replaying it."""

    agent: str
    ended: str
    turns: tuple[Turn, ...]
