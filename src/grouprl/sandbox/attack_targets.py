"""Targets of attacks: baits on this machine, and the marks that a successful attack leaves on them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from grouprl.sandbox.attempts import Escape
from grouprl.sandbox.box import Sandbox
from grouprl.sandbox.escapes import ESCAPES
from grouprl.sandbox.program_outcome import ProgramOutcome, Why

SHARED = ("/tmp", "/var/tmp", "/dev/shm")


class Baits:
    """Baits for one attempt; a context manager that removes them afterwards."""

    def __init__(self) -> None:
        self.mark = f"gx{uuid.uuid4().hex[:10]}"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Baits:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bait-", dir=Path.home())))
        self.folder, self.victim_file = folder, folder / "victim"
        (folder / "secret").write_text("secret")
        self.victim_file.write_text("full")
        self.victim_file.chmod(0o600)
        environment = os.environ | {self.variable: "secret"}
        self.process = subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True, cwd=folder)
        self._stack.callback(self._end_process)
        tcp, self._udp = self._listen(socket.AF_INET, ("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM)
        self._stack.enter_context(self._udp)
        self._udp.bind(("127.0.0.1", 0))
        self._listen(socket.AF_UNIX, str(folder / "unix"))
        self._listen(socket.AF_UNIX, "\0" + self.mark)
        self.targets: dict[str, object] = {
            "mark": self.mark,
            "variable": self.variable,
            "secret": str(folder / "secret"),
            "outside": str(folder / "outside"),
            "victim_file": str(self.victim_file),
            "package": __file__,
            "home": str(Path.home()),
            "bait": folder.name,
            "process": self.process.pid,
            "parent": self.process.pid,
            "tcp": tcp.getsockname()[1],
            "udp": self._udp.getsockname()[1],
            "unix": str(folder / "unix"),
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in self._left():
            os.kill(pid, signal.SIGKILL)
        for path in self._shared():
            path.unlink()
        self._stack.close()

    @property
    def variable(self) -> str:
        """The name of the secret environment variable."""
        return f"SECRET_{self.mark}"

    def marked(self, mark: str) -> bool:
        """Return whether an attack has left its mark on a bait."""
        if mark == "udp":
            self._udp.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                return bool(self._udp.recv(16))
            return False
        if mark == "killed":
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.2)
            return self.process.poll() is not None
        found = {
            "process": lambda: any(self._left()),
            "shared": lambda: any(self._shared()),
            "outside": (self.folder / "outside").exists,
            "gone": lambda: not self.victim_file.exists(),
            "emptied": lambda: self._victim() == "",
            "changed": lambda: self._victim() != "full",
            "mode": lambda: stat.S_IMODE(self.victim_file.stat().st_mode) == 0o777,
            "times": lambda: self.victim_file.stat().st_mtime == 0,
            "niced": lambda: os.getpriority(os.PRIO_PROCESS, self.process.pid) == 19,
            "stopped": lambda: "\nState:\tT" in self._status(),
        }
        return bool(found[mark]())

    def _victim(self) -> str:
        return self.victim_file.read_text() if self.victim_file.exists() else "full"

    def _status(self) -> str:
        time.sleep(0.05)
        return Path(f"/proc/{self.process.pid}/status").read_text()

    def _listen(self, family: int, address: str | tuple[str, int]) -> socket.socket:
        server = self._stack.enter_context(socket.socket(family))
        server.bind(address)
        server.listen()
        return server

    def _end_process(self) -> None:
        self.process.kill()
        self.process.wait()

    def _shared(self) -> list[Path]:
        return [path for folder in SHARED if (path := Path(folder, self.mark)).exists()]

    def _left(self) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if (entry / "comm").read_text().strip() == self.mark:
                        yield int(entry.name)


def attempt(escape: Escape, sandbox: Sandbox | None) -> tuple[bool, ProgramOutcome]:
    """Try an escape in a sandbox, or without one; return whether it succeeded, and the outcome of the run."""
    with Baits() as baits:
        stdin = json.dumps(baits.targets)
        if sandbox is None:
            outcome = _unprotected(escape.program, stdin, baits)
        else:
            os.environ[baits.variable] = "secret"
            try:
                outcome = sandbox.run(escape.program, stdin=stdin, limits=escape.limits)
            finally:
                del os.environ[baits.variable]
        return escape.escaped(outcome, baits), outcome


def self_check(sandbox: Sandbox) -> Iterator[tuple[Escape, bool, bool]]:
    """Yield every escape, whether the sandbox's level must contain it, and whether the sandbox did contain it."""
    for escape in ESCAPES:
        escaped, _ = attempt(escape, sandbox)
        yield escape, sandbox.level.reaches(escape.needs), not escaped


def _unprotected(program: str, stdin: str, baits: Baits) -> ProgramOutcome:
    """Run a program without a sandbox, with the user's rights."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-S", "-c", program],
            input=stdin.encode(),
            capture_output=True,
            cwd=folder,
            env=os.environ | {baits.variable: "secret"},
            timeout=300,
        )
        why: Why = "ok" if done.returncode == 0 else "error" if done.returncode > 0 else "killed"
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        return ProgramOutcome(why, out, err, returncode=done.returncode, seconds=time.monotonic() - began)
