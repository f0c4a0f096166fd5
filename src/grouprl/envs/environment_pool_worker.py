"""The environments of a worker process, and the calls that its parent sends to them.

A call is (number, method, episode, arguments). A reply is ["ready", whether calls wait at the same time]; or ["on",
number], when several calls are under way and this one is running now (0: none is); or ["answer", number, value, seconds
that it took, seconds of processor time].
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from grouprl.core.json_types import JsonObject
from grouprl.envs.async_methods import awaited, is_async
from grouprl.envs.environment import Patient
from grouprl.envs.environment_pool import WAITING, Environments, PlayedTask
from grouprl.envs.json_values import to_plain
from grouprl.processes.frames import Replies
from grouprl.processes.parcel import unpack
from grouprl.rewards.contract import Failure

_Call = tuple[int, str, int, tuple[object, ...]]
"""A call: its number, the method, the episode, and the arguments of the method."""
RUNNING: contextvars.ContextVar[int] = contextvars.ContextVar("RUNNING", default=0)
"""The number of the call whose code is running; tasks that an environment starts inherit it."""


def prepare(given: tuple[JsonObject, float]) -> None:
    """Import everything that a worker imports, for its forks."""
    unpack(given[0]).environment()


def serve(given: tuple[JsonObject, float], calls: Iterator[_Call], reply: Replies) -> None:
    """Answer calls one after the other; calls of environments that wait for something outside wait at the same time.

    Each of the latter calls is limited to the given seconds. The others are watched by the parent, which can end this
    process.
    """
    parcel, seconds = given
    task: PlayedTask = unpack(parcel)
    example = task.environment()
    together = is_async(example) or isinstance(example, Patient)

    def answer(number: int, found: object, wall: float, processor: float) -> None:
        reply("answer", number, to_plain(found), wall, processor)

    held = Environments(task.environment)
    reply("ready", together)
    if together:
        asyncio.run(_Together(held, lambda number: reply("on", number), answer, seconds).serve(calls))
    else:
        one_by_one(held, calls, answer)


def one_by_one(held: Environments, calls: Iterator[_Call], answer: Callable[..., None]) -> None:
    """Answer each call before the next is looked at."""
    for number, method, episode, arguments in calls:
        begun, busy = time.perf_counter(), time.process_time()
        found = awaited(held.call(method, episode, arguments))
        answer(number, found, time.perf_counter() - begun, time.process_time() - busy)


class _Together:
    """A server whose calls wait at the same time: coroutines in one event loop, `Patient` environments in threads."""

    def __init__(
        self, held: Environments, mark: Callable[[int], None], answer: Callable[..., None], seconds: float
    ) -> None:
        self.held, self.mark, self.answer, self.seconds = held, mark, answer, seconds

    async def serve(self, calls: Iterator[_Call]) -> None:
        """Begin each call when it arrives; end when no more arrive."""
        loop, inbox = asyncio.get_running_loop(), asyncio.Queue[_Call | None]()
        loop.set_task_factory(self._marking)

        def listen() -> None:
            for call in calls:
                loop.call_soon_threadsafe(inbox.put_nowait, call)
            loop.call_soon_threadsafe(inbox.put_nowait, None)

        threading.Thread(target=listen, daemon=True).start()
        latest: dict[int, asyncio.Task[None]] = {}
        while (call := await inbox.get()) is not None:
            episode = call[2]
            task = latest[episode] = loop.create_task(self._in_turn(latest.get(episode), *call))
            task.add_done_callback(partial(_forget, latest, episode))

    async def _in_turn(self, before: asyncio.Task[None] | None, *call: Any) -> None:
        """Answer a call after the previous one of the same episode, because replayed calls arrive all at once."""
        if before is not None:
            await asyncio.wait([before])
        await self._answer(*call)

    async def _answer(self, number: int, method: str, episode: int, arguments: tuple[object, ...]) -> None:
        RUNNING.set(number)
        begun = time.perf_counter()
        task = asyncio.get_running_loop().create_task(self._found(method, episode, arguments))
        # Not `wait_for`, which waits until a cancelled coroutine agrees to end: an environment may never do so.
        done, _ = await asyncio.wait([task], timeout=self.seconds)
        if done:
            found = task.result()
        else:
            task.cancel()
            found = _overdue(method, self.seconds)
        self.answer(number, found, time.perf_counter() - begun, 0.0)

    async def _found(self, method: str, episode: int, arguments: tuple[object, ...]) -> object:
        found = self.held.call(method, episode, arguments, early=True)
        if found is WAITING:
            return await _in_a_thread(lambda: self.held.call(method, episode, arguments))
        return await found if inspect.isawaitable(found) else found

    def _marking(self, loop: asyncio.AbstractEventLoop, coroutine: object, **settings: Any) -> asyncio.Task[Any]:
        """Make a task of a coroutine that reports, each time it resumes, the call for which it runs."""

        async def driven() -> object:
            return await _driven(coroutine, self.mark)

        return asyncio.Task(driven(), loop=loop, **settings)


@types.coroutine
def _driven(coroutine: Any, mark: Callable[[int], None]) -> Any:
    """Run a coroutine, reporting its call before each step, and after it that no call is running."""
    value, error = None, None
    while True:
        number = RUNNING.get()
        if number:
            mark(number)
        try:
            waits_for = coroutine.throw(error) if error is not None else coroutine.send(value)
        except StopIteration as end:
            return end.value
        finally:
            if number:
                mark(0)
        try:
            value, error = (yield waits_for), None
        except BaseException as thrown:
            value, error = None, thrown


async def _in_a_thread(work: Callable[[], object]) -> object:
    """Return the result of `work`, which runs in its own thread, so that any number can wait at a time."""
    loop, found = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def run() -> None:
        answer = work()
        loop.call_soon_threadsafe(lambda: None if found.done() else found.set_result(answer))

    threading.Thread(target=run, daemon=True).start()
    return await found


def _forget(latest: dict[int, asyncio.Task[None]], episode: int, ended: asyncio.Task[None]) -> None:
    """Remove a call that has ended, unless a later call of its episode has taken its place."""
    if latest.get(episode) is ended:
        del latest[episode]


def _overdue(method: str, seconds: float) -> object:
    return Failure(f"{method}() did not return within {seconds:g} s (environment.timeout)", "", "timeout", lost=True)
