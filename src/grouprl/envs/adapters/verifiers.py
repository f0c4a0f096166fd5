"""Environments of `verifiers`: their own rollout loop runs, and the policy completes their requests.

No part of a rollout is imitated here. The library's environment gets an OpenAI client for the endpoint of this process;
each of its requests is an observation, and its final score is the reward of the episode. So tokens are never encoded
twice (`grouprl.envs.conversation`), and everything an environment does between requests is its own code.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from grouprl.core.errors import InputError, raised
from grouprl.envs.conversation import Conversations
from grouprl.envs.environment import Observation, Step
from grouprl.envs.program import Event, PendingRequest, ProcessEndpoint, ProgramSession, over
from grouprl.envs.program_launch import LONGEST_COMPLAINT

if TYPE_CHECKING:
    import random

    from grouprl.chat.refusal import Refusal
    from grouprl.core.json_types import JsonMapping
    from grouprl.records.examples import Example

CLOSING_SECONDS = 5.0
"""Seconds that an environment closed in the middle of an episode may take to clean up."""


@dataclass(frozen=True)
class Played:
    """The outcome of a rollout of `verifiers`."""

    parts: Mapping[str, float]
    """Components of the reward, `correct`, and counts."""
    truncated: bool = False
    """Whether one of the environment's own limits cut it off."""
    valid: bool = True
    """Whether the library could use the last completion."""
    state: object = field(default=None, compare=False)
    """The library's state of the rollout, kept if groups are scored together."""


class VerifiersRollouts(Protocol):
    """An environment of `verifiers` that is loaded in this process."""

    async def play(self, row: Mapping[str, object], url: str, key: str) -> Played:
        """Run a rollout of a row against the endpoint at `url`, and score it. Raises any error that occurs in it."""
        ...

    def keep(self, name: tuple[str, int], state: object) -> None:
        """Keep the state of the rollout (prompt, seed) until its group is scored, if rewards compare groups."""
        ...


@dataclass(frozen=True)
class _Finished:
    played: Played


@dataclass(frozen=True)
class _Failed:
    what: str


class _Inbox:
    """Events for an episode, which any thread may add."""

    def __init__(self) -> None:
        self.loop, self.events = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def put(self, event: Event | _Finished | _Failed) -> None:
        """Hand over an event."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, with the process
            self.loop.call_soon_threadsafe(self.events.put_nowait, event)


class VerifiersEnvironment:
    """One rollout of an environment of `verifiers`, run by its own code.

    The example's column `row` is the row of its data set. An episode that is cut off before the environment ends it is
    not scored and earns nothing.
    """

    def __init__(self, load: Callable[[], VerifiersRollouts], *, timeout: float) -> None:
        """Prepare a rollout.

        Args:
            load: returns the environment, loaded once per process.
            timeout: seconds within which it sends another request or ends.
        """
        self._load, self._timeout = load, timeout
        self._key, self._conversations = uuid.uuid4().hex, Conversations()
        self._task: asyncio.Task[None] | None = None
        self._pending: PendingRequest | None = None
        self._parts: dict[str, float] = {"correct": 0.0}
        self._refused: list[Refusal] = []
        self._columns: JsonMapping = {}

    async def reset(self, example: Example, seed: int) -> Observation:
        """Begin the rollout; its first request is the first observation.

        Raises:
            InputError: if the object was used before, or the environment ends without a request.
            RuntimeError: if the environment fails.
            TimeoutError: if it takes too long.
        """
        if self._task is not None:
            raise InputError("reset() was called twice", "an object is one rollout")
        self._inbox, self._columns, self._name = _Inbox(), example.columns, (example.id, seed)
        endpoint, game = ProcessEndpoint.here(), self._load()
        endpoint.sessions[self._key] = ProgramSession(self._inbox, ("",), self._refused)
        self._context = contextvars.copy_context()
        running = self._run(game, example.columns["row"], endpoint.url)
        self._task = asyncio.get_running_loop().create_task(running, context=self._context)
        shown = await self._next(game)
        if isinstance(shown, Played):
            raise InputError("The environment ended without asking the model", "the model is trained on its requests")
        return shown

    async def step(self, action: str) -> Step:
        """Answer the environment's request, and wait for the next one or the end.

        Raises:
            InputError: if no request is waiting.
            RuntimeError: if the environment, or a function of its rubric, fails.
            TimeoutError: if it takes too long.
        """
        if self._pending is None:
            raise InputError(f"step({action!r}) was called when no request was waiting")
        for variable, value in contextvars.copy_context().items():
            self._context.run(variable.set, value)  # the rollout continues for this call, which a worker records
        self._conversations.complete(action)
        self._pending.reply.set_result(action)
        self._pending = None
        found = await self._next(self._load())
        if isinstance(found, Observation):
            return Step(found)
        late = found.truncated
        return Step(Observation(""), terminated=not late, truncated=late, valid=found.valid)

    def score(self) -> dict[str, float]:
        """Return the rubric's scores: weighted functions by name, functions without weight as counts."""
        return dict(self._parts)

    async def close(self) -> None:
        """End the rollout, and let the environment clean up."""
        if self._task is None:
            return
        ProcessEndpoint.here().sessions.pop(self._key, None)
        if self._pending is not None:
            self._pending.reply.set_exception(over())
            self._pending = None
        self._task.cancel()
        await asyncio.wait([self._task], timeout=CLOSING_SECONDS)

    async def _run(self, game: VerifiersRollouts, row: Mapping[str, object], url: str) -> None:
        try:
            self._inbox.put(_Finished(await game.play(row, url, self._key)))
        except (Exception, SystemExit) as error:
            self._inbox.put(_Failed(raised(error)[:LONGEST_COMPLAINT]))

    async def _next(self, game: VerifiersRollouts) -> Observation | Played:
        """Return the next request as an observation, or the outcome of the rollout."""
        try:
            event = await asyncio.wait_for(self._inbox.events.get(), self._timeout)
        except TimeoutError:
            what = f"the environment neither sent a request nor ended within {self._timeout:g} seconds"
            raise TimeoutError(self._with_refusal(what)) from None
        if isinstance(event, _Failed):
            raise RuntimeError(self._with_refusal(f"the environment failed: {event.what}"))
        if isinstance(event, _Finished):
            self._parts = dict(event.played.parts)
            if event.played.state is not None:
                game.keep(self._name, event.played.state)
            return event.played
        self._pending = event
        return self._conversations.observe(event.request)

    def _with_refusal(self, what: str) -> str:
        last = self._refused[-1].message if self._refused else ""
        return f"{what}; its last request was refused: {last}" if last and last not in what else what


class DemonstratedVerifiers(VerifiersEnvironment):
    """The same environment with an expert that completes the waiting request: (messages, random generator, columns) ->
    text.
    """

    def __init__(self, expert: Callable[..., str], load: Callable[[], VerifiersRollouts], *, timeout: float) -> None:
        super().__init__(load, timeout=timeout)
        self._expert = expert

    def demonstrate(self, rng: random.Random) -> str:
        """Return the expert's completion of the waiting request."""
        assert self._pending is not None
        return self._expert(self._pending.request.messages, rng, **self._columns)
