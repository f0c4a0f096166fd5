"""The process that tools with a time limit run in, as the trainer sees it: ended and replaced when a call is late."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Iterator
from typing import Any, cast, get_args

from grouprl.chat.turn_content import Status
from grouprl.core.errors import RunError
from grouprl.core.json_types import JsonObject
from grouprl.processes.frames import BadReply, Replies
from grouprl.processes.parcel import pack, unpack
from grouprl.processes.worker_process import START_SECONDS, WorkerProcess, WorkerSpec
from grouprl.tools.attempt import attempt
from grouprl.tools.definition import Tool

MEMORY = 4 << 30
"""Bytes of the process's own."""
LONGEST_REPLY = 1 << 22


class ToolProcess:
    """One worker for all tools of a toolbox; calls take turns."""

    def __init__(self, served: object, names: str) -> None:
        """Prepare the worker's first message, `served`; it starts at the first call. `names` says in messages of whom.

        Raises:
            CannotSend: if a tool cannot be found by another process.
        """
        self._spec = WorkerSpec(serve, pack(served, f"tool {names}"), MEMORY, LONGEST_REPLY)
        self._number = 0
        self._held: list[WorkerProcess] = []
        self._end = weakref.finalize(self, _end, self._held)

    def call(self, found: Tool, arguments: JsonObject) -> tuple[Status, str]:
        """Return (status, text) of a call.

        Raises:
            RunError: if the process cannot be started.
        """
        if not self._held:
            self._start()
        self._number += 1
        assert found.seconds is not None
        try:
            self._held[0].send(pickle.dumps((self._number, found.name, arguments)))
            reply = self._held[0].next_reply(found.seconds, ["result", self._number])
        except BadReply as error:
            self._lose()
            return "error", f"error: the tool's process sent something that is not a result: {error}"
        if reply is None and self._held[0].ended():
            how = self._held[0].how_it_ended()
            self._lose()
            return "error", f"error: the tool's process {how}"
        if reply is None:
            self._lose()
            return "timeout", f"error: no result within {found.seconds:g} s"
        return _checked(reply)

    def close(self) -> None:
        """End the process."""
        self._lose()

    def _start(self) -> None:
        try:
            process = WorkerProcess(self._spec)
        except OSError as error:
            raise RunError(f"No process for tools can be started: {error}") from error
        self._held.append(process)
        if process.next_reply(START_SECONDS, ["ready"]) is None:
            said = process.last_output()[-400:]
            self._lose()
            raise RunError(f"The process for tools did not start: {said or 'it said nothing'}")

    def _lose(self) -> None:
        _end(self._held)


def serve(parcel: JsonObject, calls: Iterator[tuple[int, str, JsonObject]], reply: Replies) -> None:
    """Answer calls one after the other: each is (its number, the tool's name, arguments)."""
    loaded: Any = unpack(parcel)
    toolbox, traces, longest = loaded
    reply("ready")
    for number, name, arguments in calls:
        reply("result", number, *attempt(toolbox.tools[name], arguments, traces, longest))


def _checked(reply: list[object]) -> tuple[Status, str]:
    """Return (status, text); anything else is an error, as untested code runs in the process that writes it."""
    if len(reply) == 4 and reply[2] in get_args(Status) and isinstance(reply[3], str):
        return cast(Status, reply[2]), reply[3]
    return "error", "error: the tool's process sent something that is not a result"


def _end(held: list[WorkerProcess]) -> None:
    while held:
        held.pop().kill()
