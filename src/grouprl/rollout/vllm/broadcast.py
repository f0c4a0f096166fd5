"""New weights for many servers at once, over the network: one process group of the trainer and all their workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import torch

from grouprl.core.errors import InputError
from grouprl.rollout.servers.dialect import Errors
from grouprl.rollout.servers.http_client import Garbled, Gone, Late, ServerError, Wire
from grouprl.rollout.servers.server_pool import Server
from grouprl.rollout.vllm.exchange import asked, begin, finish
from grouprl.rollout.vllm.server_plugin.grouprl_group import (
    MARK,
    TRAINER,
    BrokenOff,
    Group,
    Meeting,
    Missing,
    address_towards,
    gathered,
    opened_store,
)

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from grouprl.config.sections import Vllm
    from grouprl.rollout.servers.weights import Place, WeightMemory

T = TypeVar("T")
PART = 2**28
"""Bytes that are sent at a time; more if a single tensor is larger."""
MARGIN = 15.0
"""Seconds within which a server reports that an exchange was broken off."""
SLOW, SLOW_SECONDS = 3.0, 5.0
"""Factor and seconds by which a server must exceed the others' median time to load weights before it is named."""
LOOPBACK = ("127.", "::1", "localhost")


class Interrupted(Gone):
    """An exchange was broken off because of another server; this one works."""


@dataclass(frozen=True)
class ServerRanks:
    """Members of a group: servers with the rank of each one's first worker, and how often each had been replaced."""

    firsts: Mapping[Server, int]
    incarnations: tuple[int, ...]
    size: int


def parts_of(places: Sequence[Place], limit: int) -> list[list[Place]]:
    """Return lists of neighbouring tensors that are sent together, of at most `limit` bytes unless a single tensor is
    larger.
    """
    parts: list[list[Place]] = []
    for place in places:
        if parts and place[3] + place[4] - parts[-1][0][3] <= limit:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts


def slow_one(seconds: Mapping[str, float]) -> str | None:
    """Return a sentence about a server for which all others wait while it loads weights; None if there is none."""
    if len(seconds) < 2:
        return None
    name = max(seconds, key=lambda each: seconds[each])
    others = median(value for each, value in seconds.items() if each != name)
    if seconds[name] <= max(SLOW * others, others + SLOW_SECONDS):
        return None
    own = f"{seconds[name]:.1f} seconds"
    return f"the server {name} takes {own} to load weights, the others {others:.1f}: they wait for it"


def trainer_address(addresses: Sequence[str]) -> str:
    """Return the address of this machine that servers at `addresses` can reach; a local one if they are all on this
    machine.

    Raises:
        InputError: one of them cannot be reached.
    """
    hosts = [urlsplit(address) for address in addresses]
    far = [each for each in hosts if not (each.hostname or "").startswith(LOOPBACK)]
    chosen = (far or hosts)[0]
    try:
        return address_towards(str(chosen.hostname), chosen.port or 80)
    except OSError as error:
        raise InputError(
            f"the server at {chosen.geturl()} cannot be reached: {error}",
            "weights are sent to it from this machine",
            "Set sampling.vllm.master_address",
        ) from None


