"""Environments: what an agent acts in, turn by turn."""

from grouprl.envs.adventure import Adventure
from grouprl.envs.calculator import Calculator
from grouprl.envs.diagnose import Diagnose
from grouprl.envs.environment import (
    ArrayObservation,
    Demonstrator,
    Environment,
    Judging,
    Observation,
    Patient,
    Step,
)
from grouprl.envs.faithful import Faithful
from grouprl.envs.game import Game, Outcome
from grouprl.envs.guess import Guess
from grouprl.envs.keys import Keys
from grouprl.envs.screen import Screen
from grouprl.envs.search import Search
from grouprl.envs.shortlist import Shortlist
from grouprl.envs.signals import Signals
from grouprl.envs.sql import Sql
from grouprl.envs.subgoals import Subgoals
from grouprl.envs.team import Team
from grouprl.envs.terminal import Shell
from grouprl.envs.tictactoe import TicTacToe
from grouprl.envs.wordle import Wordle

__all__ = [
    "Adventure",
    "ArrayObservation",
    "Calculator",
    "Demonstrator",
    "Diagnose",
    "Environment",
    "Faithful",
    "Game",
    "Guess",
    "Judging",
    "Keys",
    "Observation",
    "Outcome",
    "Patient",
    "Screen",
    "Search",
    "Shell",
    "Shortlist",
    "Signals",
    "Sql",
    "Step",
    "Subgoals",
    "Team",
    "TicTacToe",
    "Wordle",
]
