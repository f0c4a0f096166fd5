"""Registration without lists: the module of a name is found by reading the sources, and only it is imported.

A name stands as a literal in the source: in `entry("grpo", …)` and `dialect("grpo@trl", …)` below a composing function,
in `@part("objective")`, `@part("objective", "its_name")` or `@register_task("its_name")` above a class. Tests compare
the names read this way with those registered after importing every module.
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
METHOD = re.compile(r'^(?:entry|dialect)\(\s*"([^"]+)"', re.MULTILINE)
PART = re.compile(r'^@part\(\s*"(\w+)"(?:,\s*(?:name=)?"(\w+)")?\s*\)\s*class (\w+)', re.MULTILINE)

TASK = re.compile(r'^@register_task\(\s*"(\w+)"[^)]*\)\s*class (\w+)', re.MULTILINE)


@cache
def method_homes() -> Mapping[str, str]:
    """Return the module that registers each method, by the method's name; imports nothing."""
    return {match[1]: module for module, match in registrations("grouprl.methods", METHOD)}


@cache
def part_homes() -> Mapping[str, Mapping[str, str]]:
    """Return the module that registers each part, by kind and name; imports nothing."""
    found: dict[str, dict[str, str]] = {}
    for module, match in registrations("grouprl.algorithms", PART):
        found.setdefault(match[1], {})[match[2] or snake_case(match[3])] = module
    return found


@cache
def task_homes() -> Mapping[str, str]:
    """Return the module that registers each task, by the task's name; imports nothing."""
    return {match[1]: module for module, match in registrations("grouprl.tasks", TASK)}


@cache
def task_classes() -> Mapping[str, str]:
    """Return the module of each registered task's class, by the name of the class; imports nothing."""
    return {match[2]: module for module, match in registrations("grouprl.tasks", TASK)}


def registrations(package: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield each match of `pattern` in the modules of `package`, in alphabetical order of the modules."""
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).rglob("*.py")):
            module = ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
            for match in pattern.finditer(path.read_bytes().decode()):
                yield module, match


def snake_case(name: str) -> str:
    """Convert a class name: `ConstantLength` -> `constant_length`, `KLLoss` -> `kl_loss`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Discovered(MutableMapping[str, V]):
    """A registry that knows the names in its `homes` from the start, and imports the module of a name on first use.

    Installed plugins and the user's code can add names; plugins are imported when a name is not in `homes`, or when all
    names are requested.
    """

    def __init__(self, homes: Callable[[], Mapping[str, str]]) -> None:
        self._homes = homes
        self._registered: dict[str, V] = {}

    def __getitem__(self, key: str) -> V:
        """Import the module of `key` if necessary, and return what is registered under it."""
        if key not in self._registered and (home := self.home(key)):
            importlib.import_module(home)
        if key not in self._registered:
            load_announced()
        return self._registered[key]

    def __setitem__(self, key: str, value: V) -> None:
        """Register `value` under `key`."""
        self._registered[key] = value

    def __delitem__(self, key: str) -> None:
        """Remove what is registered under `key`."""
        del self._registered[key]

    def __contains__(self, key: object) -> bool:
        """Return whether a name is registered; imports nothing but plugins."""
        if key in self._registered or key in self._homes():
            return True
        load_announced()
        return key in self._registered

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names: grouprl's own in the order of their modules, then others in order of registration."""
        load_announced()
        return iter(dict.fromkeys((*self._homes(), *self._registered)))

    def __len__(self) -> int:
        """Return the number of names."""
        return sum(1 for _ in self)

    def home(self, key: str) -> str:
        """Return the module of grouprl that registers `key`; '' if none does."""
        return self._homes().get(key, "")

    def loaded(self) -> Mapping[str, V]:
        """Return what is registered so far; imports nothing."""
        return dict(self._registered)
