"""Modules, and names of a package, that are imported when something of them is first used."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class LateModule(ModuleType):
    """A module whose code is run, in this same object, as soon as a name that it does not have yet is read.

    `importlib.util.LazyLoader` runs the code on any access to the module, and `inspect` accesses all modules.
    """

    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec.name)
        self.__file__, self.__spec__, self.__loader__ = spec.origin, spec, spec.loader

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__class__ = ModuleType  # type: ignore[assignment]
        self.__path__ = list(spec.submodule_search_locations or [])
        spec.loader.exec_module(self)
        return getattr(self, name)


class _OwnImports(MetaPathFinder, Loader):
    """Finds the modules of a package that its own code has imported by the time it is asked for them.

    `import package.inner` runs the code of a late package as it asks where `inner` is. It then loads `inner`, although
    the package has done so, and C extensions cannot be set up twice.
    """

    def __init__(self, package: str) -> None:
        self.within = f"{package}."

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec of a loaded module; None of others, and of a module that is to be loaded again."""
        if target is not None or not fullname.startswith(self.within) or fullname not in sys.modules:
            return None
        return ModuleSpec(fullname, self, loader_state=sys.modules[fullname].__spec__)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the loaded module."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing; let the module keep the spec by which it was loaded."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def import_late(name: str) -> None:
    """Put off the import of a module from its first `import` to the first use of one of its names.

    Where the module has been imported already, or is not installed, nothing changes. Threads must not race to the
    first use: only a command that has one thread by then may call this.
    """
    if name in sys.modules:
        return
    if spec := importlib.util.find_spec(name):
        sys.modules[name] = LateModule(spec)
        sys.meta_path.insert(0, _OwnImports(name))


def is_late(name: str) -> bool:
    """Return whether the import of a module has been put off and nothing of it has been used yet."""
    return isinstance(sys.modules.get(name), LateModule)


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
