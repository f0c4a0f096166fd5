"""Two machines in one: network namespaces with host names, addresses and shared memory of their own, and a cable."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ADDRESSES = ("10.77.0.1", "10.77.0.2")
SHARED_MEMORY = "300m"


def available() -> bool:
    """Whether this process may make network namespaces."""
    if any(shutil.which(name) is None for name in ("ip", "unshare", "nsenter")) or os.geteuid() != 0:
        return False
    made = subprocess.run(["ip", "netns", "add", "grouprl-try"], capture_output=True)
    subprocess.run(["ip", "netns", "del", "grouprl-try"], capture_output=True)
    return made.returncode == 0


class Machine:
    """One of the two: what runs on it sees the other only by its address."""

    def __init__(self, number: int) -> None:
        self.name, self.address = f"grouprl-{os.getpid()}-{number}", ADDRESSES[number]
        self.cable = f"gr{os.getpid() % 100000}-{number}"
        self.folder = Path(tempfile.mkdtemp(prefix="gr-", dir="/tmp"))  # short: sockets lie in it
        self._started: list[subprocess.Popen[bytes]] = []

    def boot(self) -> None:
        """Make its network, its name and its shared memory; one process holds them."""
        _ip("netns", "add", self.name)
        own = f"hostname {self.name}; mount -t tmpfs -o size={SHARED_MEMORY} tmpfs /dev/shm; echo; exec sleep infinity"
        hold = ["ip", "netns", "exec", self.name, "unshare", "-u", "-m", "sh", "-c", own]
        self._holder = subprocess.Popen(hold, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        self._started.append(self._holder)

    def inside(self, command: list[str]) -> list[str]:
        """Return the command line that runs a command on this machine."""
        return ["nsenter", "-t", str(self._holder.pid), "-m", "-u", "-n", *command]

    def start(self, command: list[str], said: Path, **more: str) -> subprocess.Popen[bytes]:
        """Begin a command; what it says is in a file."""
        with said.open("a") as into:
            environment = {**os.environ, **more}
            self._started.append(
                subprocess.Popen(
                    self.inside(command),
                    stdout=into,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                )
            )
        return self._started[-1]

    def processes(self) -> list[int]:
        """Numbers of the processes in this machine's network."""
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True).stdout
        return [int(number) for number in found.split()]

    def close(self) -> None:
        """End whatever runs on it."""
        end = time.monotonic() + 20
        while (left := self.processes()) and time.monotonic() < end:
            for number in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.1)
        for process in self._started:
            process.wait()
        _ip("netns", "del", self.name)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Two machines with a cable between them."""
    machines = Machine(0), Machine(1)
    try:
        for machine in machines:
            machine.boot()
        _ip("link", "add", machines[0].cable, "type", "veth", "peer", "name", machines[1].cable)
        for machine in machines:
            _ip("link", "set", machine.cable, "netns", machine.name)
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", machine.cable)
            for link in ("lo", machine.cable):
                _ip("-n", machine.name, "link", "set", link, "up")
        yield machines
    finally:
        for machine in machines:
            machine.close()


def plug(machine: Machine, state: str) -> None:
    """Pull the cable ("down"), or put it back ("up")."""
    _ip("-n", machine.name, "link", "set", machine.cable, state)


def start_ray(machine: Machine, head: Machine, cpus: int, port: int = 6379) -> None:
    """Start Ray on a machine: as the head, or with that head."""
    folder = machine.folder
    where = ["--head", "--port", str(port), "--include-dashboard", "false"]
    if machine is not head:
        where = ["--address", f"{head.address}:{port}"]
    own = ["--node-ip-address", machine.address, "--temp-dir", str(folder), "--num-cpus", str(cpus)]
    more = ["--object-store-memory", str(80 * 2**20), "--disable-usage-stats"]
    ray = str(Path(sys.executable).with_name("ray"))
    assert machine.start([ray, "start", *where, *own, *more], folder / "said").wait() == 0, (
        folder / "said"
    ).read_text()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
