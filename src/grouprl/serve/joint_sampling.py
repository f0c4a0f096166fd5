"""Sampling completions for requests that arrive at any time: all open ones are sampled together, in stretches.

Requests that arrive while others are being sampled join at the next stretch. A completion depends on its request and
seed alone, not on its neighbours: each stretch has its own seed, and stretches begin at fixed positions.
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
"""Number of tokens sampled before requests may join, streams are updated and stop texts are searched for."""
LONGEST_HALF = 4 * STRETCH
"""Number of tokens after which an apparently incomplete character counts as complete."""


@dataclass(frozen=True)
class SampleJob:
    """A request for one completion."""

    prompt_ids: tuple[int, ...]
    budget: int
    seed: int
    temperature: float = 1.0
    """Sampling temperature; 0 takes the most probable token each time, with log-probs at temperature 1."""
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    grammar: str = ""
    """Grammar of the completion; '' for none."""
    top_k: int = 0
    min_p: float = 0.0
    told: Callable[[str], None] | None = None
    """Called with further text as soon as no stop text can begin in it."""


@dataclass(frozen=True)
class ServedTurn:
    """A completion: tokens with log-probs, and the text before a stop text; `ended` by an end token or a stop text."""

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
    """Text of the first `read` tokens, as far as later tokens cannot change it."""
    read: int = 0
    start: int = 0
    """Position of the first token that is decoded again with the next ones: a character may take several tokens."""


class BatchedSampling:
    """A thread that samples for all clients; `at_once` limits the completions that are sampled at the same time.

    Every completion comes from `sampler`, or from the engine of this process if that is None.
    """

    def __init__(self, policy: TokenPolicy, at_once: int = 64, sampler: RunSampler | None = None) -> None:
        self.policy, self.at_once = policy, at_once
        self.sampler: RunSampler = sampler or local_engine(policy)
        self.largest = 0
        """Largest number of completions that were sampled together so far."""
        self._queue: queue.Queue[_OpenSession | None] = queue.Queue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    def sample(self, line: SampleJob) -> Future[ServedTurn]:
        """Request a completion; cancelling its future stops its sampling. After `close` it is cancelled at once."""
        future: Future[ServedTurn] = Future()
        self._queue.put(_OpenSession(line, future))
        # Checked after the request is in the queue: either the thread still finds it there, or this sees the end.
        if self._over.is_set():
            future.cancel()
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
                    # Waits only if nothing is sampled: otherwise who comes later joins at the next stretch.
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
        self._over.set()
        while not self._queue.empty():
            active += [each for each in [self._queue.get()] if each is not None]
        for each in active:
            each.future.cancel()

    def _stretch(self, active: list[_OpenSession]) -> list[_OpenSession]:
        """Sample a stretch of every open completion; those with the same settings form one batch."""
        alike: dict[tuple[object, ...], list[_OpenSession]] = defaultdict(list)
        for each in active:
            line = each.line
            alike[line.temperature == 0, line.top_p, line.top_k, line.min_p].append(each)
        for group in alike.values():
            try:
                self._advance(group)
            except Exception as error:
                if len(group) == 1:
                    _fail(group[0], error)
                else:
                    for each in group:  # a failure must not affect other requests
                        self._stretch([each])
        return active

    def _advance(self, group: list[_OpenSession]) -> None:
        sampled = self.sampler.sample(
            [
                Request(
                    (*each.line.prompt_ids, *each.ids),
                    min(STRETCH, each.line.budget - len(each.ids)),
                    (each.line.seed + len(each.ids) // STRETCH) % 2**64,
                    each.line.temperature or 1.0,
                    greedy=each.line.temperature == 0,
                    top_p=each.line.top_p,
                    top_k=each.line.top_k,
                    min_p=each.line.min_p,
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
        """Finish a completion that has ended, and pass on the new text of a streamed one."""
        line, looked = each.line, len(each.text)
        text = self._text_so_far(each)
        # A stop text may begin in what was searched before, but not end there.
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
        """Return the text of all tokens; tokens before the last two stretches are not decoded again."""
        known = self.policy.decode(each.ids[each.start : each.read])
        seen = self.policy.decode(each.ids[each.start :])
        if not seen.startswith(known):  # with this tokenizer later tokens change earlier text
            return str(self.policy.decode(each.ids))
        text = each.text + seen[len(known) :]
        if not seen.endswith("\ufffd") or len(each.ids) - each.start > LONGEST_HALF:
            each.text, each.start, each.read = text, each.read, len(each.ids)
        return text

    def _tell(self, each: _OpenSession, told: Callable[[str], None], text: str, over: bool) -> None:
        """Pass on the new part of a text, up to the possible start of a stop text or an incomplete character."""
        held = 0 if over else max((_begun(text, stop) for stop in each.line.stop), default=0)
        sure = text[: len(text) - held].rstrip("\ufffd" if not over else "")
        if len(sure) > each.told:
            told(sure[each.told :])
            each.told = len(sure)

    def _cut(self, each: _OpenSession, before: int) -> None:
        """Drop the tokens after the one that completes a stop text."""

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
    """Return the number of characters at the end of `text` that may begin `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
