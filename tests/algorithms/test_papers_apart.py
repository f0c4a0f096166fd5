"""Parts that one paper needs stand in the `papers` folder of their kind, apart from those that several share."""

from __future__ import annotations

import ast
import inspect
import types
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import grouprl
from grouprl.algorithms.part import KINDS, PARTS, Part
from grouprl.methods.registry import CATALOGUE, Entry

ROOT = Path(grouprl.__file__).parent


def parts_of(entry: Entry) -> set[type[Part]]:
    """The parts that an entry adds to its base, with any settings, and those of its method as it is."""
    found = set(_named(entry.function, set()))
    if inspect.Parameter.empty not in entry.settings.values():
        found |= {type(part) for part in entry.build().parts()}
    return found


def _named(function: Any, seen: set[Any]) -> Iterator[type[Part]]:
    """The part classes that the code of a composing function names, in functions of the catalogue that it calls too."""
    if function in seen:
        return
    seen.add(function)
    names = _names(function.__code__)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [*(function.__globals__.get(name) for name in names), *cells]
    modules = [v for v in values if isinstance(v, types.ModuleType) and v.__name__.startswith("grouprl.methods")]
    for value in [*values, *(getattr(module, name, None) for module in modules for name in names)]:
        if isinstance(value, type) and issubclass(value, Part):
            yield value
        elif inspect.isfunction(value) and value.__module__.startswith("grouprl.methods"):
            yield from _named(value, seen)


def _names(code: types.CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


@cache
def needed() -> dict[str, int]:
    """Of each module that defines parts: how many methods need its most needed one; dialects of one method are one."""
    users: dict[type[Part], set[str]] = defaultdict(set)
    for name, entry in CATALOGUE.items():
        for part in parts_of(entry):
            users[part].add(name.partition("@")[0])
    found: dict[str, int] = {}
    for kind in KINDS:
        for part in PARTS[kind].values():
            found[part.__module__] = max(found.get(part.__module__, 0), len(users[part]))
    return {module: most for module, most in found.items() if module.startswith("grouprl.")}


@cache
def imports() -> dict[str, set[str]]:
    """Of each module of the parts: those of them that it imports."""
    found = {}
    for path in (ROOT / "algorithms").rglob("*.py"):
        tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        names = {str(node.module) for node in tree if isinstance(node, ast.ImportFrom)}
        found["grouprl." + ".".join(path.relative_to(ROOT).with_suffix("").parts)] = names
    return found


def of_papers(module: str) -> bool:
    return ".papers." in module


def test_what_several_methods_need_is_shared() -> None:
    assert [module for module, methods in needed().items() if methods > 1 and of_papers(module)] == []


def test_shared_parts_need_nothing_of_one_paper() -> None:
    assert [(m, o) for m, others in imports().items() if not of_papers(m) for o in others if of_papers(o)] == []


def test_what_one_paper_needs_stands_apart() -> None:
    shared = [module for module in imports() if not of_papers(module)]
    read = {other for module in shared for other in imports()[module]}
    alone = [module for module, methods in needed().items() if methods < 2 and module not in read]
    assert [module for module in alone if not of_papers(module)] == []
