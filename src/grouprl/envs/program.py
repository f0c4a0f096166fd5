"""Agent programs as environments: a program runs against an endpoint of ours, and the policy writes the answers.

A program is whatever speaks the chat completions protocol. Each of its requests is an observation; the policy's turn is
the answer. A request whose messages begin with all that was said before, the last answer included, goes on in the same
row, token for token; any other begins a row.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import queue
import signal
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from grouprl.chat.reply import Choice, Completion, said
from grouprl.chat.request import ChatRequest, Refusal, continues
from grouprl.chat.server import Endpoint, Pieces
from grouprl.envs.environment import Observation, Step
from grouprl.errors import InputError

if TYPE_CHECKING:
    import random

    from grouprl.tasks.task import Question

MODEL = "policy"
"""What programs call the model."""
LONGEST_COMPLAINT = 2000


@dataclass(frozen=True)
class Asked:
    """A request of the program, waiting for its answer."""

    request: ChatRequest
    reply: Future[str]


@dataclass(frozen=True)
class Finished:
    """The program has ended, with a result."""

    result: Any


@dataclass(frozen=True)
class Crashed:
    """The program has ended, with an error."""

    what: str


Event = Asked | Finished | Crashed


class Launch(Protocol):
    """Starts a program."""

    def __call__(self, question: Question, url: str, key: str, told: Callable[[Event], None]) -> Callable[[], None]:
        """Start the program for a question; `told` hears how it ends. Return what stops it."""
        ...


class ProgramEnvironment:
    """One run of a program. Raises where the program does not go on within `timeout` seconds."""

    def __init__(
        self,
        launch: Launch,
        judge: Callable[[Any, Mapping[str, Any]], Mapping[str, float]],
        *,
        timeout: float = 30.0,
        crash_is_failure: bool = True,
    ) -> None:
        """Prepare a run.

        Args:
            launch: starts the program (`FunctionLaunch`, `CommandLaunch`).
            judge: (the program's result, the question's columns) -> reward components.
            timeout: seconds within which the program asks again or ends.
            crash_is_failure: whether a program that raises, or exits with an error, is a failure of the environment;
                otherwise it earns nothing.
        """
        self._launch, self._judge, self._timeout = launch, judge, timeout
        self._crash_is_failure = crash_is_failure
        self._events: queue.Queue[Event] = queue.Queue()
        self._key = uuid.uuid4().hex
        self._stop: Callable[[], None] | None = None
        self._begun = False
        self._asked: Asked | None = None
        self._said: tuple[Mapping[str, Any], ...] = ()
        self._tools: tuple[Mapping[str, Any], ...] = ()
        self._end: Finished | Crashed | None = None

    def reset(self, question: Question, seed: int) -> Observation:
        """Start the program; its first request is the first observation.

        Raises:
            InputError: if the object was used before, or the program ends without a request.
        """
        if not self._begun:
            self._start(question)
        self._begun = False
        shown = self._wait()
        if shown is None:
            why = f" ({self._end.what})" if isinstance(self._end, Crashed) else ""
            raise InputError(f"The program ended without asking the model{why}", "it is trained by what it asks")
        return shown

    def step(self, action: str) -> Step:
        """Answer the program's request, and wait for the next one or the end."""
        if not self._begun:
            self._answer(action)
        self._begun = False
        shown = self._wait()
        if isinstance(self._end, Crashed) and self._crash_is_failure:
            raise RuntimeError(f"the program failed: {self._end.what}")
        return Step(shown or Observation(""), terminated=shown is None, valid=not isinstance(self._end, Crashed))

    def begin_call(self, method: str, *arguments: Any) -> None:
        """Start the program, or answer it, without waiting for what it does then."""
        if method == "reset":
            self._start(arguments[0])
        else:
            self._answer(arguments[0])
        self._begun = True

    def score(self) -> dict[str, float]:
        """Return what the judge says of the result; a program that was cut off or crashed is not judged."""
        if not isinstance(self._end, Finished):
            return {"correct": 0.0}
        return dict(self._judge(self._end.result, self._columns))

    def close(self) -> None:
        """Stop the program; what it still asks is refused."""
        Desk.here().sessions.pop(self._key, None)
        if self._stop is not None:
            self._stop()
        while self._asked is not None or not self._events.empty():
            waiting = self._asked or self._events.get()
            self._asked = None
            if isinstance(waiting, Asked) and not waiting.reply.done():
                waiting.reply.set_exception(Refusal("The episode is over", status=410))

    def _start(self, question: Question) -> None:
        if self._stop is not None:
            raise InputError("reset() was called twice", "an object is one run of the program")
        self._columns = question.columns
        desk = Desk.here()
        desk.sessions[self._key] = self._events
        self._stop = self._launch(question, desk.url, self._key, self._events.put)

    def _answer(self, action: str) -> None:
        if self._asked is None:
            raise InputError(f"step({action!r}) was called when no request was waiting")
        self._said = said(self._asked.request, Choice(action, "stop"))
        self._asked.reply.set_result(action)
        self._asked = None

    def _wait(self) -> Observation | None:
        """Return the next request as an observation; None where the program has ended."""
        try:
            event = self._events.get(timeout=self._timeout)
        except queue.Empty:
            raise TimeoutError(f"the program neither asked nor ended within {self._timeout:g} seconds") from None
        if not isinstance(event, Asked):
            self._end = event
            return None
        self._asked, request = event, event.request
        goes_on = bool(self._said) and request.tools == self._tools and continues(self._said, request.messages)
        fresh, self._tools = bool(self._said) and not goes_on, request.tools
        new = request.messages[len(self._said) if goes_on else 0 :]
        text = "".join(message["content"] for message in new)
        return Observation(text, fresh=fresh, messages=new, tools=() if goes_on else request.tools)


