"""Commands that are sent signals at exact moments, and whether what they say, return and leave is in order.

A moment is the n-th call of a function of the package, or the n-th arrival at a point of the code (as in `kills`); the
code of the package knows nothing of it. Commands run in processes that have their imports done.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import yaml

import grouprl
import kills

PACKAGE = str(Path(grouprl.__file__).parent)
MARK = "GROUPRL_STRUCK"
APART = 0.15
"""Seconds between signals that follow each other: more than what counts as one."""
KINDS: dict[str, tuple[int, ...]] = {
    "SIGINT": (signal.SIGINT,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGINT twice": (signal.SIGINT,) * 2,
    "SIGINT thrice": (signal.SIGINT,) * 3,
    "SIGTERM, SIGINT": (signal.SIGTERM, signal.SIGINT),
}
ENDS = {0, 130, -signal.SIGTERM}
WRONG_WORDS = ("Traceback", "Exception ignored", "Error:", "terminate called", "Fatal Python", "reentrant")
REWARD = """
def paid(completion, answer):
    return float(completion == answer)
"""


@dataclass(frozen=True)
class Strike:
    """Signals from a moment on: at the n-th arrival at a point, or the n-th call of the package where it is ""."""

    number: int
    signals: tuple[int, ...]
    point: str = ""


def settings(kind: str) -> dict[str, Any]:
    """The configuration of a small run: 'plain', 'ahead' (sampled in another process) or 'own' (a reward of a file)."""
    config: dict[str, Any] = {**kills.settings("ppo"), "method": "grpo"}
    if kind == "ahead":
        config["run"] = {**config["run"], "async_steps": 1}
    if kind == "own":
        config["reward"] = {"function": "paid.py:paid", "workers": 2}
    return config


def prepare(home: Path, kind: str) -> Path:
    """Write the configuration of a run, and the reward it names, into `home`."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "paid.py").write_text(REWARD)
    (home / f"{kind}.yaml").write_text(yaml.safe_dump(settings(kind)))
    return home / f"{kind}.yaml"


@dataclass
class Outcome:
    """How a command ended: exit code, output, how often the moment's kind was met, what it left."""

    code: int | None
    said: str
    met: int
    processes: int
    files: list[str]

    def faults(self, ends: set[int] = ENDS) -> list[str]:
        """What is wrong with it."""
        found = [f"says {word}: {self.said[-1500:]}" for word in WRONG_WORDS if word in self.said][:1]
        if self.code not in ends:
            found.append(f"ended with {self.code}: {self.said[-500:]}")
        return found + ([f"{self.processes} processes left"] if self.processes else [])


