"""Pools of environments: many are called at once, and their failures are returned instead of raised."""

from __future__ import annotations

import inspect
import math
import queue
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from grouprl.core.errors import described, writable
from grouprl.core.hashing import generator
from grouprl.core.spans import span
from grouprl.envs.async_methods import BackgroundLoop
from grouprl.envs.call_times import CallTimes
from grouprl.envs.environment import Patient, unwritable
from grouprl.processes.fork_guard import ending_forks
from grouprl.rewards.contract import LONGEST_MESSAGE, Failure

Call = tuple[int, tuple[object, ...]]
"""The number of an episode, and the arguments of its environment's method."""

TIMED = ("step", "reset")
"""Calls whose duration is recorded."""
WAITING = object()
"""Placeholder for the answer of an environment that has received a call, before the answer is waited for."""
LONGEST_TEXT = 1_000_000
"""Characters of the longest observation; an environment that returns a longer one has failed."""


class PlayedTask(Protocol):
    """A task with environments."""

    @property
    def name(self) -> str:
        """The name of the task in messages."""

    @property
    def needs_clock(self) -> bool:
        """True if its environments may run code that never returns."""

    def environment(self) -> Any:
        """Return a fresh environment; None if the task has none."""


class Stage(Protocol):
    """A pool that holds one environment per episode. Calls are sent to many at once, and each is answered when it is
    ready.
    """

    times: CallTimes
    """Durations of `reset` and `step`, by prompt."""

    def send(self, method: str, calls: Sequence[Call]) -> None:
        """Call a method of some environments, none of which may have an unanswered call; `receive` returns their
        answers.

        'reset' makes the environment first; 'score' gives (whether by agent, components); 'demonstrate' gets the seed
        of its random numbers; 'close' forgets the environment.
        """
        ...

    def receive(self, seconds: float | None = None) -> list[tuple[int, object]]:
        """Return the answers that have arrived, by the number of their episode; wait at most `seconds` for the first.

        None: wait as long as it takes. The result is empty if the time has passed, or no answer is expected.
        """
        ...

    def call(self, method: str, calls: Sequence[Call]) -> list[object]:
        """Return each environment's answer, or its failure, in the order of the calls."""
        ...

    def clear(self) -> None:
        """Close every remaining environment."""
        ...

    def close(self) -> None:
        """Release all resources; may be called twice."""
        ...


class AnsweringStage(ABC):
    """A pool that keeps answers until they are taken."""

    def __init__(self) -> None:
        self._answers: dict[int, object] = {}
        self.times = CallTimes()
        """Durations of `reset` and `step`, by prompt."""

    @abstractmethod
    def send(self, method: str, calls: Sequence[Call]) -> None:
        """Call a method of some environments."""

    @abstractmethod
    def _pump(self, seconds: float | None) -> None:
        """Take over answers that have arrived; wait for one at most `seconds`, unless none is expected."""

    def receive(self, seconds: float | None = None) -> list[tuple[int, object]]:
        """Return the answers that have arrived, in the order of their episodes."""
        with span("waiting for environments"):
            self._pump(0.0 if self._answers else seconds)
        found = sorted(self._answers.items())
        self._answers.clear()
        return found

    def call(self, method: str, calls: Sequence[Call]) -> list[object]:
        """Return the answers to these calls; answers of other episodes are kept for `receive`."""
        self.send(method, calls)
        with span("waiting for environments"):
            while any(number not in self._answers for number, _ in calls):
                self._pump(None)
        return [self._answers.pop(number) for number, _ in calls]


