"""Names in lines of plain Python: what they read before they assign it, and the sources of functions that they call."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any, TypeGuard

from grouprl.algorithms import plain, turn_returns
from grouprl.algorithms.advantage import returns
from grouprl.algorithms.objective import ratio

MODULES = ("math", "torch", "Tensor")
SHARED = (plain, turn_returns, returns, ratio)


def constants() -> frozenset[str]:
    """Return the names that mean the same everywhere: of modules and of Python itself."""
    return frozenset((*MODULES, *vars(builtins)))


def read_first(source: str) -> list[str]:
    """Return the names that lines read before they assign them, in the order of their first appearance."""
    known: set[str] = set()
    found: dict[str, None] = {}
    for statement in ast.parse(source).body:
        for name, assigned in _names(statement):
            if assigned:
                known.add(name)
            elif name not in known:
                found[name] = None
    return list(found)


def _names(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield the names in a node in the order of evaluation, each with whether it is assigned."""
    if isinstance(node, ast.Name):
        yield node.id, isinstance(node.ctx, ast.Store)
    elif isinstance(node, ast.FunctionDef | ast.arg):
        yield getattr(node, "name", getattr(node, "arg", "")), True
    for child in sorted(ast.iter_child_nodes(node), key=lambda child: _turn(node, child)):
        yield from _names(child)


def _turn(node: ast.AST, child: ast.AST) -> int:
    """Return when a child is evaluated: a value before its target, the parts of a comprehension before its element."""
    if isinstance(node, ast.Assign):
        return 0 if child is node.value else 1
    if isinstance(node, ast.For | ast.comprehension):
        return (node.iter, node.target).index(child) if child in (node.iter, node.target) else 2
    return 0 if isinstance(child, ast.comprehension | ast.arguments) else 1


def printed(names: Iterable[str], modules: Iterable[str]) -> dict[str, str]:
    """Return the sources of the functions of tensors and the constants among `names`, and of what these call, by name.

    They are looked for in `modules`, then among those that all parts share.
    """
    places = [vars(sys.modules[name]) for name in modules]
    return dict(_sources(names, [*places, *map(vars, SHARED)], set()))


def _sources(names: Iterable[str], places: list[dict[str, Any]], known: set[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        value = next((place[name] for place in places if name in place), None)
        if name in known or name in constants():
            continue
        if isinstance(value, FunctionType):
            known.add(name)
            source = inspect.getsource(value)
            yield from _sources(_globals(source), [value.__globals__], known)
            yield name, source.rstrip()
        elif name.isupper() and isinstance(value, int | float):
            known.add(name)
            yield name, f"{name} = {value!r}"


def _globals(source: str) -> list[str]:
    """Return the names that a function does not assign itself."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name | ast.arg)]
    own = {node.arg if isinstance(node, ast.arg) else node.id for node in nodes if not _loaded(node)}
    return list(dict.fromkeys(node.id for node in nodes if _loaded(node) and node.id not in own))


def _loaded(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
