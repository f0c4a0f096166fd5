"""Tools of MCP servers, which are used like any other tools."""

from __future__ import annotations

import asyncio
import json
import shlex
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, TypeVar

import pydantic

from grouprl.chat.refusal import Refusal
from grouprl.chat.safe_json import read_text
from grouprl.core.errors import InputError, MissingExtra, RunError
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.tools.definition import Tool, ToolError
from grouprl.tools.foreign_schema import check_arguments, check_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mcp import Client, types
    from mcp.types import CallToolResult

START_SECONDS = 60.0
"""Time limit for a server to start, in seconds."""


class McpServer:
    """A connection to an MCP server: a URL (streamable HTTP), or a command line that is run and used through stdio.

    The connection opens at its first use and, if the server goes away, reopens at the next call. It is pickled as the
    server's address.
    """

    def __init__(self, where: str, seconds: float = 10.0) -> None:
        """Store the server's address; a call may take `seconds`.

        Raises:
            InputError: if `where` is neither a URL nor a command line.
        """
        self.where, self.seconds = where, seconds
        try:
            self._words = [] if where.startswith(("http://", "https://")) else shlex.split(where)
        except ValueError as error:
            raise InputError(f"The MCP server {where!r} is not a command line: {error}") from error
        if not where.strip():
            raise InputError("The MCP server is empty", "it must be a URL or a command line", "Name one")
        self._lock = threading.Lock()
        self._open: _Connection | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return McpServer, (self.where, self.seconds)

    def tools(self) -> list[McpTool]:
        """Return the tools that the server lists.

        Raises:
            MissingExtra: if mcp is not installed.
            InputError: if the server does not start, lists no tools, or has one whose schema is invalid.
        """
        found = self._connection().run(_list, START_SECONDS)
        if not found:
            raise InputError(
                f"The MCP server '{self.where}' lists no tools", "at least one is needed", "Check the server"
            )
        return [_tool(self, each) for each in found]

    def call(self, name: str, arguments: JsonMapping) -> str:
        """Return the text of a tool's result.

        Raises:
            ToolError: if the call fails, with the server's message, or no result arrives in time.
        """
        import mcp

        try:
            result = self._connection().run(lambda client: client.call_tool(name, dict(arguments)), self.seconds)
        except mcp.MCPError as error:
            if error.code == mcp.types.CONNECTION_CLOSED:
                self.close()
            raise ToolError(str(error)) from None
        except TimeoutError:
            raise ToolError(f"no result within {self.seconds:g} s") from None
        text = text_of(result)
        if result.is_error:
            raise ToolError(text)
        return text

    def close(self) -> None:
        """Close the connection, and end a server that it started; may be called twice."""
        with self._lock:
            if self._open is not None:
                self._open.close()
            self._open = None

    def _connection(self) -> _Connection:
        with self._lock:
            if self._open is None or not self._open.alive:
                self._open = _Connection(self.where, self._words)
            return self._open


@dataclass(frozen=True)
class McpTool(Tool):
    """A tool of an MCP server; arguments are checked against the server's schema. Pickled as its server and name."""

    input_schema: JsonMapping = field(default_factory=dict)
    server: McpServer | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (self.server, self.name)

    @property
    def schema(self) -> JsonObject:
        """The description of the tool for chat templates and OpenAI-like protocols."""
        described = {"name": self.name, "description": self.description, "parameters": dict(self.input_schema)}
        return {"type": "function", "function": described}

    def check(self, given: JsonMapping | str) -> JsonObject:
        """Return the arguments by name; raise ToolError with the first one that does not fit the server's schema."""
        named = dict(given) if not isinstance(given, str) else self._typed(self._split(given))
        try:
            check_arguments(self.input_schema, named)
        except ToolError as error:
            raise ToolError(f"{self.name}: {error}") from None
        return named

    def _typed(self, given: Mapping[str, str]) -> dict[str, object]:
        """Return arguments that were written as text, converted to the types in the schema."""
        properties = self.input_schema.get("properties", {})
        return {name: _value(text, properties.get(name, {}).get("type")) for name, text in given.items()}


