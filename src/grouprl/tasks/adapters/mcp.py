"""Tasks with the tools of an MCP server."""

from __future__ import annotations

from typing import Any

from pydantic import Field, PrivateAttr

from grouprl.core.errors import InputError, suggest
from grouprl.tasks.adapters.tools import ToolTask, shown_by
from grouprl.tasks.registry import register_task
from grouprl.tools import Tool, Toolbox, ToolEnvironment
from grouprl.tools.mcp import McpServer


@register_task("mcp", argument="path")
class McpTask(ToolTask):
    """Complete the prompts of another task with the tools of an MCP server: mcp:python server.py, mcp:https://….

    `of` names the task whose prompts are sampled and whose reward scores the final answer.
    """

    path: str = Field(description="a URL (streamable HTTP), or a command line that is run and spoken to by stdio")
    names: tuple[str, ...] | None = Field(None, description="which of the server's tools; none: all")
    fresh: bool = Field(False, description="whether every episode has its own server, for servers that keep a state")
    seconds: float = Field(10.0, gt=0, description="how long a call may take")

    _server: McpServer = PrivateAttr()

    def make_tools(self) -> list[Tool]:
        """Ask the server for its tools.

        Raises:
            MissingExtra: if mcp is not installed.
            InputError: if the server cannot be reached, or lacks one of the tools.
        """
        self._server = McpServer(self.path, self.seconds)
        return self._of(self._server)

    def _of(self, server: McpServer) -> list[Tool]:
        found = {each.name: each for each in server.tools()}
        for name in self.names or ():
            if name not in found:
                raise InputError(f"The MCP server '{self.path}' has no tool '{name}'", remedy=suggest(name, found))
        return [found[name] for name in self.names or found]

    @property
    def name(self) -> str:
        """The server's address or command, after "mcp:"."""
        return f"mcp:{self.path}"

    def environment(self) -> ToolEnvironment:
        """Return a fresh episode."""
        if not self.fresh:
            return super().environment()
        server = McpServer(self.path, self.seconds)
        toolbox = Toolbox(self._of(server), traces=self.traces, alphabet=self.characters)
        limits: dict[str, Any] = {"form": self.form, "max_turns": self.turns, "on_close": server.close}
        return shown_by(self._expert, toolbox, self._inner.reward, **limits)
