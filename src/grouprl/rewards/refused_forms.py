"""Functions that cannot be the reward that was meant: without a returned value, or in the form of another library."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import suppress

from grouprl.core.errors import InputError
from grouprl.rewards.contract import Reward, reward_name

COMPLETION_OF = {"completions": "TRL", "solution_str": "verl"}
"""Parameters that hold the completion in other libraries, which pass it by name."""


def check_form(reward: Reward) -> None:
    """Check that a function returns something and has the completion as its first parameter.

    Raises:
        InputError: it has no `return` with a value, or its parameters are in the order of another library.
    """
    _check_order(reward)
    if _returns_nothing(reward):
        raise InputError(
            f"Reward '{reward_name(reward)}' never returns a value",
            "a reward returns a number, or a list of numbers if it takes all `completions`",
            "Add a return; None is for completions to which the reward does not apply",
        )


def _check_order(reward: Reward) -> None:
    names = list(inspect.signature(reward).parameters)
    theirs = next((name for name in names[1:] if name in COMPLETION_OF), None)
    if theirs is None or names[0] == "completions":
        return
    others = [name for name in names if name not in (theirs, "prompts", "prompt") and name != "kwargs"]
    written = ", ".join([theirs if theirs == "completions" else "completion", *others])
    many = " and returns a list" if theirs == "completions" else ""
    raise InputError(
        f"Reward '{reward_name(reward)}' takes ({', '.join(names)}) in the form of {COMPLETION_OF[theirs]}",
        f"here the completion comes first{many}; the others are columns of your data, the prompt among them, by their "
        "names in it",
        f"Write it as: def {reward_name(reward)}({written})",
    )


def _returns_nothing(reward: Reward) -> bool:
    """Return whether the source of a function is known and has no `return` with a value, and no `yield`."""
    if not inspect.isfunction(inspect.unwrap(reward)):
        return False
    tree: ast.Module | None = None
    with suppress(OSError, TypeError, SyntaxError, ValueError):
        tree = ast.parse(textwrap.dedent(inspect.getsource(reward)))
    if tree is None or not tree.body or not isinstance(tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    ends = [node for node in _own_nodes(tree.body[0]) if isinstance(node, ast.Return) and node.value is not None]
    raises = isinstance(tree.body[0].body[-1], ast.Raise)
    return not ends and not raises


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions inside of it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield from _own_nodes(node)
