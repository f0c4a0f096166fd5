"""Environments, in which an agent acts turn by turn. The names are imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grouprl.core.late_import import lazy_names

if TYPE_CHECKING:
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
_HOMES = {
    **dict.fromkeys(__all__, "environment"),
    **dict.fromkeys(("Game", "Outcome"), "game"),
    "Shell": "terminal",
}
__getattr__ = lazy_names(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
