"""Values in models' calls: Python literals, and JSON with unquoted keys and specially quoted strings."""

from __future__ import annotations

import ast
import io
import json
import keyword
import re
import tokenize
import warnings
from collections.abc import Mapping, Sequence

from grouprl.chat.safe_json import refuse_constant
from grouprl.chat.scanning import sound
from grouprl.chat.turn_content import Call, Malformed
from grouprl.core.errors import InputError, shortened

LONGEST = 20_000
"""Largest number of characters of calls in Python's syntax; longer ones are not read."""
NAMES = {"true": True, "false": False, "null": None}
BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_][A-Za-z0-9_.-]*)\s*:")
BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
FLAWS = (SyntaxError, ValueError, MemoryError, RecursionError)


def python_calls(text: str) -> list[Call | Malformed]:
    """Return the calls `f(x=1)` in a list, or one per line, in order; or their fault."""
    if len(text) > LONGEST:
        return [Malformed(f"the calls have {len(text)} characters; at most {LONGEST} are read")]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text, names = _with_plain_names(text.strip())
            body = ast.parse(text).body
        nodes = [node.value for node in body if isinstance(node, ast.Expr)]
        if len(nodes) < len(body):
            return [Malformed("the calls are not expressions such as name(argument=value)")]
        inner = nodes[0].elts if len(nodes) == 1 and isinstance(nodes[0], ast.List) else nodes
        return [_call(node, names) for node in inner] or [Malformed("the list of calls is empty")]
    except FLAWS as error:
        return [Malformed(f"the calls are not read as name(argument=value): {_first_line(error)}"[:200])]


def python_call(call: Call) -> str:
    """Return a call in Python's syntax."""
    arguments = call.arguments if isinstance(call.arguments, Mapping) else {}
    for name in (call.name, *arguments):
        if not BARE_NAME.fullmatch(name):
            raise _no_bare(name)
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def bare_object(text: str, quote: str) -> object | Malformed:
    """Return an object `{key:value}` with unquoted keys and strings between two of `quote`, or its fault."""
    parts = text.split(quote)
    if len(parts) % 2 == 0:
        return Malformed(f"a text in the call is opened with {quote} and not closed")
    written = "".join(json.dumps(part) if i % 2 else BARE_KEY.sub(r'\1"\2":', part) for i, part in enumerate(parts))
    try:
        found = json.loads(written, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        return Malformed(f"the arguments are not read as {{name:value}}: {error}"[:200])
    return sound(found) or found


def bare_text(value: object, quote: str) -> str:
    """Return the text of a value with unquoted keys and strings between two of `quote`.

    Raises:
        InputError: if a key needs quotes, or a text holds `quote`.
    """
    if isinstance(value, str):
        if quote in value:
            raise InputError(f"the argument {shortened(value, 80)} holds {quote}", "this sign would end the argument")
        return quote + value + quote
    if isinstance(value, Mapping):
        for key in value:
            if not BARE_NAME.fullmatch(str(key)):
                raise _no_bare(str(key))
        return "{" + ",".join(f"{key}:{bare_text(each, quote)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ",".join(bare_text(each, quote) for each in value) + "]"
    return json.dumps(value)


def _with_plain_names(text: str) -> tuple[str, dict[str, str]]:
    """Replace names that are invalid in Python (`get-time`, `from`); return the text and the original names.

    A name directly precedes `(`, or the `=` of an argument.
    """
    lines = text.split("\n")
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return text, {}
    names, at = dict[str, str](), len(tokens) - 1
    while at > 0:
        first = at
        while tokens[first - 1].end == tokens[first].start and _in_name(tokens[first - 1]) and first > 0:
            first -= 1
        written = "".join(token.string for token in tokens[first:at])
        if (
            tokens[at].string in ("(", "=")
            and BARE_NAME.fullmatch(written)
            and not _plain_name(written, tokens[at].string == "(")
        ):
            (row, begin), (_, end) = tokens[first].start, tokens[at - 1].end
            names[f"_name{len(names)}_"] = written
            lines[row - 1] = f"{lines[row - 1][:begin]}_name{len(names) - 1}_{lines[row - 1][end:]}"
        at = min(at - 1, first)
    return "\n".join(lines), names


def _in_name(token: tokenize.TokenInfo) -> bool:
    return token.type in (tokenize.NAME, tokenize.NUMBER) or token.string in ("-", ".")


def _plain_name(name: str, dotted: bool) -> bool:
    parts = name.split(".") if dotted else [name]
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)


def _no_bare(name: str) -> InputError:
    return InputError(
        f"{shortened(name, 80)} cannot be written in this syntax of tool calls",
        "names are unquoted, so they may hold only letters, digits, '_', '-' and '.'",
    )


def _call(node: ast.expr, names: Mapping[str, str]) -> Call | Malformed:
    if not isinstance(node, ast.Call):
        return Malformed(f"{ast.unparse(node)[:80]!r} is not a call name(argument=value)")
    name = ast.unparse(node.func)
    name = names.get(name, name)
    if node.args or any(each.arg is None for each in node.keywords):
        return Malformed(f"{name}: every argument must be given by name")
    given = {names.get(str(each.arg), str(each.arg)): _value(each.value) for each in node.keywords}
    return sound([name, given]) or Call(name, given)


def _value(node: ast.expr) -> object:
    """Return the value of a literal; JSON's true, false and null are understood, too."""
    if isinstance(node, ast.Name) and node.id in NAMES:
        return NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        keys = [str(ast.literal_eval(each)) for each in node.keys if each is not None]
        if len(keys) < len(node.keys):
            raise ValueError(f"{ast.unparse(node)[:80]} unpacks another object")
        return {key: _value(each) for key, each in zip(keys, node.values, strict=True)}
    found = ast.literal_eval(node)
    if not isinstance(found, str | int | float | bool | None):
        raise ValueError(f"{ast.unparse(node)[:80]} is not text, a number, a list or an object")
    return found


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
