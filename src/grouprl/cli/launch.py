"""`grouprl launch`: a training run in several processes of this machine, which share one model."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from grouprl.cli.quiet import Telling
from grouprl.cli.results import Results
from grouprl.core.errors import InputError, RunError
from grouprl.core.terminal import Terminal
from grouprl.processes.current_ranks import CONTINUE, MeetingPipe
from grouprl.processes.passed_signals import passed_on
from grouprl.processes.slurm import variables_of_task

TOLD = 60.0
"""Seconds that rank 0 has to notice and report that another rank is gone, before it is ended."""
UNMET = 15.0
"""Seconds for rank 0 if another rank ended before all met: it may fail for the same reason, and report it better."""
ENDING = 15.0
"""Seconds between SIGTERM and the killing of a process."""
GLANCE = 0.05
INTERRUPTIONS = (-signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a rank that a signal ended before it had begun its run, or that could not end it in time."""


def launch_command(
    context: typer.Context,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            "-n",
            min=1,
            help="Number of processes that share the model (under srun: its number of tasks).",
        ),
    ] = None,
) -> None:
    """Train in several processes that share one model (FSDP2), on this machine or as tasks of Slurm.

    Each process holds a part of the weights, of the optimiser and of the work: rows of a step are dealt out by tokens,
    completions are sampled on all of them. Results do not depend on their number except for the order of sums. The
    first one shows progress and writes the run folder; with GPUs each process takes one.

    [bold]Examples[/]
    grouprl launch -n 2 train addition
    grouprl launch -n 8 train run.yaml --set model.precision=mixed
    grouprl launch -n 4 train runs/addition-dapo-s0 --resume    on a different number than before
    srun grouprl launch train run.yaml                          each task of Slurm is one of them
    torchrun --nproc-per-node 8 -m grouprl train run.yaml       the same by torchrun

    Ctrl-C ends the run after the current step, as without launch; when a
    process dies, the others are ended and the exit code is 3. The last
    checkpoint is complete: continue with --resume.
    """
    # Both are taken from anywhere on the line before this command sees it, and ranks have lines of their own.
    arguments = [*context.args, *["--quiet"] * Telling.quiet, *["--debug"] * bool(context.meta.get("debug"))]
    if arguments[:1] != ["train"]:
        given = f"grouprl launch … {arguments[0]}" if arguments else "grouprl launch without a command"
        raise InputError(
            given, "only a training run can be launched in several processes", "Run grouprl launch -n 2 train …"
        )
    command = [sys.executable, "-m", "grouprl", *arguments]
    if processes is None:
        os.execve(sys.executable, command, {**os.environ, **_of_srun()})
    code = run_ranks(command, processes)
    if code:
        raise typer.Exit(code)


def _of_srun() -> dict[str, str]:
    """Return the variables of the rank that this task of srun is.

    Raises:
        InputError: it is not a task of srun.
    """
    if (found := variables_of_task(os.environ)) is None:
        raise InputError(
            "grouprl launch without a number of processes",
            "it starts that many on this machine; each task of Slurm's srun is one of them by itself",
            "Run grouprl launch -n 2 train …, or srun grouprl launch train …",
        )
    return found


def run_ranks(command: Sequence[str], count: int) -> int:
    """Run `command` as ranks 0 … count - 1; return the exit code of rank 0, 130 or 143 if a signal interrupted it.

    Raises:
        RunError: a process was ended from outside, or a rank failed and rank 0 did not report it.
    """
    started: list[subprocess.Popen[bytes]] = []
    try:
        with MeetingPipe() as meeting:
            for rank, environment in enumerate(_environments(count)):
                started.append(_start(command, rank, environment, meeting))
            with passed_on(started[0]):  # rank 0 ends the run, and thereby the other ranks
                return _outcome(started, meeting)
    finally:
        _end(started)


def _environments(count: int) -> Iterator[dict[str, str]]:
    """Yield the environment of each process, with its rank and the address of the others, as torchrun does."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count))}
    for rank in range(count):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
        yield {**threads, **os.environ, **shared, **own}


def _start(
    command: Sequence[str], rank: int, environment: dict[str, str], meeting: MeetingPipe
) -> subprocess.Popen[bytes]:
    """Start a rank in its own session, so that Ctrl-C reaches it only once, through this process."""
    if rank:
        silent = subprocess.DEVNULL
        return subprocess.Popen(command, env=environment, start_new_session=True, stdin=silent, stdout=silent)
    own, file = {**environment, **meeting.variable}, meeting.told
    return subprocess.Popen(command, env=own, start_new_session=True, stdout=Results.stream, pass_fds=(file,))


def _outcome(started: Sequence[subprocess.Popen[bytes]], meeting: MeetingPipe) -> int:
    """Wait until rank 0 ends, or until another rank fails and rank 0 has reported it."""
    leader, failed, since = started[0], -1, 0.0
    while leader.poll() is None:
        if failed < 0:
            failed = next((r for r, each in enumerate(started) if r and each.poll() not in (None, 0)), -1)
            since = time.monotonic()
        elif time.monotonic() - since > _patience(started[failed].returncode, meeting):
            _end_led(started, meeting)
            raise RunError(f"rank {failed} {_how(started[failed].returncode)}. {_SAFE}")
        time.sleep(GLANCE)
    if leader.returncode in INTERRUPTIONS:
        return 128 - leader.returncode
    if leader.returncode < 0:
        raise RunError(f"rank 0 {_how(leader.returncode)}. {_SAFE}")
    if failed > 0 and leader.returncode:
        said = f"rank {failed} {_how(started[failed].returncode)}"
        Terminal(stderr=True, highlight=False, soft_wrap=True).print(said, markup=False)
    return leader.returncode


def _patience(code: int, meeting: MeetingPipe) -> float:
    """Return the seconds that rank 0 has to report another rank's end: none while it waits for that rank to join."""
    if meeting.over:
        return TOLD
    return UNMET if code > 0 else 0.0


def _end_led(started: Sequence[subprocess.Popen[bytes]], meeting: MeetingPipe) -> None:
    """End rank 0, and all that wait for each other."""
    if meeting.over:
        _end(started[:1])
        return
    for each in started:
        each.kill()


_SAFE = f"The other processes are ended, too; checkpoints are intact: {CONTINUE}"


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the remaining processes: let them end without rank 0, then send SIGTERM, then SIGKILL."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if number is not None and process.poll() is None:
                process.send_signal(number)
        until = time.monotonic() + (ENDING if number is not None else 2.0)
        while time.monotonic() < until and any(process.poll() is None for process in processes):
            time.sleep(GLANCE)
