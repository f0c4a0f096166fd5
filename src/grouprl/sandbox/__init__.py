"""Model-written Python, contained: no network, no files but its own, limited time, memory, processes and output.

The names in `__all__` are imported when they are first used: the processes that run such code import some modules of
this package and must hold nothing else.
"""

from __future__ import annotations

from grouprl.core.late_import import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grouprl.sandbox.box import Sandbox
    from grouprl.sandbox.folder import Folder, FolderEntry
    from grouprl.sandbox.level import LEVELS, Level, LevelName
    from grouprl.sandbox.program_outcome import Limits, ProgramOutcome, Why
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
_HOMES = {
    "Sandbox": "box",
    **dict.fromkeys(("Folder", "FolderEntry"), "folder"),
    **dict.fromkeys(("LEVELS", "Level", "LevelName"), "level"),
    **dict.fromkeys(("Limits", "ProgramOutcome", "Why"), "program_outcome"),
    "SandboxSettings": "settings",
    **dict.fromkeys(("active", "execute", "run"), "shared"),
}
__getattr__ = lazy_names(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
