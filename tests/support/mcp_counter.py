"""An MCP server for the tests, made with the protocol's own library."""

from __future__ import annotations

import os
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("counter")
count = 0


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def next_number() -> int:
    """Return how often this was called."""
    global count
    count += 1
    return count


@server.tool()
def fail(word: str) -> str:
    """Raise."""
    raise ToolError(f"no {word} here")


@server.tool()
def sleep(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(1)


if __name__ == "__main__":
    server.run("stdio")
