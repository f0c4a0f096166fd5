"""Group-relative reinforcement learning for language models: every method verified, every choice visible.

What is listed in `__all__` is imported when it is first used: the command line responds before torch is loaded.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grouprl.algorithms.method import Loss, Method
    from grouprl.core.batch import Batch
    from grouprl.core.errors import GrouprlError, InputError, MissingExtra, RunError
    from grouprl.methods import entry, method, methods

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "GrouprlError",
    "InputError",
    "Loss",
    "Method",
    "MissingExtra",
    "RunError",
    "__version__",
    "entry",
    "method",
    "methods",
]
_HOMES = {
    "Batch": "grouprl.core.batch",
    **dict.fromkeys(("GrouprlError", "InputError", "MissingExtra", "RunError"), "grouprl.core.errors"),
    **dict.fromkeys(("Loss", "Method"), "grouprl.algorithms.method"),
    **dict.fromkeys(("entry", "method"), "grouprl.methods"),
}


class _Package(ModuleType):
    """This package; what it offers is looked for when it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        if name == "methods":  # the package of the catalogue, which can be called
            return importlib.import_module("grouprl.methods")
        if name not in _HOMES:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        found = getattr(importlib.import_module(_HOMES[name]), name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
