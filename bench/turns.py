"""Tokens per second over many turns against single completions of the same lengths, and what environments cost.

The ways take turns, round by round, so that whatever else the machine does disturbs all of them. Writes
docs/bench_turns.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import machine
import report
from grouprl.envs.call_times import CallTimes
from grouprl.envs.environment_pool import HereStage, Stage
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.policy import load_policy
from grouprl.rollout.episodes import Start, play
from grouprl.rollout.local.sampler import generate
from grouprl.storage.run_folder import write_text
from grouprl.tasks import Example
from talk import ACTION, LETTERS, PROMPT, SEEN, TURNS, Talk, TalkTask

ENVIRONMENTS = 256
SLOW = 0.002
"""Seconds that a step of the slow environment takes."""
HEAD = ["way", "tokens/s", "tokens per s of processor time", "× single completions", "quartiles", "in environments"]


@dataclass
class Clocked:
    """A stage that counts the seconds that are spent in it."""

    stage: Stage
    seconds: float = 0.0

    @property
    def times(self) -> CallTimes:
        """Those of the stage."""
        return self.stage.times

    def send(self, method: str, calls: Sequence[Any]) -> None:
        """Send calls to the stage."""
        begun = time.perf_counter()
        self.stage.send(method, calls)
        self.seconds += time.perf_counter() - begun

    def receive(self, seconds: float | None = None) -> list[tuple[int, Any]]:
        """Receive answers of the stage."""
        begun = time.perf_counter()
        try:
            return self.stage.receive(seconds)
        finally:
            self.seconds += time.perf_counter() - begun

    def call(self, method: str, calls: Sequence[Any]) -> list[Any]:
        """Call the stage."""
        begun = time.perf_counter()
        try:
            return self.stage.call(method, calls)
        finally:
            self.seconds += time.perf_counter() - begun

    def clear(self) -> None:
        """Clear the stage."""
        self.stage.clear()

    def close(self) -> None:
        """Close the stage."""
        self.stage.close()


class Endless:
    """A policy that never ends by itself, so that lengths are what the budgets say."""

    eos_ids = ()

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)


Variant = Callable[[], tuple[int, float]]
"""Do it once; returns tokens of the policy, and seconds in environments."""


def starts(count: int, slow: float = 0.0) -> list[Start]:
    """Return the episodes to be played."""
    requested = [TalkTask().example("train", i) for i in range(count)]
    return [
        Start(Example(q.id, "", {**q.columns, "slow": slow}), i, action_seed=i * TURNS) for i, q in enumerate(requested)
    ]


def single(policy: Any, count: int) -> tuple[int, float]:
    """Sample one completion for each episode, as long as all its actions together."""
    budgets = [ACTION * (1 + i % TURNS) for i in range(count)]
    prompt = policy.encode_prompt("a" * (PROMPT - 1))
    settings: dict[str, Any] = {"max_new_tokens": max(budgets), "budgets": budgets, "seeds": list(range(count))}
    generate(policy, [prompt] * count, n=1, **settings)
    return sum(budgets), 0.0


def many(policy: Any, stage: Stage, count: int, cache_gb: float, slow: float = 0.0) -> tuple[int, float]:
    """Play every episode."""
    clocked = Clocked(stage)
    limits: dict[str, Any] = {"max_turns": TURNS, "max_new_tokens": ACTION}
    episodes = play(policy, Talk, starts(count, slow), **limits, stage=clocked, cache_gb=cache_gb)
    return int(episodes.mask_bt.sum()), clocked.seconds


@dataclass(frozen=True)
class Round:
    """Tokens per second of the clock and of this process's processor time, and the share of time in environments."""

    speed: float
    processor: float
    waited: float


def measured(variants: dict[str, Variant], rounds: int) -> dict[str, list[Round]]:
    """Return every round, way by way."""
    found: dict[str, list[Round]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, variant in variants.items():
            begun, busy = time.perf_counter(), time.process_time()
            tokens, waited = variant()
            taken, used = time.perf_counter() - begun, time.process_time() - busy
            if number:  # the first round warms up
                found[name].append(Round(tokens / taken, tokens / used, waited / taken))
    return found


def rows(found: dict[str, list[Round]], against: str) -> list[list[str]]:
    """Return the table."""
    base = [each.processor for each in found[against]]
    table = []
    for name, rounds in found.items():
        ratios = [each.processor / other for each, other in zip(rounds, base, strict=True)]
        table.append(
            [
                name,
                f"{statistics.median(each.speed for each in rounds):,.0f}",
                f"{statistics.median(each.processor for each in rounds):,.0f}",
                f"{statistics.median(ratios):.2f}",
                _quartiles(ratios, ".2f"),
                "" if name == against else f"{statistics.median(each.waited for each in rounds):.1%}",
            ]
        )
    return table


def _quartiles(values: list[float], form: str) -> str:
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return f"{low:{form}} … {high:{form}}"


PAGE = """# Many turns

Measured by `bench/turns.py`: {count} environments at once, each ending on its own after 1 to {turns} turns; an action
has {action} tokens, an observation {seen}, the first one {prompt}. A single completion has as many tokens as all
actions of an episode together. Only tokens of the policy count. Medians of {rounds} rounds in which the ways take
turns; the machine was not idle. So ratios are those of processor time, which other processes disturb less than the
clock; what workers use is not in it. The last column is the share of the clock's time until environments had answered.
{facts}

{table}

What is lost against single completions is the reading of what environments say, which gives no tokens of the policy's
own, and the end of each turn, at which rows are gathered anew. `anew` reads all that was said before in every turn; by
default keys and values are kept, up to {kept:g} GiB of them. A slow environment takes {slow:g} ms per step: in this
process all {count} wait for one another; in workers as many wait at a time as there are workers.
"""


def main(
    rounds: Annotated[int, typer.Option(help="Measured rounds.")] = 9,
    docs: Annotated[Path, typer.Option(help="Where bench_turns.md is written.")] = Path("docs"),
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test: few environments, one round.")] = False,
) -> None:
    """Measure and write the report."""
    count, rounds = (16, 1) if quick else (ENVIRONMENTS, rounds)
    torch.set_num_threads(1)
    policy = Endless(load_policy("tiny", alphabet=LETTERS, max_positions=512))
    here = HereStage(Talk)
    with closing(WorkerStage(TalkTask(), 2, timeout=60, memory_gb=4)) as workers:
        variants: dict[str, Variant] = {
            "single completions": lambda: single(policy, count),
            "turns": lambda: many(policy, here, count, 2.0),
            "turns, read anew": lambda: many(policy, here, count, 0.0),
            "turns, 2 workers": lambda: many(policy, workers, count, 2.0),
            "turns, slow environment": lambda: many(policy, here, count, 2.0, SLOW),
            "turns, slow environment, 2 workers": lambda: many(policy, workers, count, 2.0, SLOW),
        }
        table = rows(measured(variants, rounds), "single completions")
    report.show(Console(), "Tokens per second", HEAD, table)
    facts = ", ".join(f"{name} {value}" for name, value in machine.describe(("grouprl", "torch")).items())
    sizes: dict[str, Any] = {"count": count, "turns": TURNS, "action": ACTION, "seen": SEEN, "prompt": PROMPT}
    text = PAGE.format(
        facts=facts, rounds=rounds, table=report.markdown(HEAD, table), kept=2.0, slow=1000 * SLOW, **sizes
    )
    docs.mkdir(parents=True, exist_ok=True)
    write_text(docs / "bench_turns.md", text)


if __name__ == "__main__":
    typer.run(main)
