"""Completions per second of rewards in the trainer's own process and in worker processes.

The places take turns, round by round, so that whatever else the machine does disturbs all of them. Writes
docs/bench_rewards.md.
"""

from __future__ import annotations

import logging
import statistics
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import machine
import report
from grouprl.rewards import Reward, load_reward, score
from grouprl.rewards.reward_workers import RewardWorkers
from grouprl.storage.run_folder import write_text

COUNTS = (1, 2)
CLOCK = 0.5
HEAD = ["reward", "place", "completions/s", "per completion", "quartiles", "× in process", "quartiles"]
PACKAGES = ("grouprl", "math-verify", "numpy")


@dataclass(frozen=True)
class Job:
    """A reward and the completions it scores, half of them right."""

    reward: str
    texts: list[str]
    completions: list[str]


def trivial(count: int) -> Job:
    """One comparison of short strings."""
    return Job("exact_match", [str(i) for i in range(count)], [str(i + i % 2) for i in range(count)])


def algebra(count: int) -> Job:
    """Polynomials in LaTeX, parsed and compared by math-verify."""
    texts = [rf"so it is \boxed{{x^2+{2 * i}x+{i * i}}}" for i in range(1, count + 1)]
    return Job("math_equal", texts, [f"$(x+{i + i % 2})^2$" for i in range(1, count + 1)])


def rates(job: Job, rounds: int) -> dict[str, list[float]]:
    """Completions per second of every round, by place; the first round, which imports, is not counted."""
    reward = load_reward(job.reward)
    with ExitStack() as stack:
        places: dict[str, Reward] = {"in process": reward}
        for count in COUNTS:
            workers = RewardWorkers(reward, count, timeout=60, memory_gb=4)
            places[f"{count} worker{'s' * (count > 1)}"] = stack.enter_context(closing(workers))
        found: dict[str, list[float]] = {name: [] for name in places}
        for _ in range(rounds + 1):
            for name, place in places.items():
                found[name].append(len(job.texts) / seconds(place, job))
    return {name: values[1:] for name, values in found.items()}


def seconds(reward: Reward, job: Job) -> float:
    """Wall-clock time of judging all completions once."""
    ids, columns = [str(i) for i in range(len(job.texts))], [{"answer": answer} for answer in job.completions]
    start = time.perf_counter()
    scores = score(reward, job.texts, columns, ids=ids)
    taken = time.perf_counter() - start
    assert scores.correct_b.sum() == len(job.texts) // 2
    return taken


def rows(job: Job, found: dict[str, list[float]]) -> report.Rows:
    """One row per place: medians and quartiles of the rounds, alone and beside the same round in process."""
    lines = []
    for name, values in found.items():
        beside = [mine / base for mine, base in zip(values, found["in process"], strict=True)]
        middle = statistics.median(values)
        low, _, high = statistics.quantiles(values, n=4)
        below, _, above = statistics.quantiles(beside, n=4)
        cells = [f"{middle:,.0f}", f"{1e6 / middle:,.1f} µs", f"{low:,.0f} … {high:,.0f}"]
        lines.append([job.reward, name, *cells, f"{statistics.median(beside):.2f}", f"{below:.2f} … {above:.2f}"])
    return lines


def faults(rounds: int) -> dict[str, float]:
    """Medians in seconds: until a worker is ready, and what a completion that hangs costs beyond its clock."""
    reward = load_reward(f"{Path(__file__).parent / 'rewards.py'}:sleeps_when_asked")
    ready, lost = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        with closing(RewardWorkers(reward, 1, timeout=CLOCK, memory_gb=4)) as workers:
            ready.append(time.perf_counter() - start)
            start = time.perf_counter()
            scores = score(workers, ["a", "sleep", "a"], [{}] * 3, ids=["0", "1", "2"])
            lost.append(time.perf_counter() - start - CLOCK)
            assert scores.status_b.tolist() == ["ok", "timeout", "ok"]
    return {"ready": statistics.median(ready), "lost": statistics.median(lost)}


PAGE = """# Rewards in worker processes

Measured by `make bench` (`bench/rewards_throughput.py`): wall-clock time of scoring a batch, everything included
(sending, judging, checking, evidence). The places take turns; medians of {rounds} rounds; the machine was not idle.
{facts}

{table}

`exact_match` scores {trivial:,} completions of a few characters: what is left is the price of the way to a worker and
back. `math_equal` scores {algebra:,} polynomials with math-verify. `reward.workers: auto` keeps rewards like the first
in the trainer's process and sends rewards like the second, and your own, to one worker per core.

A worker is ready after {ready:.2f} s (this package without torch, and a reward that imports nothing large). A
completion that hangs costs its clock and {lost:.2f} s more: finding out where it hangs, ending the worker with its
children, and starting the one that scores the rest.
"""


def main(
    rounds: Annotated[int, typer.Option(help="Measured rounds.")] = 15,
    docs: Annotated[Path, typer.Option(help="Where bench_rewards.md is written.")] = Path("docs"),
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test: few completions, two rounds.")] = False,
) -> None:
    """Measure and write the report."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    rounds, scale = (2, 64) if quick else (rounds, 1)
    jobs = [trivial(8192 // scale), algebra(256 // scale)]
    table = [row for job in jobs for row in rows(job, rates(job, rounds))]
    report.show(Console(), "Completions per second", HEAD, table)
    facts = ", ".join(f"{name} {value}" for name, value in machine.describe(PACKAGES).items())
    sizes: dict[str, Any] = {"trivial": len(jobs[0].texts), "algebra": len(jobs[1].texts)}
    text = PAGE.format(facts=facts, rounds=rounds, table=report.markdown(HEAD, table), **sizes, **faults(rounds))
    docs.mkdir(parents=True, exist_ok=True)
    write_text(docs / "bench_rewards.md", text)


if __name__ == "__main__":
    typer.run(main)
