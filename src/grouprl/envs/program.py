"""Agent programs as environments: a program sends requests to an endpoint of this package, and the policy writes the
completions.

A program is any client of chat completions, responses or Anthropic's messages. Each of its requests is an observation;
the policy's turn is the completion. A request whose messages begin with the whole conversation so far, including the
last completion, continues the same row, token for token; any other begins a new row. If a program has several agents,
the request's `model` names the one that sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from grouprl.chat.limits import ChatLimits
from grouprl.chat.reply import Choice, Completion
from grouprl.chat.request import ChatRequest, Refusal, not_held
from grouprl.chat.server import Endpoint, Pieces
from grouprl.core.errors import InputError
from grouprl.core.json_types import JsonMapping, JsonObject
from grouprl.envs.conversation import Conversations
from grouprl.envs.environment import Observation, Step
from grouprl.envs.program_launch import LONGEST_COMPLAINT, MODEL, Crashed, Finished, Launch

if TYPE_CHECKING:
    import random

    from grouprl.records.examples import Example


@dataclass(frozen=True)
class PendingRequest:
    """A request of the program, waiting for its completion."""

    request: ChatRequest
    reply: Future[str]


Event = PendingRequest | Finished | Crashed
LAST_WORDS_SECONDS = 1.0
"""Seconds that a stopped program may take to report its end."""
MOST_REFUSED = 1000
OF_SAMPLING = ("top_k", "min_p", "thinking")
"""Parameters that would change what is sampled from, which a run's configuration decides."""


class ProgramEnvironment:
    """One run of a program. Raises TimeoutError if the program does not continue within `timeout` seconds."""

    def __init__(
        self,
        launch: Launch,
        score_result: Callable[[object, JsonMapping], Mapping[str, Mapping[str, float]]],
        *,
        timeout: float = 30.0,
        crash_is_failure: bool = True,
        agents: Sequence[str] = ("",),
        ignoring: bool = False,
    ) -> None:
        """Prepare a run.

        Args:
            launch: starts the program (`FunctionLaunch`, `CommandLaunch`).
            score_result: (the program's result, the example's columns) -> reward components of each agent.
            timeout: seconds within which the program sends another request or ends.
            crash_is_failure: whether a program that raises, or exits with an error, is a failure of the environment;
                otherwise it earns nothing.
            ignoring: whether parameters of requests that cannot be applied are ignored instead of refused.
            agents: the names that may send requests; requests that name none of them are the first one's.
        """
        self._launch, self._score_result, self._timeout = launch, score_result, timeout
        self._crash_is_failure, self._agents, self._ignoring = crash_is_failure, tuple(agents), ignoring
        self._events: queue.Queue[Event] = queue.Queue()
        self._key = uuid.uuid4().hex
        self._stop: Callable[[], None] | None = None
        self._begun = False
        self._pending: PendingRequest | None = None
        self._conversations = Conversations(self._agents)
        self._end: Finished | Crashed | None = None
        self._refused: list[Refusal] = []
        """Requests of the program that were refused, in order."""

    def reset(self, example: Example, seed: int) -> Observation:
        """Start the program; its first request is the first observation.

        Raises:
            InputError: if the object was used before, or the program ends without a request.
        """
        if not self._begun:
            self._start(example)
        self._begun = False
        shown = self._wait()
        if shown is None:
            what = self._account("The program ended without a request to the model")
            raise InputError(what, "the policy is trained on the program's requests")
        return shown

    def step(self, action: str) -> Step:
        """Answer the program's request, and wait for the next one or the end."""
        if not self._begun:
            self._answer(action)
        self._begun = False
        shown = self._wait()
        if isinstance(self._end, Crashed) and self._crash_is_failure:
            raise RuntimeError(self._account("the program failed"))
        over = Observation("", agent=self._conversations.acting)
        refused = tuple(error.message for error in self._refused)
        info: dict[str, object] = {"refused": refused} if refused and shown is None else {}
        if info and self._end is not None and self._end.printed:
            info["printed"] = self._end.printed
        return Step(shown or over, terminated=shown is None, valid=not isinstance(self._end, Crashed), info=info)

    def begin_call(self, method: str, *arguments: Any) -> None:
        """Start the program, or answer it, without waiting for its next request."""
        if method == "reset":
            self._start(arguments[0])
        else:
            self._answer(arguments[0])
        self._begun = True

    def score(self) -> dict[str, float]:
        """Return the reward components of the result for the first agent."""
        return self.scores().get(self._agents[0], {})

    def scores(self) -> dict[str, dict[str, float]]:
        """Return the reward components of the result; a program that was cut off or crashed has none."""
        if not isinstance(self._end, Finished):
            return {agent: {"correct": 0.0} for agent in self._agents}
        return {agent: dict(parts) for agent, parts in self._score_result(self._end.result, self._columns).items()}

    def close(self) -> None:
        """Stop the program; its further requests are refused."""
        ProcessEndpoint.here().sessions.pop(self._key, None)
        if self._stop is not None:
            self._stop()
        while self._pending is not None or not self._events.empty():
            waiting = self._pending or self._events.get()
            self._pending = None
            if isinstance(waiting, PendingRequest) and not waiting.reply.done():
                waiting.reply.set_exception(over())

    def _start(self, example: Example) -> None:
        if self._stop is not None:
            raise InputError("reset() was called twice", "an object is one run of the program")
        self._columns = example.columns
        context = ProcessEndpoint.here()
        context.sessions[self._key] = ProgramSession(self._events, self._agents, self._refused, self._ignoring)
        self._stop = self._launch(example, context.url, self._key, self._events.put)

    def _answer(self, action: str) -> None:
        if self._pending is None:
            raise InputError(f"step({action!r}) was called when no request was waiting")
        self._conversations.complete(action)
        self._pending.reply.set_result(action)
        self._pending = None

    def _wait(self) -> Observation | None:
        """Return the next request as an observation; None if the program has ended."""
        try:
            event = self._events.get(timeout=self._timeout)
        except queue.Empty:
            self._end = self._last_words()
            what = f"the program neither sent a request nor ended within {self._timeout:g} seconds"
            raise TimeoutError(self._account(what)) from None
        if not isinstance(event, PendingRequest):
            self._end = event
            return None
        self._pending = event
        return self._conversations.observe(event.request)

    def _account(self, what: str) -> str:
        """Return `what` with the program's end, its output, and its last request that was refused."""
        end, told = self._end, what
        if isinstance(end, Crashed):
            told += f": {end.what}" + (f"; it printed: {end.printed}" if end.printed else "")
        elif end is not None and (end.printed or end.result):
            told += f": it printed: {end.printed or str(end.result)[-LONGEST_COMPLAINT:]}"
        last = self._refused[-1].message if self._refused else ""
        return told if not last or last in told else f"{told}; its last request was refused: {last}"

    def _last_words(self) -> Crashed | Finished | None:
        """Stop the program, and return how it ended, if it can be stopped."""
        if self._stop is None:
            return None
        self._stop()
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get(timeout=LAST_WORDS_SECONDS)
                if not isinstance(event, PendingRequest):
                    return event
                event.reply.set_exception(over())
        return None