class Environments:
    """The environments of one process, by the number of their episode."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make
        self._held: dict[int, Any] = {}
        self._luck: dict[int, Any] = {}
        self._begun: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number in self._held

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._held))

    def call(self, method: str, number: int, arguments: tuple[object, ...], *, early: bool = False) -> object:
        """Call `method` of environment `number`; an exception becomes a Failure.

        For a coroutine, return an awaitable of the answer, which does not raise either. With `early`, a `Patient`
        environment only receives the call, and WAITING is returned.
        """
        try:
            with ending_forks("the environment"):
                found = self._called(method, number, arguments, early)
            return self._later(found, method, number) if inspect.isawaitable(found) else _handled(found)
        except (Exception, SystemExit) as error:
            return self._failure(error, method, number)

    async def _later(self, found: Awaitable[object], method: str, number: int) -> object | Failure:
        try:
            with ending_forks("the environment"):
                return _handled(await found)
        except (Exception, SystemExit) as error:
            return self._failure(error, method, number)

    def _failure(self, error: BaseException, method: str, number: int) -> Failure:
        made = method != "reset" or number in self._held
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        what = f"{method if made else 'environment'}() raised {described(error)}"
        return Failure(what[:LONGEST_MESSAGE], writable(trace[-LONGEST_MESSAGE:]), "error")

    def _called(self, method: str, number: int, arguments: tuple[object, ...], early: bool) -> object:
        if method == "reset" and number not in self._begun:
            self._held[number] = self._make()
        elif method == "score":
            return _scores(self._held[number])
        elif method == "demonstrate":
            return self._held[number].demonstrate(self._luck_of(number, arguments))
        elif method == "close":
            self._luck.pop(number, None)
            self._begun.discard(number)
            return self._held.pop(number).close() if number in self._held else None
        environment = self._held[number]
        if early and method in ("reset", "step") and isinstance(environment, Patient):
            environment.begin_call(method, *arguments)
            self._begun.add(number)
            return WAITING
        self._begun.discard(number)
        return getattr(environment, method)(*arguments)

    def _luck_of(self, number: int, parts: tuple[object, ...]) -> object:
        if number not in self._luck:
            self._luck[number] = generator("demonstrate", *parts)
        return self._luck[number]


class HereStage(AnsweringStage):
    """A pool in this process: the fastest one, for environments that always return.

    Environments that wait for something outside (coroutines and `Patient` ones) wait at the same time, in the event
    loop or each in its own thread.
    """

    def __init__(self, make: Callable[[], object]) -> None:
        super().__init__()
        self._held = Environments(make)
        self._prompt: dict[int, str] = {}
        self._waiting: dict[int, float] = {}
        """Episodes whose answers are expected, and the start of each wait."""
        self._late: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()

    def send(self, method: str, calls: Sequence[Call]) -> None:
        """Call one environment after the other; answers that have to be waited for arrive later."""
        late = self._late  # the queue of this play, so that answers that arrive after `clear` are dropped
        patient: list[Call] = []
        for number, arguments in calls:
            begun = time.perf_counter()
            if method == "reset":
                self._prompt[number] = str(getattr(arguments[0], "id", ""))
            found = self._held.call(method, number, arguments, early=True)
            if found is WAITING:
                patient.append((number, arguments))
            elif inspect.isawaitable(found):
                BackgroundLoop.here().start(found, partial(_hand_over, late, number))
            else:
                self._answers[number] = found
                self._timed(method, number, begun)
                continue
            self._waiting[number] = begun if method in TIMED else math.inf
        for number, arguments in patient:
            threading.Thread(target=self._wait, args=(late, method, number, arguments), daemon=True).start()

    def _wait(self, late: queue.SimpleQueue[object], method: str, number: int, arguments: tuple[object, ...]) -> None:
        late.put((number, self._held.call(method, number, arguments)))

    def _timed(self, method: str, number: int, begun: float) -> None:
        if method in TIMED:
            self.times.add(self._prompt.get(number, ""), time.perf_counter() - begun)

    def _pump(self, seconds: float | None) -> None:
        try:
            while self._waiting:
                number, answer = self._late.get_nowait() if seconds == 0.0 else self._late.get(timeout=seconds)
                begun = self._waiting.pop(number)
                if begun < math.inf:
                    self._timed(TIMED[0], number, begun)
                self._answers[number] = answer
                seconds = 0.0
        except queue.Empty:
            return

    def clear(self) -> None:
        """Close the remaining environments without waiting for pending answers."""
        self._waiting.clear()
        self._answers.clear()
        self._prompt.clear()
        self._late = queue.SimpleQueue()
        self.call("close", [(number, ()) for number in self._held])

    def close(self) -> None:
        """Close the remaining environments."""
        self.clear()


def _hand_over(late: queue.SimpleQueue[tuple[int, object]], number: int, answer: object) -> None:
    late.put((number, answer))


def _handled(found: object) -> object | Failure:
    """Return an environment's answer, or a failure if its text is too long or cannot be written."""
    text = getattr(getattr(found, "observation", found), "text", "")
    if isinstance(text, str) and len(text) > LONGEST_TEXT:
        return Failure(f"an observation has {len(text)} characters; {LONGEST_TEXT} is the limit", "", "error")
    if isinstance(text, str) and (half := unwritable(text)) is not None:
        what = f"an observation holds {half!r}, half of a character; a text must be writable as UTF-8"
        return Failure(what, "", "error")
    return found


def _scores(environment: Any) -> object:
    """Return whether an environment scores each agent separately, and the scores; awaitable if its method is."""
    by_agent = callable(getattr(environment, "scores", None))
    found = environment.scores() if by_agent else environment.score()
    if not inspect.isawaitable(found):
        return by_agent, found

    async def scored() -> tuple[bool, object]:
        return by_agent, await found

    return scored()
