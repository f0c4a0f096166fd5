"""The meeting of a run's ranks: rank 0 knows who has come, says whom it waits for, and refuses ranks that were started
differently.

Ranks speak through a key-value store (torch's `TCPStore`) that rank 0 holds. Each writes the facts of its start; rank 0
compares them with its own, and then writes its verdict, for which the others wait.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from grouprl.core.errors import GrouprlError, InputError, RunError
from grouprl.core.wording import in_ranges
from grouprl.processes.liveness import answers

if TYPE_CHECKING:
    from torch.distributed import TCPStore

WAIT = "GROUPRL_WAIT_FOR_RANKS"
"""The environment variable for the seconds in which all ranks have to come."""
PATIENCE = 300.0
"""Its default."""
FIRST, OFTEN = 5.0, 30.0
"""Seconds after which a rank says for the first time, and then again, whom it waits for."""
SILENT = 30.0
"""Seconds without a sign of life after which a rank that had come counts as gone."""
BEAT = 0.2
"""Seconds between two signs of life of a rank that waits for the verdict."""
GLANCE = 0.1
READ = 2.0
"""Seconds within which the others can read a verdict before rank 0, and its store with it, ends."""
SHOWN = 3
"""Differences that a message names."""


Facts = Mapping[str, Mapping[str, str]]
"""Facts of the start of a rank by group and name. A group that one of two ranks lacks is not compared: rank 0 alone
reads configuration, data and code, and others need not have their files.
"""
CONTENTS = "contents"
"""The group of the facts about files."""


class MeetingStore(Protocol):
    """The members of `torch.distributed.Store` that a meeting needs."""

    def set(self, key: str, value: str, /) -> None:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Return a value."""

    def check(self, keys: list[str], /) -> bool:
        """Return whether all keys have values."""


def patience() -> float:
    """Return the seconds in which all ranks have to come.

    Raises:
        InputError: the environment variable is not a positive number.
    """
    given = os.environ.get(WAIT) or str(PATIENCE)
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InputError(f"{WAIT}={given}", "it must be a positive number of seconds", f"Unset {WAIT}, or give one")
    return seconds


def tell(words: str) -> None:
    """Show a sentence on stderr."""
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


class Reminder:
    """Says whom this rank waits for: first after `FIRST` seconds, then every `OFTEN`."""

    def __init__(self, seconds: float, say: Callable[[str], None] = tell) -> None:
        """`seconds` are the most that it waits."""
        self._seconds, self._say, self._begun, self._next = seconds, say, time.monotonic(), FIRST

    @property
    def over(self) -> bool:
        """True once the time is over."""
        return time.monotonic() - self._begun > self._seconds

    def remind(self, words: str) -> None:
        """Show the words, and for how long they have been true, if it is time for that."""
        waited = time.monotonic() - self._begun
        if waited > self._next:
            self._say(f"{words} ({waited:.0f} s, at most {self._seconds:g} s)")
            self._next = waited + OFTEN


