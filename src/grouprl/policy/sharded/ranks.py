"""A run on several processes: rank 0 leads it, and the others do their share of each piece of work that it requests.

Only rank 0 has a task, a reward, a method's memory and the run folder, so that none of these can differ between ranks.
Only the expensive parts are distributed: weights, optimiser state, passes and sampling. A piece of work is a function
of this package, called on every rank with what the rank keeps (its `Station`) and its own share of the data; inside,
ranks may exchange tensors, and then all of them must do so in the same order.
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
from grouprl.policy.sharded.context_group import ContextGroup
from grouprl.processes.current_ranks import (
    CONTINUE,
    LEADING,
    check_rank,
    own_rank,
    placed_by,
    ranks_requested,
    starts,
    tell_meeting,
)
from grouprl.processes.liveness import PeerWatch, end_process
from grouprl.processes.roll_call import Facts, RollCall, attend, meeting_store, patience

IDLE = timedelta(days=365)
"""Time for which a rank waits for its next work: it has none while rank 0 computes rewards."""
LATE = 30.0
"""Seconds after the time for the meeting at which a rank ends if nothing answers its connection."""
CUT_OFF = 60.0
"""Seconds after which a rank that cannot reach rank 0 ends."""
NOTICE = 2.0
"""Seconds within which a failed rank can report the reason, before it counts as gone."""
Result = TypeVar("Result")
Work = Callable[["Station", Any], Result]


@dataclass
class Station:
    """The state that one rank keeps between pieces of work."""

    rank: int
    count: int
    device: torch.device
    control: dist.ProcessGroup
    """Group over which rank 0 hands out work."""
    answers: dist.ProcessGroup
    """Group over which results come back."""
    mesh: DeviceMesh | None = None
    """All ranks, or a table of them: those of a row (`tensor`) split matrices among themselves, those of a column
    (`ranks`) hold parts of the same splits.
    """
    context: ContextGroup | None = None
    """The ranks that each have a slice of the same rows; None: a rank has whole rows."""
    everyone: dist.ProcessGroup | None = None
    """Group over which numbers of all ranks are added up."""
    kept: dict[str, Any] = field(default_factory=dict)
    """Policies, optimisers and samplers of this rank by name."""


class Ranks:
    """All ranks, as rank 0 sees them: `call` has each do its share of a piece of work.

    Args:
        store: key-value store through which ranks leave notes for each other.
        station: the state of rank 0.
    """

    def __init__(self, store: dist.Store, station: Station) -> None:
        self.station, self._store, self.timeout = station, store, patience()
        self._calls, self._lock, self._broken, self.team = 0, threading.Lock(), False, 1

    @property
    def count(self) -> int:
        """Number of ranks."""
        return self.station.count

    @property
    def teams(self) -> int:
        """Number of groups of ranks with their own rows: ranks that split matrices or rows among themselves work on the
        same rows.
        """
        return self.count // self.team

    def begin(self, timeout: float, cut_by: int = 1, context: int = 1) -> None:
        """Let ranks wait for each other for `timeout` seconds from now on, and `cut_by` of them split matrices, or
        `context` of them rows, among themselves.
        """
        assert cut_by == 1 or context == 1
        assert self.count % (cut_by * context) == 0
        self.each(_begin, (timeout, cut_by, context))
        self.each(_import, sources_of_files())
        self.timeout, self.team = timeout, cut_by * context

    def call(self, work: Work[Result], shares: Sequence[object]) -> list[Result]:
        """Have each rank do `work` on its share; return the results by rank.

        Raises:
            RunError: a rank failed, is gone, or did not answer in time.
            GrouprlError: an error of the work itself, from any rank.
        """
        assert len(shares) == self.count
        with self._lock:
            self._calls += 1
            found: list[Any] = [None] * self.count
            try:
                _given_out([None, *((work, share) for share in shares[1:])], self.station.control)  # not to itself
                outcome = _done(self.station, work, shares[0])
                # Rank 0 gathers None from itself: its own result need not be pickled.
                dist.gather_object(None, found, dst=0, group=self.station.answers)
                found[0] = outcome
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
        """Have every rank do `work` on the same share; return the results by rank."""
        return self.call(work, [share] * self.count)

    def close(self) -> None:
        """Let the other ranks end; ranks that are already gone are ignored."""
        if not self._broken:
            with suppress(RuntimeError, ValueError, OSError):
                _given_out([None] * self.count, self.station.control)
        self._broken = True

    def _in_words(self, error: BaseException) -> RunError:
        """Return an error that says which rank failed and with what message."""
        others, end = range(1, self.count), time.monotonic() + NOTICE
        while not (said := {rank: text for rank in others if (text := _note(self._store, f"failed/{rank}"))}):
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        safe = f"The last checkpoint is intact; {CONTINUE}"
        if said:
            rank, text = next(iter(said.items()))
            return RunError(f"rank {rank} of {self.count} failed: {text}. {safe}")
        who = f"{self._missing()} is"
        if any(word in str(error).lower() for word in GONE):
            return RunError(f"{who} gone: its process has ended, or the connection to it is lost. {safe}")
        return RunError(
            f"{who} silent: it did not answer within run.rank_timeout = {self.timeout:g} seconds "
            f"({first_line(error)}). {safe}"
        )

    def _missing(self) -> str:
        """Return which rank is missing: among those that have not done their work, the one that does not report another
        as missing, or all that it may be.
        """
        open_ranks = [r for r in range(1, self.count) if _note(self._store, f"done/{r}") != str(self._calls)]
        found = [r for r in open_ranks if not _note(self._store, f"misses/{r}")] or open_ranks
        if len(found) == 1:
            return f"rank {found[0]} of {self.count}"
        return f"one of ranks {', '.join(map(str, found))} of {self.count}" if found else "one of the other ranks"


@contextmanager
def leading(facts: Facts | None = None) -> Iterator[Ranks]:
    """Connect to the other ranks and lead them until the end of the block; called by rank 0. `facts` are those of its
    start, in which no other rank may differ.
    """
    found = _meet(facts or {}, patience())
    assert found is not None
    ranks = Ranks(*found)
    tell_meeting()
    LEADING.append(ranks)
    try:
        yield ranks
    finally:
        LEADING.remove(ranks)
        ranks.close()
        _part()


def follow(met: Callable[[], None], facts: Facts | None = None, within: float | None = None) -> None:
    """Do the work that rank 0 requests until it ends the run; called by every other rank. `met` is called when all have
    met; `within` are the seconds for that, by default those of the environment.

    Raises:
        SystemExit: rank 0 is gone; it reports the reason itself.
    """
    if (found := _meet(facts or {}, within or patience())) is None:
        return
    store, station = found
    met()
    calls, leader = 0, watched_leader()
    try:
        while (given := _received(station.control)) is not None:
            calls += 1
            outcome = _reported(store, station, *given)
            # Before the answer: if one rank is silent, these notes tell rank 0 which.
            store.set(f"done/{station.rank}", str(calls))
            dist.gather_object(outcome, None, dst=0, group=station.answers)
    except RuntimeError:
        raise SystemExit(1) from None
    finally:
        leader.close()
        _part()


def watched_leader() -> PeerWatch:
    """Return a watch that ends this process when rank 0 cannot be reached, since it would otherwise wait for work
    forever.
    """
    address = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    gone = f"rank 0 at {address} cannot be reached for {CUT_OFF:g} s: rank {os.environ.get('RANK', '')} ends"
    return PeerWatch(address, gone, CUT_OFF, 0.0, beat=CUT_OFF / 12)


def _reported(store: dist.Store, station: Station, work: Work[object], share: object) -> object:
    """Do the work; if it fails, leave a note for rank 0 and end the process, so that no rank waits for it."""
    try:
        return _done(station, work, share)
    except BaseException as error:
        with suppress(Exception):
            if _of_network(error):  # the failure is another rank's
                store.set(f"misses/{station.rank}", "another rank")
            else:
                said = "out of memory. " * out_of_memory(error) + first_line(error)
                store.set(f"failed/{station.rank}", said)
        os._exit(1)


def _done(station: Station, work: Work[object], share: object) -> object:
    """Do the work; return an error of this package as its result, for rank 0 to raise."""
    try:
        return work(station, share)
    except GrouprlError as error:
        return error


def _import(station: Station, sources: dict[str, Source]) -> None:
    """Import the user's files that rank 0 has imported: a method that it sends may hold parts defined in them."""
    if station.rank:
        import_sources(sources)


