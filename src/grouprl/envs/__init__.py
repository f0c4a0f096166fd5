"""Environments, in which an agent acts turn by turn."""

from grouprl.envs.environment import (
    ArrayObservation,
    Demonstrator,
    Environment,
    Judging,
    Observation,
    Patient,
    Step,
)
from grouprl.envs.game import Game, Outcome
from grouprl.envs.terminal import Shell

__all__ = [
    "ArrayObservation",
    "Demonstrator",
    "Environment",
    "Game",
    "Judging",
    "Observation",
    "Outcome",
    "Patient",
    "Shell",
    "Step",
]
