"""Runs whose learners are placed on a real Ray: started as a command, watched and struck from outside."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from placed_runs import records, run_config

SLOW = """import time
def digits(completion, **_):
    time.sleep(0.04)
    return min(1.0, sum(c in "0123" for c in completion) / 6)
"""


def slow_config(folder: Path, cluster: Mapping[str, object], **changes: object) -> dict[str, object]:
    """A run of eight steps that take some tenths of a second each, so that it can be struck in their middle."""
    config = run_config(folder, cluster, **{"steps": 8, **changes})
    (folder / "score.py").write_text(SLOW)
    return config


def command(*arguments: object) -> list[str]:
    """The command line, with this Python."""
    return [sys.executable, "-m", "grouprl", *map(str, arguments)]


def started(folder: Path, config: Mapping[str, object], *more: object, **options: object) -> subprocess.Popen[str]:
    """Begin to train as a command in `folder`/run; what it says is in `folder`/said."""
    (folder / "run.yaml").write_text(yaml.safe_dump(dict(config)))
    with (folder / "said").open("a") as said:
        return subprocess.Popen(
            command("train", folder / "run.yaml", "--folder", folder / "run", *more),
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )


def until(driver: subprocess.Popen[str], found: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait until something is so; the driver must live as long."""
    end = time.monotonic() + seconds
    while not found():
        assert driver.poll() is None, driver.returncode
        assert time.monotonic() < end
        time.sleep(0.01)


def steps_done(folder: Path) -> int:
    """The newest checkpoint of training."""
    names = [
        path.name for path in (folder / "run" / "checkpoints").glob("step-*") if (path / "manifest.json").is_file()
    ]
    return max((int(name.rpartition("-")[2]) for name in names), default=0)


def processes(*words: str) -> dict[int, str]:
    """Command lines of the processes that hold all these words, by number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            said = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if all(word in said for word in words):
                found[int(path.parent.name)] = said
    return found


def learners(folder: Path) -> list[int]:
    """Processes of the run's learners, which a cluster has placed."""
    found = []
    for pid in processes("-m grouprl", str(folder)):
        with contextlib.suppress(OSError):
            if b"GROUPRL_LEARNER=" in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def ranks(folder: Path) -> dict[int, int]:
    """Processes of the run's learners, by rank."""
    found = {}
    for pid in learners(folder / "run"):
        with contextlib.suppress(OSError, IndexError):
            told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            found[int(next(each for each in told if each.startswith(b"RANK="))[5:])] = pid
    return found


def parent(pid: int) -> int:
    """The process that started another: of a learner, its actor."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(pid: int) -> None:
    """SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def same_results(one: Path, other: Path) -> None:
    """Hold two runs to the same bytes: final model, every token and reward, the account, parts of the checkpoint."""
    assert records(one) == records(other)
    assert (one / "model/model.safetensors").read_bytes() == (other / "model/model.safetensors").read_bytes()
    names = sorted(path.name for path in (one / "rollouts").iterdir())
    assert names
    assert names == sorted(path.name for path in (other / "rollouts").iterdir())
    for name in names:
        assert pq.read_table(one / "rollouts" / name).equals(pq.read_table(other / "rollouts" / name)), name
    newest = [max((run / "checkpoints").iterdir(), key=lambda path: path.name) for run in (one, other)]
    parts = [sorted(path.relative_to(folder) for path in folder.rglob("*.distcp")) for folder in newest]
    assert parts[0] == parts[1]
    assert all((newest[0] / name).read_bytes() == (newest[1] / name).read_bytes() for name in parts[0])


@contextlib.contextmanager
def own_ray(port: int) -> Iterator[str]:
    """A Ray of one node that may lose its head; yields its address."""
    folder = tempfile.mkdtemp(prefix="gr-", dir="/tmp")  # short: sockets lie in it
    ray = str(Path(sys.executable).with_name("ray"))
    where = ["--head", "--port", str(port), "--node-ip-address", "127.0.0.1", "--temp-dir", folder, "--num-cpus", "8"]
    more = ["--object-store-memory", str(80 * 2**20), "--include-dashboard", "false", "--disable-usage-stats"]
    try:
        subprocess.run([ray, "start", *where, *more], check=True, capture_output=True)
        yield f"127.0.0.1:{port}"
    finally:
        for pid in processes(folder):
            kill(pid)
        shutil.rmtree(folder, ignore_errors=True)


def kill_head(address: str) -> None:
    """Kill the head of the Ray at an address: the process that knows of all others."""
    (pid,) = processes("gcs_server", f"--gcs_server_port={address.rpartition(':')[2]}")
    kill(pid)
