"""Tasks: prompts by number, rewards, demonstrations; built-in ones and adapters."""

from grouprl.records.examples import Example, Message, Split
from grouprl.tasks.adventure import AdventureTask
from grouprl.tasks.alfworld import AlfWorld
from grouprl.tasks.arithmetic import Addition, Chain, Multiplication
from grouprl.tasks.browser import BrowserTask
from grouprl.tasks.code import CodeTask
from grouprl.tasks.control import Control
from grouprl.tasks.countdown import Countdown
from grouprl.tasks.diagnose import DiagnoseTask
from grouprl.tasks.environments import EnvironmentTask, OwnEnvironment, SeededTask
from grouprl.tasks.faithful import FaithfulTask
from grouprl.tasks.games import CalculatorTask, GuessTask, KeysTask, TicTacToeTask
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.gui_critic import Critic
from grouprl.tasks.gym import Gym
from grouprl.tasks.huggingface import HuggingFace
from grouprl.tasks.jsonl import Jsonl
from grouprl.tasks.maze import Maze
from grouprl.tasks.mcp import McpTask
from grouprl.tasks.openenv import OpenEnv
from grouprl.tasks.options import OptionTask
from grouprl.tasks.pairs import Pairs
from grouprl.tasks.pettingzoo import PettingZoo
from grouprl.tasks.picture_quality import Inspect
from grouprl.tasks.program import Program
from grouprl.tasks.reading import Chart, Counting
from grouprl.tasks.reasoning import ReasoningGym
from grouprl.tasks.recall import Recall
from grouprl.tasks.reflection import Reflect
from grouprl.tasks.registry import TaskDescription, describe_tasks, load_task, register_task, task_names
from grouprl.tasks.repositories import RepositoriesTask
from grouprl.tasks.retelling import Retell
from grouprl.tasks.roles import HostTask, ProposeTask
from grouprl.tasks.rollouts import Rollouts
from grouprl.tasks.routing import Route
from grouprl.tasks.rows import RowTask
from grouprl.tasks.screen import ScreenTask
from grouprl.tasks.search import SearchTask
from grouprl.tasks.self_search import SelfSearch
from grouprl.tasks.sequences import Reverse, Sorting, Summands
from grouprl.tasks.shortlist import ShortlistTask
from grouprl.tasks.speedup import Speed
from grouprl.tasks.sql import SqlTask
from grouprl.tasks.stepwise import StepsTask
from grouprl.tasks.structured import Schema, ToolCall
from grouprl.tasks.subgoals import SubgoalsTask
from grouprl.tasks.table import Table
from grouprl.tasks.task import Task
from grouprl.tasks.task_folders import TaskFolders
from grouprl.tasks.teams import SignalsTask, TeamTask
from grouprl.tasks.terminal import TerminalTask
from grouprl.tasks.textarena import TextArena
from grouprl.tasks.textworld import TextWorld
from grouprl.tasks.thinking import Ponder
from grouprl.tasks.tool_choice import Choose
from grouprl.tasks.tools import PythonToolTask, ToolTask
from grouprl.tasks.verifiers import Verifiers
from grouprl.tasks.webshop import WebShop
from grouprl.tasks.wordle import WordleTask

__all__ = [
    "Addition",
    "AdventureTask",
    "AlfWorld",
    "BrowserTask",
    "CalculatorTask",
    "Chain",
    "Chart",
    "Choose",
    "CodeTask",
    "Control",
    "Countdown",
    "Counting",
    "Critic",
    "DiagnoseTask",
    "EnvironmentTask",
    "Example",
    "FaithfulTask",
    "GeneratedTask",
    "GuessTask",
    "Gym",
    "HostTask",
    "HuggingFace",
    "Inspect",
    "Jsonl",
    "KeysTask",
    "Maze",
    "McpTask",
    "Message",
    "Multiplication",
    "OpenEnv",
    "OptionTask",
    "OwnEnvironment",
    "Pairs",
    "PettingZoo",
    "Ponder",
    "Program",
    "ProposeTask",
    "PythonToolTask",
    "ReasoningGym",
    "Recall",
    "Reflect",
    "RepositoriesTask",
    "Retell",
    "Reverse",
    "Rollouts",
    "Route",
    "RowTask",
    "Schema",
    "ScreenTask",
    "SearchTask",
    "SeededTask",
    "SelfSearch",
    "ShortlistTask",
    "SignalsTask",
    "Sorting",
    "Speed",
    "Split",
    "SqlTask",
    "StepsTask",
    "SubgoalsTask",
    "Summands",
    "Table",
    "Task",
    "TaskDescription",
    "TaskFolders",
    "TeamTask",
    "TerminalTask",
    "TextArena",
    "TextWorld",
    "TicTacToeTask",
    "ToolCall",
    "ToolTask",
    "Verifiers",
    "WebShop",
    "WordleTask",
    "describe_tasks",
    "load_task",
    "register_task",
    "task_names",
]
