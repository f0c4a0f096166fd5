"""A process group of the trainer, rank 0, which sends, and the servers' workers, which receive.

Both sides import this file: a server finds its folder on PYTHONPATH, in its own environment. It imports only torch.
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
"""Beginning of the message of `BrokenOff`, by which it is recognised within a server's own error message."""
LOOK = 0.002
"""Seconds between two checks of pending work."""
NCCL_SWITCH = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""Environment variable for the reaction of NCCL's watchdog to errors; "0": it does not end the process."""


class BrokenOff(RuntimeError):
    """A member is gone or silent, or has given up: the group can no longer be used."""

    def __init__(self, words: str) -> None:
        super().__init__(f"{MARK}: {words}")


class Missing(BrokenOff):
    """Workers that did not join, by their ranks."""

    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks
        super().__init__(f"the ranks {ranks} did not come")


@dataclass(frozen=True)
class Meeting:
    """Data that a member needs to join a group."""

    name: str
    """Unique name of the group."""
    rank: int
    size: int
    host: str
    """Address of this member's machine at which the others can reach it."""
    seconds: float
    """Seconds without progress after which the group is broken off."""
    backend: str = "gloo"
    """gloo, or nccl if all tensors are on GPUs, with a different one for each member."""


def never() -> bool:
    """Return False: never give up."""
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
        BrokenOff: no process, or a different one, listens at the address.
    """
    limit = timedelta(seconds=seconds)
    try:
        return dist.TCPStore(host, port, None, trainer, limit, wait_for_workers=False)
    except RuntimeError as error:
        raise BrokenOff(f"no meeting at {host}:{port}: {_first_line(error)}") from None


def gathered(store: dist.Store, meeting: Meeting, given_up: Callable[[], bool] = never) -> Group:
    """Return the group, for the trainer, when all workers have come.

    Raises:
        Missing: some workers did not come in time, or `given_up` became true; the others are told to leave.
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
    """Return the group, for a worker, when the trainer says that all workers have come.

    Raises:
        BrokenOff: the trainer continued without this group, or did not answer.
    """
    named = dist.PrefixStore(meeting.name, store)
    named.set(_here(meeting.rank), YES)
    try:
        named.wait([GO], timedelta(seconds=meeting.seconds))
    except RuntimeError as error:
        raise BrokenOff(f"the trainer did not begin: {_first_line(error)}") from None
    if named.get(GO) != YES.encode():
        raise BrokenOff("a worker did not come, and the trainer began without this group")
    return Group(named, meeting)


class Group:
    """A separate process group, independent of any other of this process.

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
        """Copy the trainer's tensor `flat` into that of every member.

        Raises:
            BrokenOff: a member is gone or too slow, or `given_up` became true.
        """
        options, until = dist.BroadcastOptions(), time.monotonic() + self._seconds
        options.rootRank = TRAINER
        if not self._held:
            raise BrokenOff("this member has left")
        try:
            work = self._work = self._held[0].broadcast([flat], options)
            while not work.is_completed():
                if given_up() or time.monotonic() > until:
                    raise BrokenOff(
                        f"a part of the weights was not sent within {self._seconds:g} seconds, or sending was given up"
                    )
                time.sleep(LOOK)
            # Completed work may have failed: only this raises its error.
            work.wait()
        except RuntimeError as error:
            raise error if isinstance(error, BrokenOff) else BrokenOff(_first_line(error)) from None

    @property
    def pending(self) -> bool:
        """True if something is being sent or received."""
        return self._work is not None and not self._work.is_completed()

    def close(self) -> None:
        """Close the connections, which notifies members that wait for this one, after waiting for `pending` work."""
        while self.pending:  # done here, because a process that ends during the group's destructor would crash
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
    options._timeout = timedelta(seconds=10 * meeting.seconds)  # `broadcast` checks the time itself
    with _watchdog_off():
        return dist.ProcessGroupNCCL(store, meeting.rank, meeting.size, options)  # type: ignore[return-value]


@contextmanager
def _watchdog_off() -> Iterator[None]:
    """Let NCCL report errors to the caller instead of ending the process."""
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
