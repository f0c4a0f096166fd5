"""The servers of a run: which one gets the next request, which have failed, and which come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from grouprl.config.sections import Servers
from grouprl.core.errors import GrouprlError, RunError
from grouprl.rollout.servers.http_client import Dropped, Garbled, Gone, Late, Refused, ServerError, Wire
from grouprl.rollout.servers.own_server import OwnServer

LOOK_SECONDS = 0.5
"""Seconds between two checks of a server that is starting."""
State = Literal["starting", "up", "aside", "lost"]


@dataclass(eq=False)
class Server:
    """One server; `own` is its process if the run started it."""

    wire: Wire
    own: OwnServer | None = None
    state: State = "starting"
    busy: int = 0
    """Number of its requests in progress."""
    failures: int = 0
    """Number of failed requests since the last successful one."""
    restarts: int = 0
    why: str = ""
    """Reason why it is set aside or lost."""
    updating: threading.RLock = field(default_factory=threading.RLock)
    """Lock that is held while its weights are exchanged."""


class Fleet:
    """Pool of servers that sends each request to the server with the fewest.

    A server that the run started and that dies or hangs is replaced, up to `restarts` times. Any other server is waited
    for if it is gone, and set aside if it hangs. A server that comes up gets its weights from the function `bring`
    before it gets requests. `health` is the path that a server answers when it is up.
    """

    def __init__(self, servers: Sequence[Server], settings: Servers, health: str, say: Callable[[str], None]) -> None:
        self.servers, self._say = tuple(servers), say
        self._bring: Callable[[Server], None] = lambda server: None
        self._health, self._kind = health, settings.kind
        self.at_once, self.patience = settings.at_once, settings.start_timeout
        self.tries, self.restarts = settings.tries, settings.restarts
        self._changed = threading.Condition()
        self._closed = False

    def start(self, bring: Callable[[Server], None]) -> None:
        """Start the run's own servers and begin to check all servers, without waiting."""
        self._bring = bring
        for server in self.servers:
            if server.own is not None:
                server.own.start()
            self._thread(self._come_up, server)
        if any(server.own is not None for server in self.servers):
            threading.Thread(target=self._watch, daemon=True).start()

    def up(self) -> list[Server]:
        """Return the usable servers, as soon as none is starting.

        Raises:
            RunError: no server is usable.
        """
        with self._changed:
            self._changed.wait_for(lambda: not any(server.state == "starting" for server in self.servers))
            found = [server for server in self.servers if server.state == "up"]
            if not found:
                raise self._nobody()
            return found

    def acquire(self) -> Server:
        """Return the server with the fewest requests and count one more for it; wait until one has room.

        Raises:
            RunError: no server is left.
        """
        with self._changed:
            while True:
                if not any(server.state in ("up", "starting") for server in self.servers):
                    raise self._nobody()
                free = [s for s in self.servers if s.state == "up" and s.busy < self.at_once]
                if free:
                    least = min(free, key=lambda server: server.busy)
                    least.busy += 1
                    return least
                self._changed.wait(LOOK_SECONDS)

    def release(self, server: Server, *, well: bool) -> None:
        """Note that a request has come back, successfully if `well`."""
        with self._changed:
            server.busy -= 1
            server.failures = 0 if well else server.failures + 1
            self._changed.notify_all()

    def failed(self, server: Server, error: ServerError) -> None:
        """Replace, wait for or set aside a server after a failure; its other requests fail by themselves."""
        # A lost request says little of a server: unless it is dead, hangs or fails again and again, its health decides.
        broken = server.failures >= self.tries
        dead = server.own is not None and not server.own.alive
        if not (dead or broken or isinstance(error, Late) or (isinstance(error, Gone) and not self._healthy(server))):
            return
        with self._changed:
            if server.state != "up" or self._closed:  # requests of one server fail together; the first to report acts
                return
            if server.own is None and (broken or isinstance(error, Late)):
                self._set(server, "aside", str(error))
                self._say(f"the server {server.wire.address} is set aside: {error}")
                return
            self._set(server, "starting", str(error))
        self._replace(server, error)

    def unusable(self, server: Server, error: ServerError) -> None:
        """Replace a server that did not answer while it was given weights, or set it aside."""
        aside = server.own is None and (isinstance(error, Late) or self._healthy(server))
        with self._changed:
            if server.state != "up" or self._closed:
                return
            self._set(server, "aside" if aside else "starting", str(error))
        if aside:
            self._say(f"the server {server.wire.address} is set aside: {error}")
        else:
            self._replace(server, error)

    def outdated(self, server: Server) -> None:
        """Give a server its weights again before it gets another request."""
        with self._changed:
            if server.state != "up" or self._closed:
                return
            self._set(server, "starting", "it had other weights than it was given")
        self._say(f"the server {server.wire.address} samples with other weights than it was given: it gets them anew")
        self._thread(self._come_up, server)

    def close(self) -> None:
        """Disconnect from the servers, and stop those that the run started."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for server in self.servers:
            server.wire.cut()
            server.wire.close()
            if server.own is not None:
                server.own.end()

    def _watch(self) -> None:
        """Watch for own servers that end while another process uses them."""
        while not self._closed:
            for server in self.servers:
                if server.own is not None and server.state == "up" and not server.own.alive:
                    self.failed(server, Gone(server.own.how_it_ended()))
            time.sleep(LOOK_SECONDS)

    def _replace(self, server: Server, error: ServerError) -> None:
        address = server.wire.address
        if server.own is None:
            self._say(f"the server {address} is gone; the run waits for it: {error}")
        else:
            why = str(error) if server.own.alive else server.own.how_it_ended()
            if server.restarts >= self.restarts:
                self._set(server, "lost", f"{why} (it had been replaced {server.restarts} times)")
                return
            self._say(f"the server {address} is replaced: {why.splitlines()[0]}")
            server.restarts += 1
            server.wire.cut()  # or else its other requests would wait for their own time limits
            server.own.end()
            server.own.start()
            # `close` may have ended the old process meanwhile, and knows nothing of the new one.
            if self._closed:
                server.own.end()
                return
        self._thread(self._come_up, server)

    def _come_up(self, server: Server) -> None:
        """Wait until a server answers, and give it its weights."""
        try:
            self._wait_for(server)
            self._bring(server)
        except (GrouprlError, OSError) as error:
            self._set(server, "lost", str(error))
        except BaseException as error:
            self._set(server, "lost", f"{type(error).__name__}: {error}")
            raise
        else:
            server.failures = 0
            self._set(server, "up", "")

    def _wait_for(self, server: Server) -> None:
        begun = time.monotonic()
        while not self._healthy(server):
            if self._closed:
                raise RunError("the run has ended")
            if server.own is not None and not server.own.alive:
                raise RunError(server.own.how_it_ended())
            if time.monotonic() - begun > self.patience:
                last = "" if server.own is None else f". Its last output:\n{server.own.last_words()}"
                raise RunError(f"the server {server.wire.address} was not up after {self.patience:g} seconds{last}")
            time.sleep(LOOK_SECONDS)

    def _healthy(self, server: Server) -> bool:
        try:
            server.wire.get(self._health)
        except (Dropped, Gone, Late, Refused):
            return False
        except Garbled:
            return True
        return True

    def _set(self, server: Server, state: State, why: str) -> None:
        with self._changed:
            server.state, server.why = state, why
            self._changed.notify_all()

    def _nobody(self) -> RunError:
        reasons = "\n".join(f"  {server.wire.address}: {server.why}" for server in self.servers)
        return RunError(
            f"no server of {self._kind} is left:\n{reasons}\nWhat is on disk is intact: continue with --resume"
        )

    @staticmethod
    def _thread(work: Callable[[Server], None], server: Server) -> None:
        threading.Thread(target=work, args=(server,), daemon=True).start()