class Broadcast:
    """Transfer of the weights in memory to all servers at the same time.

    If a server is gone or silent during an exchange, the exchange ends for all: no server finishes it, so none samples.
    """

    def __init__(self, settings: Vllm, run: str, device: torch.device, say: Callable[[str], None]) -> None:
        self._settings, self._run, self._device, self._say = settings, run, device, say
        self._seconds = settings.timeout
        self._store: TCPStore | None = None
        self._group: Group | None = None
        self._members: ServerRanks | None = None
        self._count = 0
        self._sent = torch.device("cpu")
        self._told: str | None = None

    def give(self, servers: Sequence[Server], label: str, memory: WeightMemory) -> Errors:
        """Send one version to servers under the name `label`; return the errors by server.

        If one server caused the exchange to be broken off, the errors of the others are `Interrupted`; a second
        exchange may succeed.
        """
        settings, errors = self._settings, Errors()
        ready = self._each(servers, lambda s: begin(s.wire, self._run, settings.in_flight, self._seconds), errors)
        ready = self._meet(ready, errors)
        ready = self._send(ready, memory, errors)
        self._each(ready, lambda s: finish(s.wire, label, self._seconds), errors)
        return errors

    def close(self) -> None:
        """Leave the group; servers that wait for this process are notified."""
        group, self._group, self._members = self._group, None, None
        if group is None:
            return
        if group.pending:  # it waits for that: not here
            threading.Thread(target=group.close, daemon=True).start()
        else:
            group.close()

    def _each(self, servers: Sequence[Server], work: Callable[[Server], object], errors: Errors) -> list[Server]:
        """Do `work` at several servers at the same time; return those where it succeeded."""
        doing = {server: _started(work, server) for server in servers}
        for server, done in doing.items():
            error = done.exception()
            if isinstance(error, ServerError):
                errors[server] = error
            elif error is not None:
                raise error
        return [server for server in servers if server not in errors]

    # ------------------------------------------------------------------------------------------------ the group

    def _meet(self, servers: list[Server], errors: Errors) -> list[Server]:
        """Make a group of exactly these servers, or of those that join; return its servers."""
        while servers:
            try:
                members = self._members_of(servers)
                if self._group is None or members != self._members:
                    self.close()
                    self._group, self._members = self._met(members), members
            except _AtServers as failed:
                errors |= failed.errors
                servers = [server for server in servers if server not in errors]
            else:
                break
        return servers

    def _members_of(self, servers: Sequence[Server]) -> ServerRanks:
        errors, sizes = Errors(), dict[Server, int]()
        self._each(servers, lambda server: sizes.update({server: _workers(server.wire)}), errors)
        if errors:
            raise _AtServers(errors)
        firsts, size = {}, 1
        for server in servers:
            firsts[server] = size
            size += sizes[server]
        return ServerRanks(firsts, tuple(server.restarts for server in servers), size)

    def _met(self, members: ServerRanks) -> Group:
        """Return a new group. Raises _AtServers if some servers do not join it."""
        host, store = self._place(list(members.firsts))
        self._count += 1
        name, backend = f"{self._run}/{self._count}", self._backend(list(members.firsts))
        shared = {"host": host, "port": store.port, "name": name, "size": members.size}
        shared |= {"seconds": self._seconds, "backend": backend}

        def join(server: Server) -> object:
            body = {"init_info": {**shared, "first": members.firsts[server]}}
            return server.wire.post("/init_weight_transfer_engine", body, self._seconds + MARGIN)

        joining = {server: _started(join, server) for server in members.firsts}
        meeting = Meeting(name, TRAINER, members.size, host, self._seconds, backend)
        try:
            return gathered(store, meeting, lambda: any(_failed(each) for each in joining.values()))
        except BrokenOff as error:
            absent = error.ranks if isinstance(error, Missing) else []
            raise _AtServers(_reasons(joining, members, absent, error)) from None

    def _place(self, servers: Sequence[Server]) -> tuple[str, TCPStore]:
        """Return the address at which members meet, and the store at it."""
        host = self._settings.master_address or trainer_address([server.wire.address for server in servers])
        if self._store is None:
            try:
                self._store = opened_store(host, self._settings.master_port or 0, self._seconds, trainer=True)
            except BrokenOff as error:
                raise InputError(
                    str(error), "servers meet this process there", "Set sampling.vllm.master_port"
                ) from None
        return host, self._store

    def _backend(self, servers: Sequence[Server]) -> str:
        """Return nccl where the trainer and all servers have GPUs, else gloo."""
        on_gpus = self._device.type == "cuda" and all(device_of(server.wire) == "cuda" for server in servers)
        self._sent = self._device if on_gpus else torch.device("cpu")
        return "nccl" if on_gpus else "gloo"

    # ---------------------------------------------------------------------------------------------- the weights

    def _send(self, servers: list[Server], memory: WeightMemory, errors: Errors) -> list[Server]:
        """Send all weights; return the servers, or an empty list if the exchange was broken off."""
        if not servers:
            return []
        assert memory.written is not None
        parts = parts_of(memory.written.places, PART)
        body = {"update_info": {"parts": [[list(place) for place in part] for part in parts]}}

        def receive(server: Server) -> object:
            return server.wire.post("/update_weights", body, self._seconds + MARGIN)

        receiving = {server: _started(receive, server) for server in servers}
        whole = False
        try:
            whole = self._sent_all(memory, parts, lambda: any(_failed(each) for each in receiving.values()))
            failures = {server: each.exception() for server, each in receiving.items()} if whole else {}
            whole = whole and not any(failures.values())
        finally:
            if not whole:
                self.close()
        if whole:
            self._name_a_slow_one(servers)
            return servers
        errors |= _after(receiving)
        return []

    def _sent_all(self, memory: WeightMemory, parts: Sequence[Sequence[Place]], given_up: Callable[[], bool]) -> bool:
        assert self._group is not None
        try:
            for part in parts:
                start, end = part[0][3], part[-1][3] + part[-1][4]
                self._group.broadcast(memory.copied(start, end).to(self._sent), given_up)
        except BrokenOff:
            return False
        return True

    def _name_a_slow_one(self, servers: Sequence[Server]) -> None:
        """Tell the user once which server the others wait for."""
        assert self._group is not None
        assert self._members is not None
        store, keys = self._group.store, {s: f"loading/{self._members.firsts[s]}" for s in servers}
        seconds = {s.wire.address: float(store.get(key)) for s, key in keys.items() if store.check([key])}
        sentence = slow_one(seconds)
        if sentence is not None and self._told != (name := max(seconds, key=lambda each: seconds[each])):
            self._told = name
            self._say(sentence)


