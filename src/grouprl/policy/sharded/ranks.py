"""Several processes, one run: rank 0 leads it, the others do their part of each piece of work that it calls for.

Only rank 0 has a task, a reward, a method's memory and the run folder, so that nothing of these can differ between
ranks; what is spread is what costs: weights, optimiser state, passes and sampling. A piece of work is a function of
this package, called on every rank with what the rank keeps (its `Station`) and its own share of the data; inside, ranks
may exchange tensors, and then all of them must do so in the same order.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from grouprl.core.errors import GrouprlError, InputError, RunError, out_of_memory
from grouprl.core.importing import Source
from grouprl.core.network import choose_interface
from grouprl.core.plugins import import_sources, sources_of_files
from grouprl.processes.current_ranks import LEADING, placed_by
from grouprl.processes.liveness import PeerWatch

IDLE = timedelta(days=365)
"""How long a rank waits for its next work: while a reward is computed there is none."""
MEETING = timedelta(seconds=300)
"""How long ranks wait for each other at the start."""
CUT_OFF = 60.0
"""Seconds after which a rank ends that cannot reach rank 0."""
NOTICE = 2.0
"""Seconds in which a rank that failed says why, before it counts as gone."""
Result = TypeVar("Result")
Work = Callable[["Station", Any], Result]


@dataclass
class Station:
    """What one rank keeps between two pieces of work."""

    rank: int
    count: int
    device: torch.device
    control: dist.ProcessGroup
    """Over this group work is given out."""
    answers: dist.ProcessGroup
    """Over this one its results come back."""
    mesh: DeviceMesh | None = None
    """All ranks, or a table of them: those of a row (`tensor`) cut matrices among themselves, those of a column
    (`ranks`) hold parts of the same cuts."""
    everyone: dist.ProcessGroup | None = None
    """Over this group numbers of all ranks are added up."""
    kept: dict[str, Any] = field(default_factory=dict)
    """Policies, optimisers, samplers, by name."""


class Ranks:
    """All ranks, as rank 0 sees them: `call` lets each do its share of a piece of work.

    Args:
        store: where ranks leave notes for each other.
        station: what rank 0 keeps.
    """

    def __init__(self, store: dist.Store, station: Station) -> None:
        self.station, self._store, self.timeout = station, store, MEETING.total_seconds()
        self._calls, self._lock, self._broken, self.cut_by = 0, threading.Lock(), False, 1

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return self.station.count

    @property
    def teams(self) -> int:
        """How many ranks get rows of their own: those that cut matrices among themselves work on the same rows."""
        return self.count // self.cut_by

    def begin(self, timeout: float, cut_by: int = 1) -> None:
        """From now on ranks wait for each other for so many seconds, and so many cut matrices among themselves."""
        assert self.count % cut_by == 0
        self.each(_begin, (timeout, cut_by))
        self.each(_import, sources_of_files())
        self.timeout, self.cut_by = timeout, cut_by

    def call(self, work: Work[Result], shares: Sequence[object]) -> list[Result]:
        """Let each rank do `work` on its share; return what each found, by rank.

        Raises:
            RunError: a rank failed, is gone, or did not answer in time.
            GrouprlError: what the work itself raised, on whichever rank.
        """
        assert len(shares) == self.count
        with self._lock:
            self._calls += 1
            found: list[Any] = [None] * self.count
            try:
                _given_out([(work, share) for share in shares], self.station.control)
                outcome = _done(self.station, work, shares[0])
                dist.gather_object(outcome, found, dst=0, group=self.station.answers)
            except BaseException as error:
                self._broken = True
                if _of_network(error):
                    raise self._in_words(error) from error
                raise
        failed = next((each for each in found if isinstance(each, GrouprlError)), None)
        if failed is not None:
            raise failed
        return found

    def each(self, work: Work[Result], share: object = None) -> list[Result]:
        """Let every rank do `work` on the same share; return what each found, by rank."""
        return self.call(work, [share] * self.count)

    def close(self) -> None:
        """Send the other ranks home; one that is gone does not matter any more."""
        if not self._broken:
            with suppress(RuntimeError, ValueError, OSError):
                _given_out([None] * self.count, self.station.control)
        self._broken = True

    def _in_words(self, error: BaseException) -> RunError:
        """Say which rank failed, and what it said of it."""
        others, end = range(1, self.count), time.monotonic() + NOTICE
        while not (said := {rank: text for rank in others if (text := _note(self._store, f"failed/{rank}"))}):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        safe = "What a checkpoint holds is whole; continue with --resume"
        if said:
            rank, text = next(iter(said.items()))
            return RunError(f"rank {rank} of {self.count} failed: {text}. {safe}")
        missing = [str(r) for r in others if _note(self._store, f"done/{r}") != str(self._calls)]
        who = f"rank {', '.join(missing)} of {self.count} is" if missing else "one of the other ranks is"
        if any(word in str(error).lower() for word in GONE):
            return RunError(f"{who} gone: its process has ended, or the connection to it is lost. {safe}")
        return RunError(
            f"{who} silent: it did not answer within run.rank_timeout = {self.timeout:g} seconds "
            f"({first_line(error)}). {safe}"
        )


@contextmanager
def leading() -> Iterator[Ranks]:
    """Meet the other ranks and lead them until the end of the block; for rank 0."""
    ranks = Ranks(*_meet())
    LEADING.append(ranks)
    try:
        yield ranks
    finally:
        LEADING.remove(ranks)
        ranks.close()
        _part()


def follow() -> None:
    """Do what rank 0 calls for, until it says that the run is over; for every other rank.

    Raises:
        SystemExit: rank 0 is gone; what ended it is for it to tell.
    """
    store, station = _meet()
    calls, leader = 0, watched_leader()
    try:
        while (given := _received(station.control)) is not None:
            calls += 1
            outcome = _reported(store, station, *given)
            store.set(f"done/{station.rank}", str(calls))
            dist.gather_object(outcome, None, dst=0, group=station.answers)
    except RuntimeError:
        raise SystemExit(1) from None
    finally:
        leader.close()
        _part()


def watched_leader() -> PeerWatch:
    """Return what ends this process when rank 0 can no longer be reached: it may wait for work for ever."""
    address = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    gone = f"rank 0 at {address} cannot be reached for {CUT_OFF:g} s: rank {os.environ.get('RANK', '')} ends"
    return PeerWatch(address, gone, CUT_OFF, 0.0, beat=CUT_OFF / 12)


def _reported(store: dist.Store, station: Station, work: Work[object], share: object) -> object:
    """Do the work; where it fails, leave a note for rank 0 and end the process, so that nobody waits for it."""
    try:
        return _done(station, work, share)
    except BaseException as error:
        with suppress(Exception):
            if not _of_network(error):  # that is somebody else's failure
                said = "out of memory. " * out_of_memory(error) + first_line(error)
                store.set(f"failed/{station.rank}", said)
        os._exit(1)


def _done(station: Station, work: Work[object], share: object) -> object:
    """Do the work; an error in this package's words is a result, told by rank 0."""
    try:
        return work(station, share)
    except GrouprlError as error:
        return error


