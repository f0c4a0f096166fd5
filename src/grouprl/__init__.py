"""Group-relative reinforcement learning for language models: every choice visible, every method's checks on its card.

What is listed in `__all__` is imported when it is first used, so that the command line answers before torch is loaded.
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
    **dict.fromkeys(("entry", "method", "methods"), "grouprl.methods"),
}


def _found(name: str) -> Any:
    return getattr(importlib.import_module(_HOMES[name]), name)


class _Package(ModuleType):
    """This package: `method` and `methods` are the functions, though modules of these names are imported into it."""

    method = property(lambda self: _found("method"), lambda self, module: None)
    methods = property(lambda self: _found("methods"), lambda self, module: None)

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        found = _found(name)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
