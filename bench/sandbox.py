"""Runs per second of the sandbox at every level, beside starting a bare Python for each. Writes docs/sandbox.md.

The places take turns, round by round, so that whatever else the machine does disturbs all of them.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import machine
import report
from grouprl.core.errors import InputError
from grouprl.sandbox import LEVELS, Sandbox
from grouprl.sandbox.level import LevelName
from grouprl.storage.run_folder import write_text

PROGRAMS = {
    "prints": "print(sum(range(10)))",
    "imports": "import json, re, math, collections\nprint(json.dumps({'a': 1}))",
}
HEAD = ["program", "place", "runs/s", "per run", "quartiles", "processor per run", "runs/s of a free core"]
MEASURED = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end -->)", re.DOTALL)


@dataclass
class Place:
    """Where programs run, how many seconds a run took in each round, and how many of a processor in all."""

    run: Callable[[str], str]
    processor: Callable[[], float]
    seconds: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)


def bare(code: str) -> str:
    """Start an interpreter for a program, without any containment."""
    return subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True).stdout


def places(stack: ExitStack) -> dict[str, Place]:
    """Return every level that this machine allows, and a bare Python."""
    found = {"a bare Python each": Place(bare, by_children)}
    for level in LEVELS:
        try:
            sandbox = stack.enter_context(Sandbox(level=level))
        except InputError:
            continue
        server = sandbox._server.child.pid
        found[level] = Place(partial(printed, sandbox), partial(by_server, server))
    return found


def printed(sandbox: Sandbox, code: str) -> str:
    """Run a program in a sandbox."""
    return sandbox.run(code).stdout


def by_children() -> float:
    """Processor seconds of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def by_server(server: int) -> float:
    """Processor seconds of a fork server and the runs that it has waited for."""
    fields = Path(f"/proc/{server}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def measure(code: str, found: dict[str, Place], rounds: int, runs: int) -> None:
    """Let every place run the program some times, round by round."""
    expected = bare(code)
    for _ in range(rounds):
        for name, place in found.items():
            used, began = place.processor(), time.perf_counter()
            for _ in range(runs):
                assert place.run(code) == expected, name
            place.seconds.append((time.perf_counter() - began) / runs)
            place.used.append((place.processor() - used) / runs)


def rows(program: str, found: dict[str, Place]) -> report.Rows:
    """One row per place: medians and quartiles of the rounds."""
    lines = []
    for name, place in found.items():
        middle = statistics.median(place.seconds)
        low, _, high = statistics.quantiles(place.seconds, n=4)
        cells = [f"{1 / middle:,.0f}", f"{1e3 * middle:.1f} ms", f"{1e3 * low:.1f} … {1e3 * high:.1f} ms"]
        used = statistics.fmean(place.used)  # the kernel counts in hundredths of a second
        lines.append([f"`{program}`", name, *cells, f"{1e3 * used:.1f} ms", f"{1 / used:,.0f}"])
    return lines


def start_seconds(level: LevelName, rounds: int) -> float:
    """Median time until a sandbox has run its first program."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        with Sandbox(level=level):
            found.append(time.perf_counter() - began)
    return statistics.median(found)


def main(
    rounds: Annotated[int, typer.Option(help="Measured rounds.")] = 15,
    docs: Annotated[Path, typer.Option(help="Where sandbox.md is, whose numbers are replaced.")] = Path("docs"),
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test: two rounds, nothing written.")] = False,
) -> None:
    """Measure and bring the page up to date."""
    rounds, runs = (2, 2) if quick else (rounds, 10)
    table: report.Rows = []
    for program, code in PROGRAMS.items():
        with ExitStack() as stack:
            found = places(stack)
            measure(code, found, rounds, runs)
            table += rows(program, found)
    report.show(Console(), "Runs of the sandbox", HEAD, table)
    if quick:
        return
    best = Sandbox().level.name
    facts = ", ".join(f"{name} {value}" for name, value in machine.describe(("grouprl",)).items())
    text = f"{report.markdown(HEAD, table)}\n\nA sandbox is ready after {start_seconds(best, rounds):.2f} s ({best}). "
    load = f"{os.getloadavg()[1]:.0f} processes wanted its {os.cpu_count()} cores at a time"
    text += f"Medians of {rounds} rounds of {runs} runs; the machine was not idle: {load}. {facts}\n"
    page = docs / "sandbox.md"
    write_text(page, MEASURED.sub(lambda _: text, page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    typer.run(main)