Heard = TypeVar("Heard")


class _Connection:
    """An open session, in a thread with its own event loop."""

    def __init__(self, where: str, words: Sequence[str]) -> None:
        try:
            import mcp
        except ImportError as error:
            raise MissingExtra("mcp", "agents", f"The MCP server '{where}'") from error
        self._said: IO[str] = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (the server's log, not ours)
        target: object = where if not words else self._program(words)
        self._ready: Future[object] = Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(mcp.Client(target),), name="mcp", daemon=True)
        self._thread.start()
        try:
            self._client = self._ready.result(START_SECONDS)
        except futures.TimeoutError:
            self.close()
            what = f"The MCP server '{where}' did not start within {START_SECONDS:g} seconds"
            raise InputError(what, self.last_words()) from None
        except Exception as error:
            what = f"The MCP server '{where}' cannot be reached: {_innermost(error)}"
            raise InputError(what, self.last_words()) from error

    def _program(self, words: Sequence[str]) -> object:
        """Return the transport of a server that is started; its standard error is stored, not printed."""
        import mcp
        from mcp.client.stdio import stdio_client

        return stdio_client(mcp.StdioServerParameters(command=words[0], args=list(words[1:])), errlog=self._said)

    def last_words(self) -> str:
        """Return the last line of a started server's standard error; '' if it is empty."""
        self._said.seek(0)
        lines = str(self._said.read()).strip().splitlines()
        return f"its last output was: {lines[-1][:400]}" if lines else ""

    @property
    def alive(self) -> bool:
        """True if the session is open."""
        return self._thread.is_alive()

    def run(self, ask: Callable[[Client], Coroutine[object, object, Heard]], seconds: float) -> Heard:
        """Run a coroutine on the client and return its result; raise TimeoutError, or RunError if the session ended."""
        try:
            future = asyncio.run_coroutine_threadsafe(ask(self._client), self._loop)
            return future.result(seconds)
        except futures.TimeoutError:
            future.cancel()
            raise TimeoutError(f"nothing within {seconds:g} s") from None
        except RuntimeError as error:
            raise RunError(f"The session with the MCP server has ended: {error}") from error

    def close(self) -> None:
        """End the session."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    def _run(self, client: object) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._hold(client))
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._loop.close()

    async def _hold(self, client: Client) -> None:
        async with client as opened:
            self._ready.set_result(opened)
            await self._stop.wait()


async def _list(client: Client) -> list[object]:
    """Return all tools of a server, requesting page after page."""
    page = await client.list_tools()
    found = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


def text_of(result: CallToolResult) -> str:
    """Return a result as text: its texts, other content as its type, or its structured content."""
    parts = [each.text if each.type == "text" else f"[{each.type}]" for each in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _tool(server: McpServer, listed: types.Tool) -> McpTool:
    name, schema = listed.name, dict(listed.input_schema)
    check_schema(schema, f"the tool '{name}' of the MCP server '{server.where}'")

    def function(**arguments: object) -> str:
        return server.call(name, arguments)

    parameters = tuple(schema.get("properties", {}))
    about = (listed.description or "").strip()
    return McpTool(name, about, function, parameters, pydantic.BaseModel, False, None, schema, server)


def _rebuilt(server: McpServer, name: str) -> McpTool:
    return next(each for each in server.tools() if each.name == name)


def _value(text: str, kind: object) -> object:
    if kind == "string":
        return text
    try:
        return read_text(text)
    except Refusal:
        return text


def _innermost(error: BaseException) -> str:
    """Return the message of the innermost error of exception groups."""
    while inner := getattr(error, "exceptions", ()):
        error = inner[0]
    return f"{type(error).__name__}: {error}"