def command(
    words: list[str], home: Path, strike: Strike | None = None, *, count: bool = False, limit: float = 300.0
) -> Outcome:
    """Run `grouprl words` in `home`, struck at its moment; wait for its end and for the processes it began.

    With `count` the calls of the package are counted, which is slow.
    """
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    out, temporary = home / f"{mark}.log", home / f"{mark}.tmp"
    temporary.mkdir()
    child: BaseProcess = kills.FORKS.Process(target=_child, args=(words, home, strike, count, mark, out, temporary))
    child.start()
    child.join(timeout=limit)
    code = child.exitcode
    if code is None:
        child.kill()
        child.join()
    left = _left(mark)
    count = out.with_suffix(".met")
    met = int(count.read_text()) if count.exists() else 0
    files = sorted(path.name for path in temporary.iterdir())
    said = out.read_text(errors="replace")
    for path in (out, count, out.with_suffix(".half")):
        path.unlink(missing_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    return Outcome(code, said, met, left, files)


def _left(mark: str, patience: float = 10.0) -> int:
    """How many processes with this mark are there still, once those that are ending have had time for it."""
    until = time.monotonic() + patience
    while (left := sum(map(_bears, [mark] * len(pids := _pids()), pids))) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def _pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def _bears(mark: str, pid: str) -> bool:
    try:
        alive = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return alive and f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def _child(
    words: list[str], home: Path, strike: Strike | None, count: bool, mark: str, out: Path, temporary: Path
) -> NoReturn:
    os.setsid()
    with out.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ |= {MARK: mark, "TMPDIR": str(temporary)}
    os.chdir(home)
    sys.argv = ["grouprl", *words]
    read_met = _arm(strike, count)
    code = _main()
    out.with_suffix(".half").write_text(str(read_met()))
    out.with_suffix(".half").rename(out.with_suffix(".met"))  # whole or absent: a late signal may end the process here
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _main() -> int:
    from grouprl.cli import main

    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _arm(strike: Strike | None, count: bool) -> Callable[[], int]:
    """See to it that the process strikes itself; what is returned says how often the moment's kind was met."""
    met = 0

    def arrive(*args: Any) -> None:
        nonlocal met
        met += 1
        if strike is not None and met == strike.number:
            _send(strike.signals, wait=bool(strike.point))

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            arrive()

    if strike is not None and strike.point:
        kills._trap(*kills.POINTS[strike.point], arrive)
    elif strike is not None or count:
        sys.setprofile(look)
    return lambda: met


def _send(signals: tuple[int, ...], *, wait: bool) -> None:
    """Send the first signal now, the others from a thread, which is waited for where the moment is a point."""

    def rest() -> None:
        for number in signals[1:]:
            time.sleep(APART)
            os.kill(os.getpid(), number)

    sender = threading.Thread(target=rest, daemon=True)
    sender.start()
    os.kill(os.getpid(), signals[0])
    if wait:
        sender.join()


def tried(home: Path, kind: str, strike: Strike, whole: dict[str, Any] | None) -> tuple[Outcome, list[str]]:
    """Strike a training, go on until it ends, and compare with an uninterrupted one (None: it need only end)."""
    folder = home / "struck"
    shutil.rmtree(folder, ignore_errors=True)
    first = ["train", f"{kind}.yaml", "--folder", str(folder)]
    outcome = command(first, home, strike)
    faults = outcome.faults()
    begun = (folder / "config.yaml").is_file()
    resumed = command(["train", str(folder), "--resume"] if begun else first, home)
    faults += [f"afterwards: {each}" for each in resumed.faults({0})]
    if not faults and whole is not None:
        faults = [f"differs: {name}" for name in kills.difference(whole, kills.evidence(folder))]
    if not faults and whole is None and not json.loads((folder / "summary.json").read_text())["finished"]:
        faults.append("it did not finish")
    return outcome, faults


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones included."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


READERS: dict[str, list[str]] = {
    "eval": ["eval", "whole", "--prompts", "4"],
    "plan": ["plan", "plain.yaml"],
    "show": ["show", "whole"],
    "report": ["report", "whole"],
    "export": ["export", "whole", "out"],
    "check-reward": ["check-reward", "own.yaml"],
    "check-env": ["check-env", "guess"],
    "methods": ["methods", "diff", "grpo@trl", "grpo@verl"],
}
"""Commands that train nothing; those that write leave what was there, or what they were asked for, and nothing else."""


def tried_reader(home: Path, name: str, strike: Strike) -> tuple[Outcome, list[str]]:
    """Strike a command beside a finished run `whole`, and demand that the run is as it was, or as it is afterwards."""
    words, run, out = READERS[name], home / "whole", home / "out"
    shutil.rmtree(out, ignore_errors=True)
    before = contents(run)
    outcome = command(words, home, strike)
    faults, struck, exported = outcome.faults(), contents(run), contents(out) if out.exists() else None
    hard = len(strike.signals) > 1  # a second signal ends the process as it is
    faults += [f"left in the temporary folder: {outcome.files}"] * bool(outcome.files and not hard)
    shutil.rmtree(out, ignore_errors=True)
    again = command(words, home)
    faults += [f"afterwards: {each}" for each in again.faults({0})]
    after = contents(run)
    changed = [path for path in struck if struck[path] not in (before.get(path), after.get(path)) and not hard]
    faults += [f"half-written: {path}" for path in changed]
    if exported is not None and exported != contents(out):
        faults.append("half an export")
    return outcome, faults
