"""Weights in shared memory: versioned, checked, and never read half-written.

Two slots are written in turn, so the newest complete version stays readable while the next is written. A slot carries
its version before and after its content, and a checksum; a reader that finds two different versions reads again. The
memory is anonymous and belongs to the two processes only: it is freed when both have ended, for whatever reason.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grouprl.core.errors import RunError
from grouprl.orchestrator.weight_checksum import bytes_of, checksum

WORD = 8
HEADER = 8 * WORD
"""Bytes before the slots: the newest version; then, for each slot, its version before, its version after, and its
checksum.
"""
PATIENCE_SECONDS = 30.0
"""Seconds that a reader waits for a complete version."""
TRIES = 3
"""The number of times that an untouched slot may disagree with its checksum."""
NONE = -1


@dataclass(frozen=True)
class Place:
    """The position of one tensor in a slot."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def lay_out(state: Mapping[str, Tensor]) -> tuple[Place, ...]:
    """Return the position of each tensor of `state` in a slot; each begins at a multiple of 8 bytes."""
    places, start = [], 0
    for name, tensor in state.items():
        size = tensor.numel() * tensor.element_size()
        places.append(Place(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), start, size))
        start += -(-size // WORD) * WORD
    return tuple(places)


class SharedWeights:
    """One process's view of the weights; `fd` is the memory, and `places` are the positions of the tensors.

    There is one writer and any number of readers.
    """

    def __init__(self, fd: int, places: tuple[Place, ...]) -> None:
        self.fd, self.places = fd, places
        last = places[-1]
        self._slot = last.start + -(-last.size // WORD) * WORD
        self._map = mmap.mmap(fd, HEADER + 2 * self._slot)
        self._words = np.frombuffer(self._map, dtype=np.int64, count=HEADER // WORD)

    @classmethod
    def create(cls, state: Mapping[str, Tensor]) -> SharedWeights:
        """Reserve memory for tensors like those of `state`, without a version yet."""
        places = lay_out(state)
        size = HEADER + 2 * (places[-1].start + -(-places[-1].size // WORD) * WORD)
        fd = _anonymous(size)
        made = cls(fd, places)
        made._words[:] = NONE
        return made

    @property
    def latest(self) -> int:
        """The newest version, -1 before the first."""
        return int(self._words[0])

    def publish(self, version: int, state: Mapping[str, Tensor]) -> int:
        """Write `state` as `version` and return its checksum."""
        return self.publish_each(version, ((place.name, state[place.name]) for place in self.places))

    def publish_each(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> int:
        """Write tensors, which come in the order of `places`, as `version`; return their checksum."""
        slot = version % 2
        begin, end, total = (1 + 3 * slot + i for i in range(3))
        self._words[end] = NONE  # the same version again must not look whole while it is written
        self._words[begin] = version  # begin before, end behind the content: a reader that sees both saw all of it
        check = 0
        for place, (name, tensor) in zip(self.places, tensors, strict=True):
            assert name == place.name
            start, held = self._start(slot) + place.start, bytes_of(tensor)
            self._map[start : start + place.size] = held
            check = zlib.crc32(held, check)
        self._words[total] = check
        self._words[end] = version
        self._words[0] = version
        return int(self._words[total])

    def read(self) -> tuple[int, dict[str, Tensor]]:
        """Return the newest version and a copy of its weights.

        Raises:
            RunError: no version appeared within `PATIENCE_SECONDS`, or its content does not match its checksum.
        """
        wrong, deadline = 0, time.monotonic() + PATIENCE_SECONDS
        while wrong < TRIES and time.monotonic() < deadline:
            version = self.latest
            if version != NONE:
                state, quiet = self._copy(version)
                if state is not None:
                    return version, state
                # A slot that was being written may have any checksum: only an untouched one shows damage.
                wrong += quiet
            time.sleep(0.001)
        if not wrong:
            raise RunError(
                f"no whole version of the weights appeared in shared memory within {PATIENCE_SECONDS:g} seconds. "
                "Continue with --resume"
            )
        raise RunError(
            f"version {self.latest} of the weights in shared memory does not match its checksum: it was damaged after "
            "it was written. Continue with --resume"
        )

    def close(self) -> None:
        """Release this process's view of the memory."""
        del self._words
        self._map.close()
        os.close(self.fd)

    def _copy(self, version: int) -> tuple[dict[str, Tensor] | None, bool]:
        """Return the weights of `version` if they are complete, and whether no process wrote to them meanwhile."""
        slot = version % 2
        begin, end, total = (1 + 3 * slot + i for i in range(3))
        expected = int(self._words[total])
        ready = int(self._words[begin]) == int(self._words[end]) == version
        # The checksum is taken of a copy, which the writer can no longer change once the versions have been compared.
        held = np.frombuffer(self._map, np.uint8, self._slot, self._start(slot)).copy()
        quiet = ready and int(self._words[begin]) == int(self._words[end]) == version
        state = {place.name: _tensor(held, place) for place in self.places}
        return (state if quiet and checksum(state) == expected else None), quiet

    def _start(self, slot: int) -> int:
        return HEADER + slot * self._slot


def _anonymous(size: int) -> int:
    """Return a descriptor of memory without a name, filled with zeros."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("grouprl-weights")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


def _tensor(held: np.ndarray, place: Place) -> Tensor:
    kind = getattr(torch, place.dtype)
    if not place.size:
        return torch.zeros(place.shape, dtype=kind)
    count = place.size // torch.empty(0, dtype=kind).element_size()
    return torch.frombuffer(held, dtype=kind, count=count, offset=place.start).reshape(place.shape)
