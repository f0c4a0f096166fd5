"""Tasks: numbered prompts, rewards and demonstrations; built-in tasks and adapters.

The class of a registered task is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from grouprl.core.discovery import task_classes
from grouprl.records.examples import Example, Message, Split
from grouprl.tasks.environments import EnvironmentTask, OwnEnvironment, SeededTask
from grouprl.tasks.generated import GeneratedTask
from grouprl.tasks.options import OptionTask
from grouprl.tasks.registry import TaskDescription, describe_tasks, load_task, register_task, task_names
from grouprl.tasks.rows import RowTask
from grouprl.tasks.table import Table
from grouprl.tasks.task import Task

if TYPE_CHECKING:
    from grouprl.tasks.adapters.alfworld import AlfWorld
    from grouprl.tasks.adapters.construct import Construct
    from grouprl.tasks.adapters.control import Control
    from grouprl.tasks.adapters.gym import Gym
    from grouprl.tasks.adapters.huggingface import HuggingFace
    from grouprl.tasks.adapters.jsonl import Jsonl
    from grouprl.tasks.adapters.mcp import McpTask
    from grouprl.tasks.adapters.openenv import OpenEnv
    from grouprl.tasks.adapters.pettingzoo import PettingZoo
    from grouprl.tasks.adapters.preferences.judging import JudgePairs
    from grouprl.tasks.adapters.preferences.pairs import Pairs
    from grouprl.tasks.adapters.preferences.step_labels import StepLabels
    from grouprl.tasks.adapters.program import Program
    from grouprl.tasks.adapters.reasoning import ReasoningGym
    from grouprl.tasks.adapters.rollouts import Rollouts
    from grouprl.tasks.adapters.solved import Solved
    from grouprl.tasks.adapters.squads import Squad
    from grouprl.tasks.adapters.task_folders import TaskFolders
    from grouprl.tasks.adapters.textarena import TextArena
    from grouprl.tasks.adapters.textworld import TextWorld
    from grouprl.tasks.adapters.tools import PythonToolTask, ToolTask
    from grouprl.tasks.adapters.trajectories.task import Trajectories
    from grouprl.tasks.adapters.verifiers import Verifiers
    from grouprl.tasks.adapters.webshop import WebShop
    from grouprl.tasks.builtin.agents.adventure import AdventureTask
    from grouprl.tasks.builtin.agents.browser import BrowserTask
    from grouprl.tasks.builtin.agents.diagnose import DiagnoseTask
    from grouprl.tasks.builtin.agents.faithful import FaithfulTask
    from grouprl.tasks.builtin.agents.games import CalculatorTask, GuessTask, KeysTask, TicTacToeTask
    from grouprl.tasks.builtin.agents.repositories import RepositoriesTask
    from grouprl.tasks.builtin.agents.roles import HostTask, ProposeTask
    from grouprl.tasks.builtin.agents.screen import ScreenTask
    from grouprl.tasks.builtin.agents.search import SearchTask
    from grouprl.tasks.builtin.agents.sentinel import SentinelTask
    from grouprl.tasks.builtin.agents.shortlist import ShortlistTask
    from grouprl.tasks.builtin.agents.sql import SqlTask
    from grouprl.tasks.builtin.agents.subgoals import SubgoalsTask
    from grouprl.tasks.builtin.agents.teams import SignalsTask, TeamTask
    from grouprl.tasks.builtin.agents.terminal import TerminalTask
    from grouprl.tasks.builtin.agents.wordle import WordleTask
    from grouprl.tasks.builtin.single_turn.arithmetic import Addition, Chain, Multiplication
    from grouprl.tasks.builtin.single_turn.code import CodeTask
    from grouprl.tasks.builtin.single_turn.countdown import Countdown
    from grouprl.tasks.builtin.single_turn.duels import Duels
    from grouprl.tasks.builtin.single_turn.gui_critic import Critic
    from grouprl.tasks.builtin.single_turn.maze import Maze
    from grouprl.tasks.builtin.single_turn.picture_quality import Inspect
    from grouprl.tasks.builtin.single_turn.preferences import Preferences
    from grouprl.tasks.builtin.single_turn.reading import Chart, Counting
    from grouprl.tasks.builtin.single_turn.recall import Recall
    from grouprl.tasks.builtin.single_turn.reflection import Reflect
    from grouprl.tasks.builtin.single_turn.retelling import Retell
    from grouprl.tasks.builtin.single_turn.routing import Route
    from grouprl.tasks.builtin.single_turn.self_search import SelfSearch
    from grouprl.tasks.builtin.single_turn.sequences import Reverse, Sorting, Summands
    from grouprl.tasks.builtin.single_turn.speedup import Speed
    from grouprl.tasks.builtin.single_turn.stepwise import StepsTask
    from grouprl.tasks.builtin.single_turn.structured import Schema, ToolCall
    from grouprl.tasks.builtin.single_turn.thinking import Ponder
    from grouprl.tasks.builtin.single_turn.tool_choice import Choose
    from grouprl.tasks.builtin.single_turn.transcribing import Transcribe
    from grouprl.tasks.builtin.single_turn.words import Words

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
    "Construct",
    "Control",
    "Countdown",
    "Counting",
    "Critic",
    "DiagnoseTask",
    "Duels",
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
    "JudgePairs",
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
    "Preferences",
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
    "SentinelTask",
    "ShortlistTask",
    "SignalsTask",
    "Solved",
    "Sorting",
    "Speed",
    "Split",
    "SqlTask",
    "Squad",
    "StepLabels",
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
    "Trajectories",
    "Transcribe",
    "Verifiers",
    "WebShop",
    "WordleTask",
    "Words",
    "describe_tasks",
    "load_task",
    "register_task",
    "task_names",
]


def __getattr__(name: str) -> object:
    """Import the class of a registered task when it is first used."""
    if name not in task_classes():
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = globals()[name] = getattr(importlib.import_module(task_classes()[name]), name)
    return found
