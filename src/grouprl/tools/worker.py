"""The process in which tools run: started as a script, as that of rewards is (`grouprl.rewards.worker`).

The first frame says where modules are found, how much memory there may be and which tools to load. Then each frame is
a call: (its number, the tool's name, arguments); each reply is a line of JSON: ["result", number, status, text].
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grouprl.core.json_types import JsonObject


def main(requests: int, replies: int, lifeline: int) -> None:
    """Load the tools, say that they are there, and answer calls until the parent closes the requests."""
    shared = _shared()
    shared.die_with(lifeline)
    faulthandler.enable()
    for ours in (requests, replies, lifeline):
        os.set_inheritable(ours, False)
    calls = shared.frames(requests)
    hello = next(calls)
    sys.path[:] = hello["path"]
    shared.limit_resources(hello["memory"])
    shared.use_bare_package(hello["package"])
    serve(hello["parcel"], calls, replies)


def serve(parcel: JsonObject, calls: Iterator[tuple[int, str, JsonObject]], replies: int) -> None:
    """Answer calls one after the other."""
    from grouprl.rewards.transport import unpack
    from grouprl.tools.toolbox import attempt

    loaded: Any = unpack(parcel)
    toolbox, traces, longest = loaded
    own = os.getpid()

    def reply(*values: object) -> None:
        if os.getpid() != own:  # a child that the tool forked and that returned from it
            os._exit(0)
        rest = (json.dumps(values) + "\n").encode()
        while rest:
            rest = rest[os.write(replies, rest) :]

    reply("ready", 0)
    for number, name, arguments in calls:
        reply("result", number, *attempt(toolbox.tools[name], arguments, traces, longest))


def _shared() -> ModuleType:
    """Return the module of rewards' workers without importing the package."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.spec_from_file_location("_shared_worker", os.path.join(folder, "rewards", "worker.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
