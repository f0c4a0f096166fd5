"""Step by step: a worker takes one step when its parent says so, and tells what it cost.

The parent writes a line to start a step; the worker answers with one line of JSON. So two workers take turns in one
run, and what else happens on the machine disturbs both alike.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Gate:
    """The worker's end."""

    def __init__(self) -> None:
        self._completions = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever libraries print must not mix with the completions
        self._start: tuple[float, float] | None = None

    def step_done(self, facts: Mapping[str, float]) -> None:
        """Report the step since `wait` returned."""
        assert self._start is not None
        wall, cpu = time.perf_counter() - self._start[0], time.process_time() - self._start[1]
        self._say({**facts, "wall": wall, "cpu": cpu, "rss_mb": peak_mb()})

    def wait(self) -> None:
        """Wait for the next turn; the process ends when the parent is gone."""
        if not sys.stdin.readline():
            os._exit(0)
        self._start = time.perf_counter(), time.process_time()

    def ready(self) -> None:
        """Say that the next step can begin."""
        self._say({"rss_mb": peak_mb()})

    def _say(self, facts: Mapping[str, float]) -> None:
        print(json.dumps(facts), file=self._completions, flush=True)


class Worker:
    """The parent's end: a worker process. Use it as a context manager."""

    def __init__(self, script: str, *arguments: str, log: Path, python: str = sys.executable) -> None:
        command = [python, str(Path(__file__).parent / script), *arguments]
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            )
        self.start = self._hear()

    def step(self) -> dict[str, Any]:
        """Let the worker take one step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._hear()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait()
            raise RuntimeError(f"a worker ended early:\n{self._log.read_text()[-3000:]}")
        return json.loads(answer)


def peak_mb() -> float:
    """Peak resident memory of this process in MiB."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage would tell of the parent's memory too: it survives fork and exec
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