def _import(station: Station, sources: dict[str, Source]) -> None:
    """Import what rank 0 has imported from files of the user's: a method that it sends may hold parts of theirs."""
    if station.rank:
        import_sources(sources)


def _begin(station: Station, share: tuple[float, int]) -> None:
    patience, cut_by = timedelta(seconds=share[0]), share[1]
    backend = "gloo" if station.device.type == "cpu" else "cpu:gloo,cuda:nccl"
    new = partial(dist.new_group, backend=backend, timeout=patience)
    station.everyone = new()
    if cut_by == 1:
        station.mesh = DeviceMesh.from_group(station.everyone, station.device.type, mesh_dim_names=("ranks",))
    else:
        table = torch.arange(station.count).view(-1, cut_by)
        columns, rows = ([new(each.tolist()) for each in lines] for lines in (table.T, table))
        own = [columns[station.rank % cut_by], rows[station.rank // cut_by]]
        station.mesh = DeviceMesh.from_group(own, station.device.type, table, mesh_dim_names=("ranks", "tensor"))
    station.kept["before"] = station.control, station.answers  # never closed while others may still read from them
    station.control, station.answers = _lines(station.rank, patience)


def _lines(rank: int, patience: timedelta) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Return the groups over which work is given out and its results come back: only who has no work waits for long."""
    waits = (IDLE if rank else patience, patience)
    control, answers = (dist.new_group(backend="gloo", timeout=each) for each in waits)
    return control, answers


def _meet() -> tuple[dist.Store, Station]:
    choose_interface()
    try:
        store, rank, count = next(iter(dist.rendezvous("env://", timeout=MEETING)))
        device = _device()
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=MEETING)
        control, answers = _lines(rank, MEETING)
    except (RuntimeError, ValueError) as error:
        said = f"the ranks did not meet: {first_line(error)}"
        if placed_by():  # then it is nobody's command, but a node or the network
            raise RunError(said) from error
        raise InputError(
            said,
            "every process of a run is started by grouprl launch or torchrun, with the same command",
            "See grouprl launch --help",
        ) from error
    return dist.PrefixStore("grouprl", store), Station(rank, count, device, control, answers)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def _part() -> None:
    with suppress(RuntimeError, ValueError, AssertionError):
        dist.destroy_process_group()


def _given_out(shares: list[object], control: dist.ProcessGroup) -> None:
    dist.scatter_object_list([None], shares, src=0, group=control)


def _received(control: dist.ProcessGroup) -> tuple[Work[object], object] | None:
    box: list[tuple[Work[object], object] | None] = [None]
    dist.scatter_object_list(box, None, src=0, group=control)
    return box[0]


def _note(store: dist.Store, key: str) -> str:
    try:
        return str(store.get(key).decode()) if store.check([key]) else ""
    except RuntimeError:  # whoever keeps the notes is gone, too
        return ""


NETWORK = ("gloo", "nccl", "connection", "closed by peer", "timed out", "timeout", "socket")
"""Words of the errors of exchanges between processes, which are plain RuntimeErrors."""


GONE = ("closed", "reset by peer", "refused", "broken pipe")
"""Words of those that tell of a process that has ended."""


def _of_network(error: BaseException) -> bool:
    """Whether an error tells of another process that is gone or silent."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in NETWORK)


def first_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
