"""Tools for the tests of tools: importable from a worker process."""

import os
import sys
import time
from typing import Literal

from pydantic import BaseModel

from grouprl.tools import ToolError, tool


class Place(BaseModel):
    city: str
    floor: int = 0


@tool(pure=True)
def add(first: int, second: int = 10) -> int:
    """Add two numbers.

    More about it.

    Args:
        first: one number
        second: the other one
    """
    return first + second


@tool(pure=True, seconds=None)
def count(word: str) -> int:
    """Count calls.

    Args:
        word: anything
    """
    CALLS.append(word)
    return len(CALLS)


CALLS: list[str] = []


@tool(seconds=None)
def describe(
    place: Place, kind: Literal["short", "long"] = "short", tags: list[str] | None = None
) -> dict[str, object]:
    """Describe a place."""
    return {"city": place.city, "floor": place.floor, "kind": kind, "tags": tags}


@tool(seconds=0.5)
def misbehave(how: str) -> str:
    """Do something bad."""
    if how == "sleep":
        time.sleep(60)
    if how == "raise":
        raise ValueError("no good")
    if how == "say":
        raise ToolError("in words")
    if how == "exit":
        sys.exit(3)
    if how == "die":
        os._exit(7)
    if how == "print":
        print("x" * 10_000_000)
    if how == "fork":
        if os.fork() == 0:
            return "child"
        os.wait()
    if how == "forge":
        os.write(int(sys.argv[3]), b'["result", "x"\n')
    if how == "long":
        return "y" * 100_000
    return f"did {how} in {'here' if 'pytest' in sys.modules else 'a worker'}"
