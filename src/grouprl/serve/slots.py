"""Sampling slots, given to API keys in turn, so that no key's queue delays another's."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grouprl.chat.refusal import Refusal


class Slots:
    """A fixed number of slots, for which completions wait in one queue per key; for a single event loop."""

    def __init__(self, places: int, most_waiting: int) -> None:
        self.places, self.free, self.most_waiting, self.waiting = places, places, most_waiting, 0
        self._queues: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def taken(self) -> int:
        """Number of slots in use."""
        return self.places - self.free

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Hold a slot for a key; raise Refusal if too many completions already wait."""
        await self._take(key)
        try:
            yield
        finally:
            self._give()

    async def _take(self, key: str) -> None:
        if self.free > 0 and not self._queues:
            self.free -= 1
            return
        queue = self._queues.setdefault(key, deque())
        # a single key may take at most three quarters of the queue, so that others can still wait
        if self.waiting >= self.most_waiting or len(queue) >= max(1, self.most_waiting * 3 // 4):
            raise Refusal(f"{self.waiting} completions are already waiting to be sampled; try again later", status=503)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it received the slot at the same moment
                self._give()
            raise

    def _give(self) -> None:
        self.free += 1
        while self.free > 0 and self._queues:
            # A refused request may have left an empty queue, which is dropped here.
            key, queue = next(iter(self._queues.items()))
            turn = queue.popleft() if queue else None
            if queue:
                self._queues.move_to_end(key)
            else:
                del self._queues[key]
            if turn is None:
                continue
            self.waiting -= 1
            if not turn.done():
                turn.set_result(None)
                self.free -= 1
