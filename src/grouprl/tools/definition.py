"""A tool: a typed Python function with a docstring, its description for a model, and the check of its arguments."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

import pydantic
from docstring_parser import DocstringStyle, parse

from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonMapping, JsonObject

Function = TypeVar("Function", bound=Callable[..., object])
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
SECONDS = 10.0
"""Default time limit of a call, in seconds."""


class ToolError(Exception):
    """A tool failed; the model reads the message."""


@dataclass(frozen=True)
class Options:
    """The options that `tool` declares for a function."""

    name: str = ""
    pure: bool = False
    seconds: float | None = SECONDS


@dataclass(frozen=True)
class Tool:
    """A function that a model may call. Made by `as_tool`; pickled as its function."""

    name: str
    description: str
    function: Callable[..., object]
    parameters: tuple[str, ...]
    """Names of the arguments in order."""
    arguments: type[pydantic.BaseModel]
    """The pydantic model that checks arguments given by name."""
    pure: bool
    """Whether equal arguments give equal results, so that they are remembered."""
    seconds: float | None
    """Time limit of a call in seconds, in a separate process that ends when it is exceeded; None runs the call in this
    process without a limit."""

    def __reduce__(self) -> tuple[object, ...]:
        return as_tool, (self.function,)

    @property
    def schema(self) -> JsonObject:
        """The description of the tool for chat templates and OpenAI-like protocols."""
        parameters = cast(JsonObject, _without_titles(self.arguments.model_json_schema(by_alias=True)))
        parameters.pop("additionalProperties", None)
        described = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": described}

    @property
    def properties(self) -> JsonObject:
        """JSON schemas of the arguments by name."""
        found: JsonObject = self.schema["function"]["parameters"].get("properties", {})
        return found

    def check(self, given: JsonMapping | str) -> JsonObject:
        """Return the arguments, converted to the types of the function.

        Args:
            given: arguments by name, or one text of comma-separated arguments, of which the last may hold commas.

        Raises:
            ToolError: if an argument does not fit; the message names the first one.
        """
        named = self._split(given) if isinstance(given, str) else given
        try:
            checked = self.arguments.model_validate(named)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ToolError(f"{self.name}: {where}: {first['msg']}") from None
        except RecursionError:
            raise ToolError(f"{self.name}: the arguments are nested too deeply") from None
        return {name: getattr(checked, f"argument_{i}") for i, name in enumerate(self.parameters)}

    def _split(self, text: str) -> dict[str, str]:
        if not self.parameters and text.strip():
            raise ToolError(f"{self.name} takes no arguments")
        parts = text.split(",", len(self.parameters) - 1) if text.strip() else []
        return {name: part.strip() for name, part in zip(self.parameters, parts, strict=False)}


@overload
def tool(function: Function) -> Function: ...
@overload
def tool(*, name: str = "", pure: bool = False, seconds: float | None = SECONDS) -> Callable[[Function], Function]: ...
def tool(function: object = None, *, name: str = "", pure: bool = False, seconds: float | None = SECONDS) -> object:
    """Declare the options of a function as a tool (a decorator); plain functions are tools, too.

    Args:
        function: a function with types, and a docstring that describes its arguments (Google style).
        name: its name for the model; the function's own name if empty.
        pure: equal arguments give equal results, so that results are remembered.
        seconds: time limit of a call; such tools run in a separate process, which keeps no state between calls and is
            ended when it is late. None runs the tool in the trainer's process, without a time limit.

    Raises:
        InputError: if the function cannot be a tool.
    """

    def mark(marked: Any) -> Any:
        marked.tool_options = Options(name, pure, seconds)
        as_tool(marked)
        return marked

    return mark if function is None else mark(function)


def as_tool(function: Callable[..., object]) -> Tool:
    """Return a tool for a function (or a callable object).

    Raises:
        InputError: if the function lacks types or a docstring, takes `*args` or `**kwargs`, or has a docstring about
            other arguments.
    """
    options: Options = getattr(function, "tool_options", Options())
    plain = function if inspect.isroutine(function) else type(function).__call__
    name = options.name or getattr(function, "__name__", type(function).__name__)
    if not NAME.fullmatch(name):
        raise InputError(f"The tool name {name!r} is not valid", "a name may hold only letters, digits, '_' and '-'")
    if options.seconds is not None and not options.seconds > 0:
        raise InputError(
            f"The tool '{name}' may take {options.seconds} seconds",
            "the time must be above 0, or None",
            "For instance seconds=10",
        )
    documented = parse(inspect.getdoc(plain) or "", DocstringStyle.GOOGLE)
    if not documented.description:
        raise InputError(
            f"The tool '{name}' has no docstring", "the model learns the purpose of the tool from it", "Add one"
        )
    fields = _fields(name, function, plain, {each.arg_name: each.description or "" for each in documented.params})
    config = pydantic.ConfigDict(extra="forbid")
    model = pydantic.create_model(f"{name}_arguments", __config__=config, **fields)
    if options.seconds is None and _backtracks(model.__pydantic_core_schema__):
        rule = "Python's regular expressions can take forever on a text, and this tool has no time limit"
        remedy = "Write the pattern as a text, or give the tool seconds=…"
        raise InputError(f"An argument of the tool '{name}' has a compiled pattern", rule, remedy)
    parameters = tuple(each[1].alias for each in fields.values())
    return Tool(name, documented.description.strip(), function, parameters, model, options.pure, options.seconds)


def _backtracks(schema: object) -> bool:
    """Return whether a core schema of pydantic holds a pattern that Python's own engine matches."""
    inside = list(schema.values()) if isinstance(schema, dict) else list(schema) if isinstance(schema, list) else []
    own = isinstance(schema, dict) and "pattern" in schema and schema.get("regex_engine") == "python-re"
    return own or any(isinstance(each, re.Pattern) or _backtracks(each) for each in inside)


def _fields(name: str, function: Callable[..., object], plain: object, described: dict[str, str]) -> dict[str, Any]:
    """Return a pydantic field for every parameter, numbered because some names have a meaning in pydantic."""
    try:
        hints = typing.get_type_hints(plain, include_extras=True)
        parameters = list(inspect.signature(function).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise InputError(
            f"The types of the tool '{name}' cannot be read: {error}", remedy="Correct its annotations"
        ) from error
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InputError(
                f"The tool '{name}' takes {parameter}",
                "every argument of a tool needs a name",
                "Write named parameters",
            )
        if parameter.name not in hints:
            raise InputError(
                f"The argument '{parameter.name}' of the tool '{name}' has no type",
                "every argument needs one",
                "Annotate it, such as with str",
            )
    known = [parameter.name for parameter in parameters]
    if unknown := [argument for argument in described if argument not in known]:
        remedy = suggest(unknown[0], known) if known else "It has no arguments."
        raise InputError(
            f"The docstring of the tool '{name}' describes '{unknown[0]}'", "the tool has no such argument", remedy
        )
    return {
        f"argument_{i}": (
            hints[parameter.name],
            pydantic.Field(
                ... if parameter.default is parameter.empty else parameter.default,
                alias=parameter.name,
                description=described.get(parameter.name) or None,
            ),
        )
        for i, parameter in enumerate(parameters)
    }


def _without_titles(schema: object) -> object:
    """Return a JSON schema without the titles that pydantic generates; properties named "title" stay."""
    if isinstance(schema, list):
        return [_without_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    slim = {key: value for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    return {key: value if key in ("default", "examples") else _without_titles(value) for key, value in slim.items()}
