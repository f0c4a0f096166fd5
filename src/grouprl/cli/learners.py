"""`grouprl train` with learners on a cluster: this process starts them, shows their output and watches them."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grouprl.cli.launch import run_ranks
from grouprl.cli.results import Results
from grouprl.core.errors import InputError
from grouprl.core.terminal import Terminal

if TYPE_CHECKING:
    from grouprl.config.run import Config
    from grouprl.orchestrator.on_ray.learner_group import GroupEnd


@dataclass(frozen=True)
class LearnerJob:
    """The user's command: what to train, in which folder, with which changes and options."""

    source: str
    folder: Path
    changes: tuple[str, ...]
    resume: bool
    options: tuple[str, ...]

    def arguments(self) -> list[str]:
        """Return the arguments of each learner: the user's, or for a run that has begun, those that continue it."""
        sets = [word for change in self.changes for word in ("--set", change)]
        folder = str(self.folder.absolute())
        if self.resume:
            return ["train", folder, "--resume", *sets, *self.options]
        if (self.folder / "config.yaml").is_file():
            return ["train", folder, "--resume", *self.options]
        return ["train", self.source, "--folder", folder, *sets, *self.options]


def run_learners(config: Config, job: LearnerJob) -> int:
    """Train with the learners that a configuration requests; return the exit code of the run.

    Raises:
        GrouprlError: there is no cluster, it has no room or is gone, or learners were lost repeatedly.
    """
    if not job.resume and (job.folder / "config.yaml").is_file():
        raise InputError(f"the run folder {job.folder} exists", "a run never overwrites another", "Choose another")
    if config.cluster.ray == "off":
        return run_ranks([sys.executable, "-m", "grouprl", *job.arguments()], config.cluster.learners)
    from grouprl.orchestrator.on_ray.cluster_info import look
    from grouprl.orchestrator.on_ray.learner_group import LEASE, GroupSettings, LearnerGroup, kept_alive
    from grouprl.orchestrator.on_ray.learner_node import LearnerHello
    from grouprl.orchestrator.on_ray.ray_host import RayHost, short_of
    from grouprl.orchestrator.on_ray.worker_host import hello_of

    cluster = config.cluster
    settings = GroupSettings(cluster.learners, cluster.start_timeout, cluster.restarts)
    facts = look(cluster.ray)
    if short := list(short_of({"learner": settings.count}, cluster, facts)):
        raise InputError("; ".join(short))
    said = Terminal(stderr=True, highlight=False, soft_wrap=True, quiet="--quiet" in job.options)
    said.print(f"{facts.words()}. Learners placed there: {settings.count}", markup=False)
    host = RayHost(cluster, {"learner": settings.count}, {"learner": hello_of(LearnerHello(LEASE))})

    def attempt() -> GroupEnd:
        group = LearnerGroup(host, settings, signals, show)
        try:
            return group.run(job.arguments(), variables())
        finally:
            group.end()

    try:
        with heard_signals() as signals:
            return kept_alive(attempt, job.folder, cluster.restarts, said.print, signals)
    finally:
        host.close()


@contextmanager
def heard_signals() -> Iterator[deque[int]]:
    """Yield the collection to which SIGINT and SIGTERM are added as they arrive, to be passed on."""
    heard: deque[int] = deque()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: heard.append(number)) for number in numbers}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show(rank: int, out: bytes, err: bytes) -> None:
    """Show the output of a learner: progress and results of rank 0, errors of every rank."""
    for stream, said in ((Results.stream or sys.stdout, out if rank == 0 else b""), (sys.stderr, err)):
        if said:
            stream.flush()
            stream.buffer.write(said)
            stream.flush()


def variables() -> dict[str, str]:
    """Return environment variables for the learners: whether a terminal shows their output, and its size."""
    if not sys.stdout.isatty():
        return {}
    size = shutil.get_terminal_size()
    told = {"FORCE_COLOR": "1", "COLUMNS": str(size.columns), "LINES": str(size.lines)}
    return told | {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
