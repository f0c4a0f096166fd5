"""Registration without lists: every module below a package is imported when a name is first looked up."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from typing import TypeVar

from grouprl.core.plugins import load_announced

V = TypeVar("V")


def import_all(package: str) -> None:
    """Import every module below `package`, in alphabetical order."""
    found = importlib.import_module(package)
    for module in sorted(pkgutil.walk_packages(found.__path__, f"{package}."), key=lambda each: each.name):
        importlib.import_module(module.name)


def snake_case(name: str) -> str:
    """Return the name a class is registered under: `ConstantLength` -> `constant_length`, `KLLoss` -> `kl_loss`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Discovered(dict[str, V]):
    """A registry that fills itself: the modules of `package` register in it, and are imported at the first look."""

    def __init__(self, package: str) -> None:
        super().__init__()
        self._package = package
        self._state = "new"

    def _fill(self) -> None:
        if self._state == "new":
            self._state = "filling"  # modules that are being imported may look up what is registered already
            try:
                import_all(self._package)
                load_announced()
            except BaseException:
                self._state = "new"
                raise
            self._state = "full"

    def __getitem__(self, key: str) -> V:
        self._fill()
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._fill()
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return super().__iter__()

    def __len__(self) -> int:
        self._fill()
        return super().__len__()

    def keys(self):  # type: ignore[no-untyped-def]
        """Return the names, all of them registered."""
        self._fill()
        return super().keys()

    def values(self):  # type: ignore[no-untyped-def]
        """Return what is registered."""
        self._fill()
        return super().values()

    def items(self):  # type: ignore[no-untyped-def]
        """Return names and what is registered under them."""
        self._fill()
        return super().items()

    def get(self, key, default=None):  # type: ignore[no-untyped-def]
        """Return what is registered under `key`, or `default`."""
        self._fill()
        return super().get(key, default)

    def registered(self, key: str) -> bool:
        """Whether `key` is registered so far; imports nothing."""
        return super().__contains__(key)
