"""The process that tools with a time limit run in, as the trainer sees it: ended and replaced when a call is late."""

from __future__ import annotations

import pickle
import select
import time
import weakref
from pathlib import Path
from typing import cast, get_args

from grouprl.chat.turn_content import Status
from grouprl.core.errors import RunError
from grouprl.core.json_types import JsonObject
from grouprl.rewards.process import BadReply, WorkerProcess, hello_frame
from grouprl.rewards.transport import pack
from grouprl.tools.definition import Tool

WORKER = Path(__file__).with_name("worker.py")
START_SECONDS = 120.0
"""How long the process may take to import the tools."""
MEMORY = 4 << 30
"""Bytes of the process's own."""
LONGEST_REPLY = 1 << 22
TURN = 0.1


class ToolProcess:
    """One worker for all tools of a toolbox; calls take turns."""

    def __init__(self, served: object, names: str) -> None:
        """Prepare the worker's first message, `served`; it starts at the first call. `names` says in messages of whom.

        Raises:
            CannotSend: if a tool cannot be found by another process.
        """
        self._hello = hello_frame(pack(served, f"tool {names}"), MEMORY, [])
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
            reply = self._await(["result", self._number], found.seconds)
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
            process = WorkerProcess(self._hello, str(WORKER), LONGEST_REPLY)
        except OSError as error:
            raise RunError(f"No process for tools can be started: {error}") from error
        self._held.append(process)
        if self._await(["ready", 0], START_SECONDS) is None:
            said = process.printed.decode(errors="replace").strip()[-400:]
            self._lose()
            raise RunError(f"The process for tools did not start: {said or 'it said nothing'}")

    def _await(self, beginning: list[object], seconds: float) -> list[object] | None:
        """Return the reply that begins so; None if the process ends, or the time is up."""
        process, deadline = self._held[0], time.monotonic() + seconds
        poll = select.poll()
        poll.register(process.replies, select.POLLIN)
        poll.register(process.output, select.POLLIN)
        while True:
            ended = process.ended()
            process.flush()
            process.read_output()
            for reply in process.read_replies():
                if reply[:2] == beginning:
                    return reply
            left = deadline - time.monotonic()
            if ended or left <= 0:
                return None
            poll.poll(1000 * min(left, TURN))

    def _lose(self) -> None:
        _end(self._held)


def _checked(reply: list[object]) -> tuple[Status, str]:
    """Return (status, text); anything else is an error, as untested code runs in the process that writes it."""
    if len(reply) == 4 and reply[2] in get_args(Status) and isinstance(reply[3], str):
        return cast(Status, reply[2]), reply[3]
    return "error", "error: the tool's process sent something that is not a result"


def _end(held: list[WorkerProcess]) -> None:
    while held:
        held.pop().kill()
