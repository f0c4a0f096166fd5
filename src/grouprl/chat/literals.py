"""Values as models write them in calls: Python's literals, and JSON with bare keys and marked strings."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from grouprl.chat.said import Call, Malformed

LONGEST = 20_000
"""Characters of calls in Python's syntax; longer ones are not read."""
NAMES = {"true": True, "false": False, "null": None}
BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][A-Za-z0-9_.-]*)\s*:")
FLAWS = (SyntaxError, ValueError, MemoryError, RecursionError)


def python_calls(text: str) -> list[Call | Malformed]:
    """Return the calls `f(x=1)` in a list, or line by line, in order; or what is wrong with them."""
    if len(text) > LONGEST:
        return [Malformed(f"the calls have {len(text)} characters; {LONGEST} is the most")]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text.strip()).body
        nodes = [node.value for node in body if isinstance(node, ast.Expr)]
        if len(nodes) < len(body):
            return [Malformed("the calls are not expressions such as name(argument=value)")]
        inner = nodes[0].elts if len(nodes) == 1 and isinstance(nodes[0], ast.List) else nodes
        return [_call(node) for node in inner] or [Malformed("the list of calls is empty")]
    except FLAWS as error:
        return [Malformed(f"the calls are not read as name(argument=value): {_first_line(error)}"[:200])]


def python_call(call: Call) -> str:
    """Return a call as Python writes it."""
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def bare_object(text: str, quote: str) -> object | Malformed:
    """Return an object `{key:value}` whose keys stand bare and whose strings stand between two of `quote`."""
    parts = text.split(quote)
    if len(parts) % 2 == 0:
        return Malformed(f"a text in the call is opened with {quote} and not closed")
    written = "".join(json.dumps(part) if i % 2 else BARE_KEY.sub(r'\1"\2":', part) for i, part in enumerate(parts))
    try:
        return json.loads(written)
    except (ValueError, RecursionError) as error:
        return Malformed(f"the arguments are not read as {{name:value}}: {error}"[:200])


def bare_text(value: object, quote: str) -> str:
    """Return a value with bare keys, its strings between two of `quote`."""
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{bare_text(each, quote)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(bare_text(each, quote) for each in value) + "]"
    return json.dumps(value)


def _call(node: ast.expr) -> Call | Malformed:
    if not isinstance(node, ast.Call):
        return Malformed(f"{ast.unparse(node)[:80]!r} is not a call name(argument=value)")
    name = ast.unparse(node.func)
    if node.args or any(each.arg is None for each in node.keywords):
        return Malformed(f"{name}: every argument is given by its name")
    return Call(name, {str(each.arg): _value(each.value) for each in node.keywords})


def _value(node: ast.expr) -> Any:
    """Return what a literal says; JSON's own names for true, false and nothing are understood, too."""
    if isinstance(node, ast.Name) and node.id in NAMES:
        return NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(each) if each is not None else None for each in node.keys]
        return {str(key): _value(each) for key, each in zip(keys, node.values, strict=True)}
    found = ast.literal_eval(node)
    if not isinstance(found, str | int | float | bool | None):
        raise ValueError(f"{ast.unparse(node)[:80]} is not text, a number, a list or an object")
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
