"""How near rollouts in environments that take their time come to what decoding and workers bound. Writes
docs/bench_slow.md."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import machine
import report
from grouprl.envs.environment_pool import HereStage, Stage
from grouprl.envs.environment_pool_choice import MOST_WAITING
from grouprl.envs.environment_pool_workers import WorkerStage
from grouprl.policy import load_policy
from grouprl.rollout.episode import Episode
from grouprl.rollout.episode_scheduler import Player
from grouprl.rollout.episode_table import EpisodeLimits, EpisodeTable
from grouprl.rollout.episodes import Start, TurnSampling, TurnSettings, play
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.storage.run_folder import write_text
from grouprl.tasks import Example
from waiting import ACTION, LETTERS, Waiting, WaitingTask, log_normal, one_slow

MOST_WARM = 4
"""Rounds at most before what is measured, in which workers are started."""
UNITS, AT_A_TIME, LOOK = 8, 2, 0.05
"""Rollouts that follow each other in a stream, how many are in play, and seconds after which the next is looked for."""
Times = list[list[list[float]]]
"""[prompt][episode][turn] seconds."""
HEAD = ["task", "environments", "first round", "seconds", "bound", "share of the bound", "turn by turn"]
PAGE = """# Slow environments

Measured by `bench/slow.py`: {episodes} episodes at once, in groups of {each}, an action of {action} tokens each turn.
In `one slow prompt` every step of one of the prompts takes {slow:g} s and those of the others nothing, {turns} turns
each; in `log-normal` each step takes a time of its own (σ = 1, median as named), {long} turns each. The bound is
the largest of: the processor time of decoding, measured beside each row; the longest episode's own steps; all steps
over the number of workers, where one worker does one at a time. `turn by turn` is what the slowest step of each turn
adds up to, with decoding: the least that is possible where all wait for each other. Medians of {rounds} rounds after
those in which workers are started, until their number stays.
In a `stream` {units} rollouts follow each other, two of them in play at a time, as in asynchronous runs; its seconds
are those of one of them on average.
Results are those of environments that take no time, to the bit, except for `free` episodes and streams, as
asynchronous runs play them.
{facts}

{table}

