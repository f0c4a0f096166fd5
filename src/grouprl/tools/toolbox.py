"""Tools that are called together: arguments checked, results remembered, time limited, failures made messages."""

from __future__ import annotations

import dataclasses
import json
import re
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pydantic

from grouprl.chat.tool_calls import typed
from grouprl.chat.turn_content import Call, Malformed, Result, Status
from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonObject
from grouprl.envs.environment import unwritable
from grouprl.tools.definition import Tool, ToolError, as_tool

REMEMBERED = 4096
"""Results that are kept."""
NUL = "\0"
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}")
"""Where Python says where in memory an object lies."""
LONGEST = 4000
"""Characters of a result."""


class Toolbox:
    """Tools by name. Usable in several environments at a time; pickled without what it remembers."""

    def __init__(
        self,
        tools: Sequence[Tool | Callable[..., object]],
        *,
        traces: bool = False,
        longest: int = LONGEST,
        alphabet: str = "",
    ) -> None:
        """Put tools together.

        Args:
            tools: functions, or what `as_tool` made of them.
            traces: whether the model is shown the traceback of a tool that raised.
            longest: characters of a result that are shown.
            alphabet: the characters that the model can read, where it cannot read all: a call whose result holds
                another one has failed.

        Raises:
            InputError: on no tools, two of one name, or a function that cannot be a tool.
        """
        self.tools = {each.name: each for each in map(_tool, tools)}
        if not tools or len(self.tools) < len(tools):
            names = [_tool(each).name for each in tools]
            raise InputError(f"The tools are {names}", "there is at least one, and their names differ")
        self.traces, self.longest, self.alphabet = traces, longest, frozenset(alphabet)
        self.hits = 0
        """How many results were remembered ones."""
        self._cached: OrderedDict[str, Result] = OrderedDict()
        self._worker: Any = None

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (tuple(self.tools.values()), self.traces, self.longest, "".join(sorted(self.alphabet)))

    @property
    def schemas(self) -> tuple[dict[str, object], ...]:
        """The tools' descriptions for a model."""
        return tuple(each.schema for each in self.tools.values())

    def call(self, call: Call | Malformed) -> Result:
        """Return the result of a call; nothing that a model writes, and nothing that a tool does, makes this raise.

        The text of a result can always be written as UTF-8.

        Raises:
            InputError: if another process cannot find the tool.
            RunError: if no process for tools can be started.
        """
        try:
            return self._readable(self._called(call))
        except InputError:  # a tool that no other process can find
            raise
        except (RecursionError, ValueError, OverflowError) as error:  # arguments nested or long beyond what can be kept
            name = "" if isinstance(call, Malformed) else call.name
            return self._readable(Result(name, f"the call cannot be read: {type(error).__name__}", "malformed"))

    def _called(self, call: Call | Malformed) -> Result:
        if isinstance(call, Malformed):
            return Result("", call.what, "malformed")
        found = self.tools.get(call.name)
        if found is None:
            what = f"there is no tool {shortened(call.name, 80)!r}. {suggest(call.name, self.tools)}"
            return Result(call.name, what, "malformed")
        try:
            arguments = found.check(typed(call, found.properties) if call.untyped else call.arguments)
        except ToolError as error:
            return Result(call.name, shortened(str(error), self.longest), "malformed")
        return self._from_cache(found, arguments) if found.pure else self._run(found, arguments)

    def _readable(self, result: Result) -> Result:
        """Return the result, or a failed call where the model cannot read it; half a character stands escaped."""
        name, text = (part.encode(errors="backslashreplace").decode() for part in (result.name, result.text))
        if result.status != "ok":
            return Result(name, text, result.status)
        half = unwritable(result.text)
        odd = half or next((x for x in text if x == NUL or (self.alphabet and x not in self.alphabet)), None)
        if odd is None:
            return result
        return Result(name, f"error: the result holds {odd!a}, which cannot be shown", "error")

    def close(self) -> None:
        """End the process that tools run in, if there is one; the next call starts it again."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _from_cache(self, found: Tool, arguments: dict[str, object]) -> Result:
        key = json.dumps([found.name, arguments], sort_keys=True, default=repr)
        if key in self._cached:
            self.hits += 1
            self._cached.move_to_end(key)
            return self._cached[key]
        result = self._run(found, arguments)
        if result.status != "timeout":  # that may be the machine's fault
            self._cached[key] = result
            if len(self._cached) > REMEMBERED:
                self._cached.popitem(last=False)
        return result

    def _run(self, found: Tool, arguments: JsonObject) -> Result:
        if found.seconds is None:
            status, text = attempt(found, arguments, self.traces, self.longest)
        else:
            if self._worker is None:
                from grouprl.tools.process import ToolProcess

                names = ", ".join(name for name, each in self.tools.items() if each.seconds is not None)
                self._worker = ToolProcess((self, self.traces, self.longest), names)
            status, text = self._worker.call(found, arguments)
        return Result(found.name, text, status)


def attempt(found: Tool, arguments: Mapping[str, object], traces: bool, longest: int) -> tuple[Status, str]:
    """Call a tool and return (status, text): its result, or in words what went wrong."""
    try:
        return "ok", shortened(shown(found.function(**arguments)), longest)
    except ToolError as error:
        return "error", shortened(f"error: {_said(error)}", longest)
    except TimeoutError as error:
        return "timeout", shortened(f"error: {_said(error)}", longest)
    except (Exception, SystemExit) as error:
        text = traceback.format_exc() if traces else f"error: {type(error).__name__}: {_said(error)}"
        return "error", shortened(text, longest)


def shown(value: object) -> str:
    """Return a tool's result as text: a string as it is, anything else as JSON, objects by their fields or their words.

    Raises:
        ToolError: for what has neither: its text would be an address in memory, another one in every run.
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError):
        return _in_words(value)


def _plain(value: Any) -> object:
    """Return what JSON says of an object: its fields, the members of a set in order, or its own words."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump()
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda each: (type(each).__name__, shown(each)))
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if callable(getattr(value, "tolist", None)):  # arrays and tensors
        return value.tolist()
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        fields = {name: each for name, each in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
        if fields:
            return fields
    return _in_words(value)


def _in_words(value: object) -> str:
    text = str(value)
    if ADDRESS.search(text):
        raise ToolError(
            f"the result is an object of type {type(value).__name__}, which says nothing of itself: a tool returns a "
            "text, a number, a list, a dict or a dataclass"
        )
    return text


def shortened(text: str, longest: int) -> str:
    """Return the text, its end left out if it is too long."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _tool(given: Tool | Callable[..., object]) -> Tool:
    return given if isinstance(given, Tool) else as_tool(given)


def _said(error: BaseException) -> str:
    """Return the message of an error, whose text may itself fail to be made."""
    try:
        return str(error)
    except Exception as another:
        return f"its message raised {type(another).__name__}"


def _rebuilt(tools: Sequence[Tool], traces: bool, longest: int, alphabet: str) -> Toolbox:
    return Toolbox(tools, traces=traces, longest=longest, alphabet=alphabet)
