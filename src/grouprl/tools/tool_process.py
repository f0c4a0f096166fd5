"""The trainer's side of the process that runs tools with a time limit; a late call ends and replaces the process."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any, cast, get_args

from grouprl.chat.turn_content import Status
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.processes.frames import Replies
from grouprl.processes.parcel import pack, unpack
from grouprl.processes.single_worker import SingleWorker
from grouprl.processes.worker_process import WorkerSpec
from grouprl.tools.attempt import attempt
from grouprl.tools.definition import Tool

MEMORY = 4 << 30
"""Memory limit of the process, in bytes, on top of its memory at the start."""
LONGEST_REPLY = 1 << 22


class ToolProcess:
    """One worker process for all tools of a toolbox; it makes one call at a time."""

    def __init__(self, served: object, names: str) -> None:
        """Prepare the worker's first message, `served`; the worker starts at the first call. Messages use `names`.

        Raises:
            CannotSend: if a tool cannot be found by another process.
        """
        self._worker = SingleWorker(WorkerSpec(serve, pack(served, f"tool {names}"), MEMORY, LONGEST_REPLY), "tools")
        self._numbers = itertools.count(1)

    def call(self, found: Tool, given: JsonMapping | str) -> tuple[Status, str]:
        """Return (status, text) of a call.

        Raises:
            RunError: if the process cannot be started.
        """
        assert found.seconds is not None
        number = next(self._numbers)
        payload = pickle.dumps((number, found.name, given))
        reply = self._worker.ask(payload, found.seconds, ["result", number])
        if isinstance(reply, list):
            return _checked(reply)
        if reply.kind == "late":
            return "timeout", f"error: no result within {found.seconds:g} s"
        wrong = "sent something that is not a result: " if reply.kind == "wrong" else ""
        return "error", f"error: the tool's process {wrong}{reply.what}"

    def close(self) -> None:
        """End the process."""
        self._worker.close()


def serve(parcel: JsonObject, calls: Iterator[tuple[int, str, JsonMapping | str]], reply: Replies) -> None:
    """Answer calls one after the other; each is (its number, the tool's name, arguments as they were given)."""
    loaded: Any = unpack(parcel)
    toolbox, traces, longest = loaded
    reply("ready")
    for number, name, given in calls:
        reply("result", number, *attempt(toolbox.tools[name], given, traces, longest))


def _checked(reply: list[object]) -> tuple[Status, str]:
    """Return (status, text); anything else is an error, because untested code runs in the process that writes it."""
    if len(reply) == 4 and reply[2] in get_args(Status) and isinstance(reply[3], str):
        return cast(Status, reply[2]), reply[3]
    return "error", "error: the tool's process sent something that is not a result"