Coroutines (`async def step`) all wait in one worker. Plain classes wait one at a time in each worker; where they wait
instead of computing there are up to {most} workers, as many as episodes if memory allows. Further ones are copies of a
process that has imported the task, and are there within milliseconds; `first round` is the seconds of the very first
one, with all that is started in it. Where the number of workers is set, an episode stays where it began unless bringing
it back elsewhere costs less than it would wait. Each worker plays first the episodes that have come furthest, and has
its next calls before it is done. At the end of a rollout that nothing follows some workers still have nothing to do:
whole episodes of these lengths, each given to whoever is free, would come to 87 to 89 % of the bound if decoding took
nothing. In a stream the next rollout's episodes fill that time. The load of the machine, the processes that wanted its
{cores} cores while this was measured, was {load:.0f}: each turn that is decoded adds to the time of an episode what
decoding takes then.
"""


def starts(times: Times) -> list[Start]:
    """Return the episodes."""
    made = [Example(f"waiting/{p}", "", {"seconds": each}) for p, each in enumerate(times)]
    return [
        Start(example, n, action_seed=1000 * (p * len(times[p]) + n))
        for p, example in enumerate(made)
        for n in range(len(times[p]))
    ]


def seconds(policy: Any, stage: Stage, times: Times, *, reproducible: bool = True) -> float:
    """Play once and return how long it took."""
    begun = time.perf_counter()
    play(policy, Waiting, starts(times), max_turns=64, max_new_tokens=ACTION, stage=stage, reproducible=reproducible)
    return time.perf_counter() - begun


def streamed(policy: Any, stage: Stage, times: Times, units: int) -> float:
    """Play `units` times over, `AT_A_TIME` at once, as asynchronous runs do; returns the seconds of one on average."""
    table = EpisodeTable(policy, stage, "refuse", EpisodeLimits(policy.max_positions, 64, ACTION))
    begun, left, unit = time.perf_counter(), dict[int, int](), dict[int, int]()
    with ExitStack() as sessions:
        player = Player(table, TurnSampling(LocalSampler(policy), TurnSettings(), sessions))
        waiting = list(range(units))
        while waiting or player.busy:
            while waiting and len(left) < AT_A_TIME and not player.ready():
                number, own = waiting.pop(0), starts(times)
                left[number] = len(own)
                episodes = [Episode(number * len(own) + i, start, ("",)) for i, start in enumerate(own)]
                unit.update((episode.number, number) for episode in episodes)
                player.begin(episodes)
            for episode in player.advance(LOOK):
                number = unit.pop(episode.number)
                left[number] -= 1
                if not left[number]:
                    del left[number]
    return (time.perf_counter() - begun) / units


def bound(times: Times, decoding: float, at_once: int, units: int = 1) -> float:
    """Return the least time that is possible, for one of `units` rollouts, where `at_once` steps are done at a time."""
    own = [sum(episode) for prompt in times for episode in prompt]
    return max(decoding, max(own) / units, sum(own) / at_once)


def turn_by_turn(times: Times, decoding: float) -> float:
    """Return the least time that is possible where all wait for the slowest of each turn."""
    return decoding + sum(max(turn) for turn in zip(*(e for prompt in times for e in prompt), strict=True))


def measured(policy: Any, name: str, times: Times, rounds: int, workers: int, units: int) -> list[list[str]]:
    """Return the rows of one task; a stream has `units` rollouts."""
    nothing = [[[0.0] * len(episode) for episode in prompt] for prompt in times]
    here, count = HereStage(Waiting), sum(map(len, times))
    rows = []
    kinds: list[tuple[str, WorkerStage, int, bool, int]] = [
        ("coroutines, 1 worker", _stage(True, 1, None), count, True, 1),
        ("coroutines, 1 worker, free", _stage(True, 1, None), count, False, 1),
        (f"plain, up to {MOST_WAITING} workers", _stage(False, 2, MOST_WAITING), min(count, MOST_WAITING), True, 1),
        (f"plain, {workers} workers, a stream", _stage(False, workers, None), workers, False, units),
        (f"plain, {workers} workers, free", _stage(False, workers, None), workers, False, 1),
    ]
    for kind, stage, at_once, exact, following in kinds:
        with closing(stage):
            first, started = _warmed(policy, stage, times, exact)
            if following > 1:
                took = [streamed(policy, stage, times, following)]
            else:
                took = [seconds(policy, stage, times, reproducible=exact) for _ in range(rounds)]
        decoding = min(_computing(policy, here, nothing) for _ in range(3))
        least, found = bound(times, decoding, at_once, following), statistics.median(took)
        together = turn_by_turn(times, decoding)
        cells = [f"{first:.2f}", f"{found:.2f}", f"{least:.2f}", f"{least / found:.0%}", f"{together:.2f}"]
        rows.append([name, f"{kind} ({started} started)" if stage.most > stage.count else kind, *cells])
    return rows


def _warmed(policy: Any, stage: WorkerStage, times: Times, exact: bool) -> tuple[float, int]:
    """Play until no more workers are started; returns the seconds of the first round, and how many there are."""
    first = 0.0
    for _ in range(MOST_WARM):
        before = stage.started
        took = seconds(policy, stage, times, reproducible=exact)
        first = first or took
        if stage.started == before:
            break
    return first, stage.started


def _computing(policy: Any, stage: Stage, times: Times) -> float:
    """Return the processor time of a rollout: what others compute on the machine meanwhile is not in it."""
    begun = time.process_time()
    seconds(policy, stage, times)
    return time.process_time() - begun


def _stage(asynchronous: bool, count: int, most: int | None) -> WorkerStage:
    return WorkerStage(WaitingTask(asynchronous), count, timeout=60, memory_gb=4, most=most)


def main(
    rounds: Annotated[int, typer.Option(help="Measured rounds.")] = 3,
    docs: Annotated[Path, typer.Option(help="Where bench_slow.md is written.")] = Path("docs"),
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test: few environments, one round.")] = False,
) -> None:
    """Measure and write the report."""
    prompts, each, rounds = (2, 2, 1) if quick else (8, 8, rounds)
    slow, turns, medians, long = (0.2, 2, (0.01,), 3) if quick else (2.0, 2, (0.1, 0.3), 8)
    torch.set_num_threads(1)
    policy = load_policy("tiny", alphabet=LETTERS, max_positions=512)
    tasks = {
        "one slow prompt": one_slow(prompts, each, turns, slow),
        **{f"log-normal, {median:g} s": log_normal(prompts, each, long, median) for median in medians},
    }
    table = [
        row
        for name, times in tasks.items()
        for row in measured(policy, name, times, rounds, *((2, 2) if quick else (8, UNITS)))
    ]
    report.show(Console(), "Seconds of a rollout", HEAD, table)
    facts = ", ".join(f"{name} {value}" for name, value in machine.describe(("grouprl", "torch")).items())
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        facts += ", real-time priority"
    sizes: dict[str, Any] = {"episodes": prompts * each, "each": each, "action": ACTION, "most": MOST_WAITING}
    sizes |= {"slow": slow, "turns": turns, "long": long, "rounds": rounds, "units": UNITS}
    sizes |= {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    docs.mkdir(parents=True, exist_ok=True)
    write_text(docs / "bench_slow.md", PAGE.format(facts=facts, table=report.markdown(HEAD, table), **sizes))


if __name__ == "__main__":
    typer.run(main)
