"""Registration without lists: which module registers a name is read off the sources, and only that one is imported.

A name stands as a literal in its decorator: `@entry("grpo", …)`, `@dialect("grpo@trl", …)`, `@part("objective")` over a
class or `@part("objective", "its_name")`. A test holds what is read so against what is registered once all is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from grouprl.core.plugins import load_announced

V = TypeVar("V")
METHOD = re.compile(r'^@(?:entry|dialect)\(\s*"([^"]+)"', re.MULTILINE)
PART = re.compile(r'^@part\(\s*"(\w+)"(?:,\s*(?:name=)?"(\w+)")?\s*\)\s*class (\w+)', re.MULTILINE)


@cache
def method_homes() -> Mapping[str, str]:
    """Return, for the name of every method, the module that registers it; nothing is imported."""
    return {match[1]: module for module, match in registrations("grouprl.methods", METHOD)}


@cache
def part_homes() -> Mapping[str, Mapping[str, str]]:
    """Return, kind by kind, for the name of every part the module that registers it; nothing is imported."""
    found: dict[str, dict[str, str]] = {}
    for module, match in registrations("grouprl.algorithms", PART):
        found.setdefault(match[1], {})[match[2] or snake_case(match[3])] = module
    return found


def registrations(package: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield where `pattern` stands in the modules of `package`, in alphabetical order."""
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).rglob("*.py")):
            module = ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
            for match in pattern.finditer(path.read_bytes().decode()):
                yield module, match


def snake_case(name: str) -> str:
    """`ConstantLength` -> `constant_length`, `KLLoss` -> `kl_loss`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Discovered(MutableMapping[str, V]):
    """A registry that knows the names of its `homes` at once, and imports the module of a name when that is asked for.

    Names of installed plugins and of the user's code come on top; plugins are imported as soon as a name is not among
    the homes, or all are asked for.
    """

    def __init__(self, homes: Callable[[], Mapping[str, str]]) -> None:
        self._homes = homes
        self._registered: dict[str, V] = {}

    def __getitem__(self, key: str) -> V:
        """Return what is registered under `key`, once its module is imported."""
        if key not in self._registered and (home := self.home(key)):
            importlib.import_module(home)
        if key not in self._registered:
            load_announced()
        return self._registered[key]

    def __setitem__(self, key: str, value: V) -> None:
        """Register `value` under `key`."""
        self._registered[key] = value

    def __delitem__(self, key: str) -> None:
        """Forget what is registered under `key`."""
        del self._registered[key]

    def __contains__(self, key: object) -> bool:
        """Return whether a name is registered; imports nothing but plugins."""
        if key in self._registered or key in self._homes():
            return True
        load_announced()
        return key in self._registered

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names: ours in the order of their modules, then the others as they came."""
        load_announced()
        return iter(dict.fromkeys((*self._homes(), *self._registered)))

    def __len__(self) -> int:
        """Return the number of names."""
        return sum(1 for _ in self)

    def home(self, key: str) -> str:
        """Return the module of ours that registers `key`; '' for none."""
        return self._homes().get(key, "")

    def loaded(self) -> Mapping[str, V]:
        """Return what is registered so far; imports nothing."""
        return dict(self._registered)
