"""The games of this package, each in its own class, played by the built-in tasks."""

from grouprl.envs.builtin.adventure import Adventure
from grouprl.envs.builtin.calculator import Calculator
from grouprl.envs.builtin.diagnose import Diagnose
from grouprl.envs.builtin.faithful import Faithful
from grouprl.envs.builtin.guess import Guess
from grouprl.envs.builtin.gui_screen import Screen
from grouprl.envs.builtin.key_door import Keys
from grouprl.envs.builtin.search import Search
from grouprl.envs.builtin.sentinel import Sentinel
from grouprl.envs.builtin.shortlist import Shortlist
from grouprl.envs.builtin.signals import Signals
from grouprl.envs.builtin.sql import Sql
from grouprl.envs.builtin.subgoals import Subgoals
from grouprl.envs.builtin.team import Team
from grouprl.envs.builtin.tictactoe import TicTacToe
from grouprl.envs.builtin.wordle import Wordle

__all__ = [
    "Adventure",
    "Calculator",
    "Diagnose",
    "Faithful",
    "Guess",
    "Keys",
    "Screen",
    "Search",
    "Sentinel",
    "Shortlist",
    "Signals",
    "Sql",
    "Subgoals",
    "Team",
    "TicTacToe",
    "Wordle",
]
