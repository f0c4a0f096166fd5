"""A process group of a trainer, rank 0, which sends, and of servers' workers, which receive.

Both sides read this file: a server finds its folder on PYTHONPATH, in an environment of its own. It imports torch
alone.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch import Tensor

TRAINER = 0
GO, YES, NO = "go", "yes", "no"
MARK = "the exchange of weights was broken off"
"""Begins what `BrokenOff` says, so that it is known behind whatever a server wraps around it."""
LOOK = 0.002
"""Seconds between two looks at what is not done yet."""
NCCL_SWITCH = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""Environment variable that says what NCCL's watchdog does about an error; "0": it ends no process."""


class BrokenOff(RuntimeError):
    """A member is gone, or silent, or gave up: the group is of no use any more."""

    def __init__(self, words: str) -> None:
        super().__init__(f"{MARK}: {words}")


class Missing(BrokenOff):
    """Workers that did not come, by their ranks."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks
        super().__init__(f"the ranks {ranks} did not come")


@dataclass(frozen=True)
class Meeting:
    """What a member knows of a group before it joins."""

    name: str
    """Each group has another one."""
    rank: int
    size: int
    host: str
    """The address of this member's machine that the others reach."""
    seconds: float
    """After so many without progress the group is broken off."""
    backend: str = "gloo"
    """gloo, or nccl where all tensors lie on GPUs, each member on another one."""


def never() -> bool:
    """Nobody gives up."""
    return False


def address_towards(host: str, port: int) -> str:
    """Return the address of this machine from which packets go to `host`; nothing is sent."""
    family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as asked:
        asked.connect(place)
        return str(asked.getsockname()[0])


def opened_store(host: str, port: int, seconds: float, *, trainer: bool) -> dist.TCPStore:
    """Return the store where members meet: the trainer listens (port 0: a free one), the others connect.

    Raises:
        BrokenOff: nobody listens there, or somebody else does.
    """
    limit = timedelta(seconds=seconds)
    try:
        return dist.TCPStore(host, port, None, trainer, limit, wait_for_workers=False)
    except RuntimeError as error:
        raise BrokenOff(f"no meeting at {host}:{port}: {_first_line(error)}") from None


def gathered(store: dist.Store, meeting: Meeting, given_up: Callable[[], bool] = never) -> Group:
    """Return the group, for the trainer, when all workers are there.

    Raises:
        Missing: some did not come in time, or `given_up` became true; those who came are sent away.
    """
    named, until = dist.PrefixStore(meeting.name, store), time.monotonic() + meeting.seconds
    while missing := [rank for rank in range(1, meeting.size) if not named.check([_here(rank)])]:
        if given_up() or time.monotonic() > until:
            named.set(GO, NO)
            raise Missing(missing)
        time.sleep(LOOK)
    named.set(GO, YES)
    return Group(named, meeting)


def joined(store: dist.Store, meeting: Meeting) -> Group:
    """Return the group, for a worker, when the trainer says that all are there.

    Raises:
        BrokenOff: the trainer went on without this group, or said nothing.
    """
    named = dist.PrefixStore(meeting.name, store)
    named.set(_here(meeting.rank), YES)
    try:
        named.wait([GO], timedelta(seconds=meeting.seconds))
    except RuntimeError as error:
        raise BrokenOff(f"the trainer did not begin: {_first_line(error)}") from None
    if named.get(GO) != YES.encode():
        raise BrokenOff("somebody did not come, and the trainer began without this group")
    return Group(named, meeting)


class Group:
    """A process group of its own, beside any other that this process has.

    Raises:
        BrokenOff: the members do not reach each other.
    """

    def __init__(self, store: dist.Store, meeting: Meeting) -> None:
        self.store, self._seconds = store, meeting.seconds
        self._work: dist.Work | None = None
        try:
            self._held = [_nccl(store, meeting) if meeting.backend == "nccl" else _gloo(store, meeting)]
        except RuntimeError as error:
            raise BrokenOff(f"the members do not reach each other: {_first_line(error)}") from None

    def broadcast(self, flat: Tensor, given_up: Callable[[], bool] = never) -> None:
        """Bring the trainer's `flat` into everybody's.

        Raises:
            BrokenOff: somebody is gone or too slow, or `given_up` became true.
        """
        options, until = dist.BroadcastOptions(), time.monotonic() + self._seconds
        options.rootRank = TRAINER
        if not self._held:
            raise BrokenOff("this member has left")
        try:
            work = self._work = self._held[0].broadcast([flat], options)
            while not work.is_completed():
                if given_up() or time.monotonic() > until:
                    raise BrokenOff(f"a part is not through after {self._seconds:g} seconds, or was given up")
                time.sleep(LOOK)
            work.wait()
        except RuntimeError as error:
            raise error if isinstance(error, BrokenOff) else BrokenOff(_first_line(error)) from None

    @property
    def pending(self) -> bool:
        """Whether something is being sent or received."""
        return self._work is not None and not self._work.is_completed()

    def close(self) -> None:
        """Close the connections: whoever waits for this member is told so. What is `pending` is waited for."""
        while self.pending:  # here, and not in the group's destructor: a process that ends meanwhile would crash there
            time.sleep(LOOK)
        self._work = None
        while self._held:
            self._held.pop().abort()


def _gloo(store: dist.Store, meeting: Meeting) -> dist.ProcessGroup:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=meeting.seconds)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=meeting.host)]
    return dist.ProcessGroupGloo(store, meeting.rank, meeting.size, options)  # type: ignore[return-value]


def _nccl(store: dist.Store, meeting: Meeting) -> dist.ProcessGroup:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=10 * meeting.seconds)  # `broadcast` looks at the clock by itself
    with _watchdog_off():
        return dist.ProcessGroupNCCL(store, meeting.rank, meeting.size, options)  # type: ignore[return-value]


@contextmanager
def _watchdog_off() -> Iterator[None]:
    """Let NCCL report errors to whoever asks, in place of ending the process."""
    before = os.environ.get(NCCL_SWITCH)
    os.environ[NCCL_SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[NCCL_SWITCH]
        else:
            os.environ[NCCL_SWITCH] = before


def _here(rank: int) -> str:
    return f"here/{rank}"


def _first_line(error: BaseException) -> str:
    """Return what an error says, without the place in the source and the advice that gloo adds."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return re.sub(r"^\[[^\]]*\] ", "", line).partition(" This is typically")[0]
