"""A set of tools: it checks arguments, remembers results, limits time and turns failures into messages."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from grouprl.chat.tool_calls import typed
from grouprl.chat.turn_content import Call, Malformed, Result
from grouprl.core.errors import InputError, suggest
from grouprl.core.json_types import JsonMapping
from grouprl.envs.environment import unwritable
from grouprl.tools.attempt import attempt, shortened
from grouprl.tools.definition import Tool, as_tool

REMEMBERED = 4096
"""Largest number of results that are remembered."""
NUL = "\0"
LONGEST = 4000
"""Default limit on the characters of a result."""


class Toolbox:
    """Tools by name. A toolbox may serve several environments at a time; it is pickled without remembered results."""

    def __init__(
        self,
        tools: Sequence[Tool | Callable[..., object]],
        *,
        traces: bool = False,
        longest: int = LONGEST,
        alphabet: str = "",
    ) -> None:
        """Combine tools into a toolbox.

        Args:
            tools: functions, or tools made by `as_tool`.
            traces: whether to show the model the traceback of a tool that raised.
            longest: largest number of characters of a result that are shown.
            alphabet: the only characters that the model can read, if not empty; a call whose result holds another one
                fails.

        Raises:
            InputError: on no tools, repeated names, or a function that cannot be a tool.
        """
        self.tools = {each.name: each for each in map(_tool, tools)}
        if not tools or len(self.tools) < len(tools):
            names = [_tool(each).name for each in tools]
            raise InputError(
                f"The tools are {names}", "at least one is needed, and their names must differ", "Rename or add tools"
            )
        self.traces, self.longest, self.alphabet = traces, longest, frozenset(alphabet)
        self.hits = 0
        """Number of calls that were answered with a remembered result."""
        self._cached: OrderedDict[str, Result] = OrderedDict()
        self._worker: Any = None

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (tuple(self.tools.values()), self.traces, self.longest, "".join(sorted(self.alphabet)))

    @property
    def schemas(self) -> tuple[dict[str, object], ...]:
        """The tools' descriptions for a model."""
        return tuple(each.schema for each in self.tools.values())

    def call(self, call: Call | Malformed) -> Result:
        """Return the result of a call; nothing that a model writes or a tool does makes this method raise.

        The text of a result can always be encoded as UTF-8.

        Raises:
            InputError: if another process cannot find the tool.
            RunError: if no process for tools can be started.
        """
        try:
            return self._readable(self._called(call))
        except InputError:  # no other process can find the tool
            raise
        except (RecursionError, ValueError, OverflowError) as error:  # arguments too deeply nested or long
            name = "" if isinstance(call, Malformed) else call.name
            return self._readable(Result(name, f"the call cannot be read: {type(error).__name__}", "malformed"))

    def _called(self, call: Call | Malformed) -> Result:
        if isinstance(call, Malformed):
            return Result("", call.what, "malformed")
        found = self.tools.get(call.name)
        if found is None:
            what = f"there is no tool {shortened(call.name, 80)!r}. {suggest(call.name, self.tools)}"
            return Result(call.name, what, "malformed")
        given = typed(call, found.properties) if call.untyped else call.arguments
        return self._from_cache(found, given) if found.pure else self._run(found, given)

    def _readable(self, result: Result) -> Result:
        """Return the result, or a failed call if the model cannot read it; half a character is escaped."""
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

    def _from_cache(self, found: Tool, given: JsonMapping | str) -> Result:
        key = json.dumps([found.name, given], sort_keys=True, default=repr)
        if key in self._cached:
            self.hits += 1
            self._cached.move_to_end(key)
            return self._cached[key]
        result = self._run(found, given)
        if result.status != "timeout":  # it may be the machine's fault
            self._cached[key] = result
            if len(self._cached) > REMEMBERED:
                self._cached.popitem(last=False)
        return result

    def _run(self, found: Tool, given: JsonMapping | str) -> Result:
        if found.seconds is None:
            status, text = attempt(found, given, self.traces, self.longest)
        else:
            if self._worker is None:
                from grouprl.tools.tool_process import ToolProcess

                names = ", ".join(name for name, each in self.tools.items() if each.seconds is not None)
                self._worker = ToolProcess((self, self.traces, self.longest), names)
            status, text = self._worker.call(found, given)
        return Result(found.name, text, status)


def _tool(given: Tool | Callable[..., object]) -> Tool:
    return given if isinstance(given, Tool) else as_tool(given)


def _rebuilt(tools: Sequence[Tool], traces: bool, longest: int, alphabet: str) -> Toolbox:
    return Toolbox(tools, traces=traces, longest=longest, alphabet=alphabet)
