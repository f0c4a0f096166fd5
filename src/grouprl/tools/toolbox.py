"""Tools that are called together: arguments are checked, results remembered, time limited, failures put into words."""

from __future__ import annotations

import json
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grouprl.errors import InputError, suggest
from grouprl.tools.calls import Call, Malformed, Result
from grouprl.tools.tool import Tool, ToolError, as_tool

REMEMBERED = 4096
"""Results that are kept."""
LONGEST = 4000
"""Characters of a result."""


class Toolbox:
    """Tools by name. Usable in several environments at a time; pickled without what it remembers."""

    def __init__(
        self, tools: Sequence[Tool | Callable[..., Any]], *, traces: bool = False, longest: int = LONGEST
    ) -> None:
        """Put tools together.

        Args:
            tools: functions, or what `as_tool` made of them.
            traces: whether the model is shown the traceback of a tool that raised.
            longest: characters of a result that are shown.

        Raises:
            InputError: on no tools, two of one name, or a function that cannot be a tool.
        """
        self.tools = {each.name: each for each in map(_tool, tools)}
        if not tools or len(self.tools) < len(tools):
            names = [_tool(each).name for each in tools]
            raise InputError(f"The tools are {names}", "there is at least one, and their names differ")
        self.traces, self.longest = traces, longest
        self.hits = 0
        """How many results were remembered ones."""
        self._kept: OrderedDict[str, Result] = OrderedDict()
        self._worker: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (tuple(self.tools.values()), self.traces, self.longest)

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """What a model is told of the tools."""
        return tuple(each.schema for each in self.tools.values())

    def call(self, call: Call | Malformed) -> Result:
        """Return what came of a call; nothing that a model writes, and nothing that a tool does, makes this raise.

        Raises:
            RunError: if no process for tools can be started.
        """
        if isinstance(call, Malformed):
            return Result("", call.what, "malformed")
        found = self.tools.get(call.name)
        if found is None:
            return Result(call.name, f"there is no tool {call.name!r}. {suggest(call.name, self.tools)}", "malformed")
        try:
            arguments = found.check(call.arguments)
        except ToolError as error:
            return Result(call.name, str(error), "malformed")
        return self._remembered(found, arguments) if found.pure else self._run(found, arguments)

    def close(self) -> None:
        """End the process that tools run in, if there is one; the next call starts it again."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _remembered(self, found: Tool, arguments: dict[str, Any]) -> Result:
        key = json.dumps([found.name, arguments], sort_keys=True, default=repr)
        if key in self._kept:
            self.hits += 1
            self._kept.move_to_end(key)
            return self._kept[key]
        result = self._run(found, arguments)
        if result.status != "timeout":  # that may be the machine's fault
            self._kept[key] = result
            if len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
        return result

    def _run(self, found: Tool, arguments: dict[str, Any]) -> Result:
        if found.seconds is None:
            status, text = attempt(found, arguments, self.traces, self.longest)
        else:
            if self._worker is None:
                from grouprl.tools.process import ToolProcess

                self._worker = ToolProcess(self)
            status, text = self._worker.call(found, arguments)
        return Result(found.name, text, status)


def attempt(found: Tool, arguments: Mapping[str, Any], traces: bool, longest: int) -> tuple[Any, str]:
    """Call a tool and return (status, text): its result, or in words what went wrong."""
    try:
        return "ok", shortened(shown(found.function(**arguments)), longest)
    except ToolError as error:
        return "error", shortened(f"error: {error}", longest)
    except (Exception, SystemExit) as error:
        text = traceback.format_exc() if traces else f"error: {type(error).__name__}: {error}"
        return "error", shortened(text, longest)


def shown(value: Any) -> str:
    """Return a tool's result as text: a string as it is, anything else as JSON where that can say it."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def shortened(text: str, longest: int) -> str:
    """Return the text, its end left out if it is too long."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _tool(given: Tool | Callable[..., Any]) -> Tool:
    return given if isinstance(given, Tool) else as_tool(given)


def _again(tools: Sequence[Tool], traces: bool, longest: int) -> Toolbox:
    return Toolbox(tools, traces=traces, longest=longest)
