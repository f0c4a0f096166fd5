"""Names of a package that are imported when they are first used."""

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package whose names are imported from other modules when they are first used.

    Args:
        package: `__name__` of the package.
        homes: the module of each name.
    """

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        found = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