@dataclass
class RollCall:
    """The meeting as rank 0 sees it, with the facts of its own start.

    `say` shows the sentences about those who are missing.
    """

    store: MeetingStore
    count: int
    facts: Facts
    seconds: float
    say: Callable[[str], None] = tell
    _signs: dict[int, tuple[str, float]] = field(default_factory=dict)

    def hold(self) -> None:
        """Wait until all ranks have come; let them work if they were started like this one.

        Raises:
            RunError: a rank does not come in time, or has ended since it came.
            InputError: a rank was started differently.
        """
        try:
            self._wait()
            self._compare()
        except GrouprlError:
            self._dismiss()
            raise
        self.store.set("verdict", "work")

    def _wait(self) -> None:
        reminder = Reminder(self.seconds, self.say)
        while missing := [rank for rank in range(1, self.count) if not self.store.check([f"came/{rank}"])]:
            if reminder.over:
                raise _never(f"{named(missing, self.count)} did not come within {self.seconds:g} s ({WAIT})")
            reminder.remind(f"rank 0 waits for {named(missing, self.count)}")
            self._check_signs()
            time.sleep(GLANCE)

    def _check_signs(self) -> None:
        """Refuse to wait on if a rank that had come has ended."""
        now = time.monotonic()
        for rank in range(1, self.count):
            if self.store.check([f"alive/{rank}"]):
                sign = self.store.get(f"alive/{rank}").decode()
                known, since = self._signs.get(rank, ("", now))
                self._signs[rank] = (sign, since if sign == known else now)
                if now - self._signs[rank][1] > SILENT:
                    raise _never(f"{named([rank], self.count)} came and has given no sign for {SILENT:g} s")

    def _compare(self) -> None:
        for rank in range(1, self.count):
            theirs = json.loads(self.store.get(f"came/{rank}"))
            if found := differences(self.facts, theirs):
                shown = "; ".join(
                    f"{key} is {theirs} there and {ours} on rank 0" for key, ours, theirs in found[:SHOWN]
                )
                more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
                raise InputError(
                    f"rank {rank} of {self.count} was started differently: {shown}{more}",
                    "all ranks of a run must have the same settings, files and versions",
                    "Start every process with the same command, on machines that are set up alike",
                )

    def _dismiss(self) -> None:
        """Let those who have come end, and wait a moment until they know."""
        self.store.set("verdict", "end")
        came = [rank for rank in range(1, self.count) if self.store.check([f"came/{rank}"])]
        until = time.monotonic() + READ
        while time.monotonic() < until and not all(self.store.check([f"read/{rank}"]) for rank in came):
            time.sleep(GLANCE)


def _never(said: str) -> RunError:
    return RunError(f"{said}. All processes of a run must be started, with the same command; see what that one said")


def meeting_store(rank: int, count: int, limit: timedelta) -> TCPStore:
    """Return the store through which the ranks meet: rank 0 holds it, unless torchrun's agent does.

    Raises:
        RunError: nothing answers where rank 0 should be.
        ValueError: the environment does not say where that is.
    """
    import torch.distributed as dist

    if absent := [name for name in PLACE if not os.environ.get(name)]:
        raise ValueError(f"{absent[0]} is not set")
    host, port = (os.environ[name] for name in PLACE)
    holds = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    if not holds:
        _await(f"{host}:{port}", rank, limit.total_seconds())
    # Without waiting for the others: torch would not say who is missing.
    return dist.TCPStore(host, int(port), count, holds, limit, wait_for_workers=False, multi_tenant=True)


def _await(address: str, rank: int, seconds: float) -> None:
    """Wait until rank 0 answers."""
    reminder = Reminder(seconds)
    while not answers(address):
        if reminder.over:
            said = f"rank 0 did not come: nothing answered at {address} within {seconds:g} s ({WAIT})"
            raise RunError(f"{said}, and rank {rank} ends")
        reminder.remind(f"rank {rank} waits for rank 0 to answer at {address}")
        time.sleep(GLANCE)


PLACE = ("MASTER_ADDR", "MASTER_PORT")
"""Environment variables that say where the ranks meet."""


def attend(store: MeetingStore, rank: int, facts: Facts) -> bool:
    """Come to the meeting as another rank, and return whether rank 0 wants it to work; otherwise rank 0 says why.

    Raises:
        RunError: rank 0 has ended.
    """
    try:
        store.set(f"came/{rank}", json.dumps(facts))
        for sign in itertools.count():
            if store.check(["verdict"]):
                break
            store.set(f"alive/{rank}", str(sign))
            time.sleep(BEAT)
        wanted = store.get("verdict") == b"work"
        store.set(f"read/{rank}", "yes")
    except RuntimeError as error:
        raise RunError(f"rank 0 has ended before all ranks had met, and so does rank {rank}") from error
    return wanted


def named(ranks: Sequence[int], count: int) -> str:
    """Return the names of some of `count` ranks, as of a sentence's subject."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {in_ranges(ranks).partition(' ')[2]} of {count}"


def differences(ours: Facts, theirs: Facts) -> list[tuple[str, str, str]]:
    """Return key, own value and other value of each fact that differs; of `CONTENTS`, facts that both know."""
    return [
        (key, _short(own.get(key, "not set")), _short(other.get(key, "not set")))
        for group, own in ours.items()
        if (other := theirs.get(group)) is not None
        for key in dict.fromkeys([*own, *other])
        if own.get(key) != other.get(key) and (group != CONTENTS or (key in own and key in other))
    ]


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


LONGEST = 120
"""Characters of a value that a message shows."""
