"""Retention of things that may be needed again, limited per key, by age and in total."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Retainable(Protocol):
    """A thing that can be retained; it has a number, a time of its last use, and a size."""

    number: int
    used: float
    cost: int


K = TypeVar("K", bound=Retainable)


@dataclass(frozen=True)
class Retention:
    """The limits of retention."""

    seconds: float = 3600.0
    """Seconds for which a thing is retained after its last use."""
    cost: int = 256 * 2**20
    """Approximate total size of retained things, in bytes."""
    keys: int = 4096
    """Largest number of API keys with retained things."""


@dataclass
class _KeyRetained(Generic[K]):
    """The retained things of one key, least recently used first."""

    things: OrderedDict[int, tuple[K, bytes, int]] = field(default_factory=OrderedDict)
    """By number: the thing, the mark under which it is found, and its size when it was added."""
    marks: dict[bytes, dict[int, K]] = field(default_factory=dict)
    next: int = 0
    cost: int = 0

    def put(self, thing: K, mark: bytes) -> None:
        # Taken out first, as its mark and its size may be others than when it was put in.
        self.drop(thing.number)
        self.things[thing.number] = (thing, mark, thing.cost)
        self.marks.setdefault(mark, {})[thing.number] = thing
        self.cost += thing.cost

    def drop(self, number: int) -> None:
        if number not in self.things:
            return
        _, mark, cost = self.things.pop(number)
        del self.marks[mark][number]
        if not self.marks[mark]:
            del self.marks[mark]
        self.cost -= cost

    def oldest(self) -> K:
        return next(iter(self.things.values()))[0]


class Retained(Generic[K]):
    """The retained things of all keys. If space runs out, the largest key loses its least recently used thing."""

    def __init__(self, keeping: Retention) -> None:
        self.keeping, self.cost = keeping, 0
        self._shelves: OrderedDict[str, _KeyRetained[K]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of retained things."""
        self._expire()
        return sum(len(shelf.things) for shelf in self._shelves.values())

    def of(self, key: str) -> list[K]:
        """Return the retained things of a key, in the order of their numbers."""
        self._expire()
        shelf = self._shelves.get(key)
        return [] if shelf is None else [shelf.things[number][0] for number in sorted(shelf.things)]

    def marked(self, key: str, mark: bytes) -> list[K]:
        """Return the retained things of a key with a mark."""
        self._expire()
        shelf = self._shelves.get(key)
        return [] if shelf is None else list(shelf.marks.get(mark, {}).values())

    def holds(self, key: str, thing: K) -> bool:
        """Return whether this very object is retained."""
        shelf = self._shelves.get(key)
        return shelf is not None and thing.number in shelf.things and shelf.things[thing.number][0] is thing

    def next_number(self, key: str) -> int:
        """Return the number of the next thing of a key."""
        shelf = self._shelves.get(key)
        return 0 if shelf is None else shelf.next

    def put(self, key: str, mark: bytes, thing: K) -> None:
        """Retain a thing, or change the mark of a retained one; others may be dropped to make room."""
        shelf = self._shelves.setdefault(key, _KeyRetained())
        self._shelves.move_to_end(key)
        before = shelf.cost
        shelf.put(thing, mark)
        shelf.next = max(shelf.next, thing.number + 1)
        self.cost += shelf.cost - before
        self._expire()
        while self.cost > self.keeping.cost:
            largest = max(self._shelves, key=lambda name: self._shelves[name].cost)
            self._drop_oldest(largest)
        while len(self._shelves) > self.keeping.keys:
            self.cost -= self._shelves.popitem(last=False)[1].cost

    def _expire(self) -> None:
        """Drop things that were unused for too long; keys are ordered by their last use, oldest first."""
        end = time.monotonic() - self.keeping.seconds
        for key in list(self._shelves):
            shelf = self._shelves[key]
            while shelf.things and shelf.oldest().used < end:
                self._drop_oldest(key)
                if key not in self._shelves:
                    break
            else:
                return

    def _drop_oldest(self, key: str) -> None:
        shelf = self._shelves[key]
        before = shelf.cost
        shelf.drop(shelf.oldest().number)
        self.cost += shelf.cost - before
        if not shelf.things:
            del self._shelves[key]