def _begin(station: Station, share: tuple[float, int, int]) -> None:
    patience, cut_by, context = timedelta(seconds=share[0]), *share[1:]
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
    station.context = None
    if context > 1:
        groups = [new(each.tolist()) for each in torch.arange(station.count).view(-1, context)]
        station.context = ContextGroup(groups[station.rank // context], station.rank % context, context)
    station.kept["before"] = station.control, station.answers  # never closed while others may still read from them
    station.control, station.answers = _lines(station.rank, patience)


def _lines(rank: int, patience: timedelta) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Return the groups for handing out work and for results: only a rank without work has a long timeout."""
    waits = (IDLE if rank else patience, patience)
    control, answers = (dist.new_group(backend="gloo", timeout=each) for each in waits)
    return control, answers


def _meet(facts: Facts, seconds: float) -> tuple[dist.Store, Station] | None:
    """Return the store and the station of this rank once all have come; None if rank 0 sends this one away."""
    check_rank()
    choose_interface()
    late = threading.Timer(seconds + LATE, end_process, [_unanswered()])
    late.daemon = True
    late.start()
    try:
        rank, count, limit = own_rank(), ranks_requested(), timedelta(seconds=seconds)
        store = dist.PrefixStore(f"start {starts()}", meeting_store(rank, count, limit))  # torchrun's outlives ranks
        late.cancel()  # from here on rank 0 decides how long to wait
        roll = dist.PrefixStore("meeting", store)
        if rank == 0:
            RollCall(roll, count, facts, seconds).hold()
        elif not attend(roll, rank, facts):
            return None
        device = _device()
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=limit)
        control, answers = _lines(rank, limit)
    except GrouprlError:
        raise
    except (RuntimeError, ValueError) as error:
        raise _unmet(error) from error
    finally:
        late.cancel()
    return dist.PrefixStore("grouprl", store), Station(rank, count, device, control, answers)


def _unmet(error: Exception) -> InputError | RunError:
    """Return the error of a meeting that did not take place."""
    said = f"the ranks did not meet: {first_line(error)}"
    if placed_by():  # then the cause is not a missing command, but a node or the network
        return RunError(said)
    if "address already in use" in str(error).lower():
        port = f"MASTER_PORT={os.environ['MASTER_PORT']}"
        return InputError(port, "another process listens there, where the ranks are to meet", "Choose another port")
    return InputError(
        said,
        "every process of a run must be started by grouprl launch or torchrun with the same command",
        "See grouprl launch --help",
    )


def _unanswered() -> str:
    """Return the error for an address that accepts a connection and never answers: torch has no timeout for it."""
    place = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    return f"the ranks did not meet: {place} does not answer as rank 0. Is that its address, and a port of its own?"


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
    except RuntimeError:  # the process that holds the store is gone, too
        return ""


NETWORK = ("gloo", "nccl", "connection", "closed by peer", "timed out", "timeout", "socket")
"""Words that identify errors of exchanges between processes, which are plain RuntimeErrors."""


GONE = ("closed", "reset by peer", "refused", "broken pipe")
"""Words in such errors that mean that a process has ended."""


def _of_network(error: BaseException) -> bool:
    """Return whether an error means that another process is gone or silent."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in NETWORK)


def first_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
