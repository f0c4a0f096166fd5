"""Model-written Python, contained: no network, no files but its own, limited time, memory, processes and output."""

from grouprl.sandbox.box import Sandbox
from grouprl.sandbox.folder import Folder, FolderEntry
from grouprl.sandbox.level import LEVELS, Level, LevelName
from grouprl.sandbox.outcome import Limits, ProgramOutcome, Why
from grouprl.sandbox.settings import SandboxSettings
from grouprl.sandbox.shared import active, execute, run

__all__ = [
    "LEVELS",
    "Folder",
    "FolderEntry",
    "Level",
    "LevelName",
    "Limits",
    "ProgramOutcome",
    "Sandbox",
    "SandboxSettings",
    "Why",
    "active",
    "execute",
    "run",
]
