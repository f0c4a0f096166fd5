"""Sampling completions for requests that come at any time: all open ones are sampled together, stretch by stretch.

Requests that arrive while others are being sampled join at the next stretch. What is sampled depends on the request and
its seed alone, not on its neighbours: each stretch has a seed of its own, and stretches begin at fixed positions.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grouprl.protocols import Grammar, Request, RunSampler
from grouprl.rollout.engines import local_engine

if TYPE_CHECKING:
    from grouprl.records.token_policy import TokenPolicy

STRETCH = 32
"""Tokens sampled before requests may join, streams are told, and stop texts are looked for."""
LONGEST_HALF = 4 * STRETCH
"""Tokens after which what looks like half a character is none."""


@dataclass(frozen=True)
class SampleJob:
    """One completion to be sampled."""

    prompt_ids: tuple[int, ...]
    budget: int
    seed: int
    temperature: float = 1.0
    """0: the most probable token each time; log-probs are then those at temperature 1."""
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    grammar: str = ""
    """What the completion may be; '': anything."""
    told: Callable[[str], None] | None = None
    """Called with more of the text, as soon as no stop text can begin in it."""


@dataclass(frozen=True)
class ServedTurn:
    """A completion: tokens with their log-probs, and the text before a stop text; `ended` by an end token or a stop."""

    ids: tuple[int, ...]
    logp: tuple[float, ...]
    text: str
    ended: bool


@dataclass
class _OpenSession:
    line: SampleJob
    future: Future[ServedTurn]
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    told: int = 0
    text: str = ""
    """What the first `read` tokens say, as far as it is settled."""
    read: int = 0
    start: int = 0
    """Where the tokens begin that are decoded with the next ones, as a character may consist of several."""


class BatchedSampling:
    """A thread that samples for all clients; `at_once` bounds the completions that are sampled at the same time.

    Every completion comes from `sampler`; None: the engine of this process.
    """

    def __init__(self, policy: TokenPolicy, at_once: int = 64, sampler: RunSampler | None = None) -> None:
        self.policy, self.at_once = policy, at_once
        self.sampler: RunSampler = sampler or local_engine(policy)
        self.largest = 0
        """Most completions that were written together so far."""
        self._queue: queue.Queue[_OpenSession | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    def sample(self, line: SampleJob) -> Future[ServedTurn]:
        """Ask for a completion; a future that is cancelled is sampled no further."""
        future: Future[ServedTurn] = Future()
        self._queue.put(_OpenSession(line, future))
        return future

    def close(self) -> None:
        """Stop sampling; open requests are cancelled. May be called twice."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        active: list[_OpenSession] = []
        while True:
            try:
                while len(active) < self.at_once:
                    new = self._queue.get(block=not active)
                    if new is None:
                        self._cancel(active)
                        return
                    active.append(new)
            except queue.Empty:
                pass
            active = [each for each in active if not each.future.cancelled()]
            self.largest = max(self.largest, len(active))
            active = [each for each in self._stretch(active) if not each.future.done()]

    def _cancel(self, active: list[_OpenSession]) -> None:
        while not self._queue.empty():
            active += [each for each in [self._queue.get()] if each is not None]
        for each in active:
            each.future.cancel()

    def _stretch(self, active: list[_OpenSession]) -> list[_OpenSession]:
        """Sample a stretch for every open completion; those sampled alike go together."""
        alike: dict[tuple[bool, float], list[_OpenSession]] = defaultdict(list)
        for each in active:
            alike[each.line.temperature == 0, each.line.top_p].append(each)
        for (greedy, top_p), group in alike.items():
            try:
                self._advance(group, greedy, top_p)
            except Exception as error:
                if len(group) == 1:
                    _fail(group[0], error)
                else:
                    for each in group:  # one request's failure is its own
                        self._stretch([each])
        return active

    def _advance(self, group: list[_OpenSession], greedy: bool, top_p: float) -> None:
        sampled = self.sampler.sample(
            [
                Request(
                    (*each.line.prompt_ids, *each.ids),
                    min(STRETCH, each.line.budget - len(each.ids)),
                    (each.line.seed + len(each.ids) // STRETCH) % 2**64,
                    each.line.temperature or 1.0,
                    greedy=greedy,
                    top_p=top_p,
                    grammar=Grammar(each.line.grammar, len(each.ids)) if each.line.grammar else None,
                )
                for each in group
            ]
        )
        for each, ids, logp in zip(group, sampled.actions, sampled.logp_bt.tolist(), strict=True):
            before = len(each.ids)
            each.ids += ids
            each.logp += logp[: len(ids)]
            try:
                self._look(each, before)
            except Exception as error:
                _fail(each, error)

    def _look(self, each: _OpenSession, before: int) -> None:
        """Finish a completion that ended, and tell what is new of one that is streamed."""
        line, looked = each.line, len(each.text)
        text = self._text_so_far(each)
        found = [at for at in (text.find(stop, max(0, looked - len(stop))) for stop in line.stop) if at >= 0]
        if found:
            self._cut(each, before)
        ended = bool(found) or each.ids[-1] in self.policy.eos_ids
        over = ended or len(each.ids) >= line.budget
        if over:
            text = self.policy.decode(each.ids)
            text = text[: min([at for at in map(text.find, line.stop) if at >= 0], default=len(text))]
        if line.told is not None:
            self._tell(each, line.told, text, over)
        if over:
            with contextlib.suppress(InvalidStateError):  # cancelled just now
                each.future.set_result(ServedTurn(tuple(each.ids), tuple(each.logp), text, ended))

    def _text_so_far(self, each: _OpenSession) -> str:
        """Return the text of all tokens; those before the last two stretches are not decoded again."""
        known = self.policy.decode(each.ids[each.start : each.read])
        seen = self.policy.decode(each.ids[each.start :])
        if not seen.startswith(known):  # a tokenizer whose texts depend on what comes later
            return str(self.policy.decode(each.ids))
        text = each.text + seen[len(known) :]
        if not seen.endswith("\ufffd") or len(each.ids) - each.start > LONGEST_HALF:
            each.text, each.start, each.read = text, each.read, len(each.ids)
        return text

    def _tell(self, each: _OpenSession, told: Callable[[str], None], text: str, over: bool) -> None:
        """Tell what is new of a text, up to where a stop text or a character may have begun."""
        held = 0 if over else max((_begun(text, stop) for stop in each.line.stop), default=0)
        sure = text[: len(text) - held].rstrip("\ufffd" if not over else "")
        if len(sure) > each.told:
            told(sure[each.told :])
            each.told = len(sure)

    def _cut(self, each: _OpenSession, before: int) -> None:
        """Drop the tokens behind the one that completes a stop text."""

        def holds_a_stop(length: int) -> bool:
            text = self.policy.decode(each.ids[:length])
            return any(stop in text for stop in each.line.stop)

        lengths = range(before + 1, len(each.ids) + 1)
        length = before + 1 + bisect_left(lengths, True, key=holds_a_stop)
        del each.ids[length:], each.logp[length:]


def _fail(each: _OpenSession, error: Exception) -> None:
    with contextlib.suppress(InvalidStateError):  # done or cancelled already
        each.future.set_exception(error)


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