class _AtServers(Exception):
    """Errors at some servers."""

    def __init__(self, errors: Errors) -> None:
        self.errors = errors
        super().__init__()


def device_of(wire: Wire) -> str:
    """Return the kind of device that holds a server's weights."""
    return asked(wire, "grouprl_device")


def _workers(wire: Wire) -> int:
    told = wire.get("/get_world_size")
    count = told.get("world_size") if isinstance(told, dict) else None
    if type(count) is not int or count < 1:
        raise Garbled(f"{wire.address} says that it has {count!r:.200} workers")
    return count


def _started(work: Callable[[Server], T], server: Server) -> Future[T]:
    """Start `work` at a server in a daemon thread, which does not keep the process alive."""
    found: Future[T] = Future()

    def act() -> None:
        try:
            found.set_result(work(server))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=act, daemon=True).start()
    return found


def _failed(future: Future[object]) -> bool:
    return future.done() and future.exception() is not None


def _reasons(
    joining: Mapping[Server, Future[object]], members: ServerRanks, absent: Sequence[int], broken: BrokenOff
) -> Errors:
    """Return the servers that kept a group from being made with the reasons; all servers, if none in particular did."""
    address_of = {first: server for server, first in members.firsts.items()}
    firsts = sorted(address_of)
    silent = {address_of[max(first for first in firsts if first <= rank)] for rank in absent}
    found = Errors()
    for server, each in joining.items():
        error = _ended(each) if each.done() or server not in silent else None
        if server in silent and (error is None or isinstance(error, Interrupted)):
            found[server] = Late(f"{server.wire.address} did not join the group that weights are sent to: {broken}")
        elif error is not None and not isinstance(error, Interrupted):
            found[server] = error
    return found or {server: Gone(f"{server.wire.address}: {broken}") for server in joining}


def _after(receiving: Mapping[Server, Future[object]]) -> Errors:
    """Return the error of each server after an exchange was broken off, when each has reported it."""
    return {
        server: _ended(each) or Interrupted(f"the exchange with {server.wire.address} was broken off in the middle")
        for server, each in receiving.items()
    }


def _ended(future: Future[object]) -> ServerError | None:
    """Return the error at a server; `Interrupted` if another server caused it."""
    error = future.exception()
    if isinstance(error, Gone) and MARK in str(error):
        return Interrupted(str(error))
    if error is not None and not isinstance(error, ServerError):
        raise error
    return error