class DemonstratedProgram(ProgramEnvironment):
    """The same with an expert, which answers the waiting request: (messages, random generator, columns) -> answer."""

    def __init__(self, expert: Callable[..., str], *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._expert = expert

    def demonstrate(self, rng: random.Random) -> str:
        """Return the expert's answer to the request that waits."""
        assert self._asked is not None
        return self._expert(self._asked.request.messages, rng, **self._columns)


class Desk:
    """The endpoint of this process: requests go to the environment whose key they bear."""

    _here: Desk | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.sessions: dict[str, queue.Queue[Event]] = {}
        self.pid = os.getpid()
        self.url = Endpoint(self).url

    @classmethod
    def here(cls) -> Desk:
        """Return this process's desk; it is opened when it is first needed."""
        with cls._lock:
            if cls._here is None or cls._here.pid != os.getpid():
                cls._here = Desk()
            return cls._here

    @property
    def model(self) -> str:
        """The name of the model."""
        return MODEL

    def rows(self, key: str) -> list[dict[str, Any]] | None:
        """Return None: rows are the trainer's."""
        return None

    async def answer(self, request: ChatRequest, key: str, pieces: Pieces | None) -> Completion:
        """Let the policy answer. Raises Refusal for what cannot be trained, and for keys of episodes that are over."""
        events = self.sessions.get(key)
        if events is None:
            raise Refusal("No episode has this API key; the one that the program was given ends with it", status=401)
        if request.n > 1:
            raise Refusal("n is 1 while the policy is trained: an episode is one path", "n")
        if request.logprobs:
            raise Refusal("logprobs are the trainer's while the policy is trained", "logprobs")
        reply: Future[str] = Future()
        events.put(Asked(request, reply))
        text = await asyncio.wrap_future(reply)
        return Completion((Choice(before_stop(text, request.stop), "stop"),))


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return the text up to the first of the stop texts."""
    found = [at for at in map(text.find, stops) if at >= 0]
    return text[: min(found)] if found else text


@dataclass(frozen=True)
class FunctionLaunch:
    """A program that is a function, plain or async: `function(prompt, base_url=…, api_key=…, **columns) -> result`.

    It gets what its signature names. It runs in a thread, which cannot be stopped from outside: what it asks after the
    episode's end is refused, which ends most programs.
    """

    function: Callable[..., Any]

    def __call__(self, question: Question, url: str, key: str, told: Callable[[Event], None]) -> Callable[[], None]:
        """Start the function."""
        given = {**question.columns, "base_url": url, "api_key": key}

        def run() -> None:
            try:
                found = self.function(question.prompt, **accepted(self.function, given))
                told(Finished(asyncio.run(found) if inspect.iscoroutine(found) else found))
            except (Exception, SystemExit) as error:
                told(Crashed(f"{type(error).__name__}: {error}"[:LONGEST_COMPLAINT]))

        threading.Thread(target=run, name="program", daemon=True).start()
        return _nothing


@dataclass(frozen=True)
class CommandLaunch:
    """A program that is a command: `{prompt}` in it is the prompt, which is its standard input, too.

    OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL say where the model is. Its result is what it prints; it has a
    process group of its own, which is killed at the end of the episode.
    """

    command: tuple[str, ...]

    def __call__(self, question: Question, url: str, key: str, told: Callable[[Event], None]) -> Callable[[], None]:
        """Start the command. Raises InputError if it cannot be started."""
        prompt = question.prompt if isinstance(question.prompt, str) else json.dumps(question.prompt)
        where = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": key, "OPENAI_MODEL": MODEL}
        words = [word.replace("{prompt}", prompt) for word in self.command]
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                words, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **where}, start_new_session=True
            )
        except OSError as error:
            raise InputError(f"The program {self.command[0]!r} cannot be started: {error.strerror}") from error

        def run() -> None:
            out, complaint = process.communicate(prompt.encode())
            if process.returncode:
                last = complaint.decode(errors="replace")[-LONGEST_COMPLAINT:].strip()
                told(Crashed(f"exit code {process.returncode}: {last}"))
            else:
                told(Finished(out.decode(errors="replace").strip()))

        threading.Thread(target=run, name="program", daemon=True).start()
        return lambda: _kill(process)


def accepted(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a function's signature names behind its first one, the prompt; all if it takes any."""
    parameters = inspect.signature(function).parameters
    given = {name: value for name, value in given.items() if name != next(iter(parameters), None)}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(given)
    return {name: value for name, value in given.items() if name in parameters}


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _nothing() -> None:
    """Stop nothing: a thread ends by itself."""
