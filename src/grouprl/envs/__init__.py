"""Environments: what an agent acts in, turn by turn."""

from grouprl.envs.calculator import Calculator
from grouprl.envs.environment import Demonstrator, Environment, Judging, Observation, Step
from grouprl.envs.game import Game, Outcome
from grouprl.envs.guess import Guess
from grouprl.envs.keys import Keys
from grouprl.envs.tictactoe import TicTacToe

__all__ = [
    "Calculator",
    "Demonstrator",
    "Environment",
    "Game",
    "Guess",
    "Judging",
    "Keys",
    "Observation",
    "Outcome",
    "Step",
    "TicTacToe",
]