class Inbox(Protocol):
    """A receiver of a program's events, from any thread."""

    def put(self, item: Event, /) -> None:
        """Add an event."""
        ...


@dataclass(frozen=True)
class ProgramSession:
    """The destination of an episode's requests, the agents that they may name, and the requests that were refused."""

    events: Inbox
    agents: tuple[str, ...]
    refused: list[Refusal]
    ignoring: bool = False
    """Whether parameters that cannot be applied are ignored instead of refused."""


class DemonstratedProgram(ProgramEnvironment):
    """The same environment with an expert that completes the waiting request: (messages, random generator, columns) ->
    text.
    """

    def __init__(self, expert: Callable[..., str], *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._expert = expert

    def demonstrate(self, rng: random.Random) -> str:
        """Return the expert's completion of the waiting request."""
        assert self._pending is not None
        return self._expert(self._pending.request.messages, rng, **self._columns)


class ProcessEndpoint:
    """The endpoint of this process, which passes each request to the environment whose key it carries."""

    _here: ProcessEndpoint | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.sessions: dict[str, ProgramSession] = {}
        self.pid = os.getpid()
        self.url = Endpoint(self, limits=ChatLimits(answer_seconds=None)).url

    @classmethod
    def here(cls) -> ProcessEndpoint:
        """Return this process's endpoint, opened when first needed."""
        with cls._lock:
            if cls._here is None or cls._here.pid != os.getpid():
                cls._here = ProcessEndpoint()
            return cls._here

    @property
    def model(self) -> str:
        """The name of the model."""
        return MODEL

    def others(self, key: str) -> tuple[str, ...]:
        """Return the agents of the episode with this key."""
        return self.sessions[key].agents if key in self.sessions else ()

    def rows(self, key: str) -> list[JsonObject] | None:
        """Return None, because the trainer holds the rows."""
        return None

    def ignores(self, key: str) -> bool:
        """Return whether the episode with this key ignores parameters that cannot be applied."""
        return key in self.sessions and self.sessions[key].ignoring

    def refused(self, key: str, error: Refusal) -> None:
        """Pass a refusal of one of its requests to the episode with this key."""
        if (session := self.sessions.get(key)) is not None and len(session.refused) < MOST_REFUSED:
            session.refused.append(error)

    async def count(self, request: ChatRequest, key: str) -> int:
        """Refuse to count tokens, because the policy and its tokenizer belong to the trainer."""
        raise Refusal("Tokens are not counted while the policy is trained", status=404)

    async def answer(self, request: ChatRequest, key: str, pieces: Pieces | None) -> Completion:
        """Have the policy answer. Raises Refusal for requests that cannot be trained on, and for keys of episodes that
        are over.
        """
        session = self.sessions.get(key)
        if session is None:
            raise Refusal("No episode has this API key: a program's key ends with its episode", status=401)
        if request.raw or request.prefill:
            what = "A text is not completed" if request.raw else "An answer that the client has begun is not continued"
            raise Refusal(f"{what} while the policy is trained: an episode is a conversation", "messages")
        if not session.ignoring and (name := next((n for n in OF_SAMPLING if getattr(request, n)), "")):
            raise Refusal(f"{name} is set by the trainer while the policy is trained; leave it out", name)
        if request.n > 1:
            raise Refusal("n is 1 while the policy is trained: an episode is one path", "n")
        for name in ("logprobs", "return_token_ids"):
            if getattr(request, name):
                raise Refusal(f"{name} are set by the trainer while the policy is trained", name)
        if request.response_format is not None and (refused := not_held(request, "while the policy is trained")):
            raise refused  # a required tool is accepted: some programs always require one, and cope if none is called
        if pieces is not None:
            pieces(0, "")  # accepted
        reply: Future[str] = Future()
        session.events.put(PendingRequest(request, reply))
        text = await asyncio.shield(asyncio.wrap_future(reply))  # answered whether or not the client still waits
        shown, stop = before_stop(text, request.stop)
        return Completion((Choice(shown, "stop", stop=stop),), counted=getattr(text, "counted", None))


def over() -> Refusal:
    """Return the refusal of a request that arrives too late."""
    return Refusal("The episode is over", status=410)


def before_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Return the text up to the first of the stop texts, and that stop text."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    at, stop = min(found, key=lambda each: each[0])
    return text[:at], stop
