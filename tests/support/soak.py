"""A long run under random faults, from inside (rewards, environments) and outside (signals, disk, checkpoints).

Inside faults follow from the completions alone; outside faults come after a random number of steps.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import yaml

import toy_envs
from grouprl.orchestrator.account_words import NOT_COMPLETED, REASONS
from kills import FORKS, TINY

FAULTS = ("kill", "stop", "worker", "full", "flip", "cut", "half")
"""SIGKILL; SIGTERM; SIGKILL to a reward worker; no more room on disk; SIGKILL and then a flipped byte in the newest
checkpoint, a checkpoint that is cut off, half a line of metrics."""
INTERRUPTED, FAILED = 130, 1


class FallingTask(toy_envs.AskTask):
    """One episode in twenty raises in its environment."""

    def environment(self) -> Any:
        class Falling(toy_envs.Asking):
            def reset(self, example: Any, seed: int) -> Any:
                self.falls = zlib.crc32(f"{example.id}/{seed}".encode()) % 20 == 0
                return super().reset(example, seed)

            def step(self, action: str) -> Any:
                if self.falls:
                    raise ValueError("the board fell down")
                return super().step(action)

        return Falling()


def settings(kind: str, steps: int) -> dict[str, Any]:
    """The configuration of a soak run: 'completions' (rewards in workers, refill) or 'episodes' (environments)."""
    config: dict[str, Any] = {
        "task": {"name": "reverse", "length": 2},
        "model": TINY,
        "method": {"name": "dapo", "max_rounds": 2},
        "steps": steps,
        "warmup": {"steps": 40, "batch": 16, "warmup_steps": 2, "lr": 1e-2},
        "batch": {"prompts": 8, "group_size": 8, "minibatches": 2},
        "optim": {"lr": 1e-4},
        "eval": {"every": 0, "final_prompts": 16},
        "reward": {
            "function": f"{Path(__file__).with_name('soak_reward.py')}:reward",
            "max_failed_fraction": 1.0,
            "workers": 2,
            "timeout": 1.0,
            "memory_gb": 2.0,
            "self_test": False,
        },
        "run": {"checkpoint_every": 5, "keep": 3, "threads": 1},
    }
    if kind == "episodes":
        task = {"task": f"{__file__}:FallingTask", "method": "gigpo"}  # nobody demonstrates where the board falls down
        config |= {**task, "reward": {"max_failed_fraction": 1.0}, "warmup": {"steps": 0}}
    return config


@dataclass
class Soaked:
    """What a soak run came to."""

    steps: int
    faults: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    seconds: float = 0.0
    memory: list[tuple[int, float]] = field(default_factory=list)
    """(step, resident MiB) of the last process, sampled while it ran undisturbed."""
    account: dict[str, float] = field(default_factory=dict)

    @property
    def growth_mb(self) -> float:
        """Resident memory at the end of the calm stretch less that at its middle, medians of an eighth each, in MiB."""
        values = [mb for _, mb in self.memory]
        size = max(1, len(values) // 8)
        middle = len(values) // 2
        return statistics.median(values[-size:]) - statistics.median(values[middle : middle + size])

    def record(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "steps": self.steps,
            "starts": self.starts,
            "seconds": round(self.seconds),
            "faults": dict(self.faults),
            "memory_mb": round(self.memory[-1][1], 1) if self.memory else None,
            "growth_mb": round(self.growth_mb, 2) if self.memory else None,
            "calm_steps": self.memory[-1][0] - self.memory[0][0] if self.memory else 0,
            "account": {name: int(n) for name, n in self.account.items()},
        }


def soak(home: Path, kind: str, steps: int, *, every: int, calm: float, seed: int = 0) -> Soaked:
    """Run `steps` steps with a fault about every `every` steps, the last share `calm` of them undisturbed from outside.

    Goes on after each interruption until the run has ended. Raises AssertionError when anything ends in another way
    than its fault explains.
    """
    rng, found, begin = random.Random(f"{seed}/{kind}"), Soaked(steps), time.time()
    config, folder = home / f"{kind}.yaml", home / kind
    config.write_text(yaml.safe_dump(settings(kind, steps)))
    faults = [name for name in FAULTS if name != "worker" or kind == "answers"]
    last = int(steps * (1 - calm))
    code = -1
    while code != 0:
        process = launch(config, folder)
        found.starts += 1
        plan = planned(faults, step_of(folder), every, rng)
        code, fault = watch(process, folder, found, plan, last)
        assert code in (0, -signal.SIGKILL, INTERRUPTED, FAILED), log(folder)[-3000:]
        assert code != FAILED or (fault == "full" and "the disk is full" in log(folder)), log(folder)[-3000:]
        if code == -signal.SIGKILL:
            damage(fault, folder)
    found.seconds = time.time() - begin
    found.account = check_account(folder, steps)
    return found


def launch(config: Path, folder: Path) -> BaseProcess:
    """Begin or go on with the run; it writes what it says through a pipe, which no limit on files concerns."""
    process = FORKS.Process(target=_child, args=(config, folder))
    process.start()
    return process


def _child(config: Path, folder: Path) -> None:
    from grouprl.config.run import load_config
    from grouprl.training.loop import train

    with folder.with_suffix(".log").open("a") as file:
        pipe = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file, start_new_session=True)
    assert pipe.stdin is not None
    os.dup2(pipe.stdin.fileno(), 1)
    os.dup2(pipe.stdin.fileno(), 2)
    summary = train(load_config(str(config)), folder=folder, resume=(folder / "config.yaml").is_file())
    sys.stdout.flush()
    os._exit(INTERRUPTED if summary.interrupted else 0)


def log(folder: Path) -> str:
    """What the run has said."""
    return folder.with_suffix(".log").read_text(errors="replace")


def planned(faults: Sequence[str], step: int, every: int, rng: random.Random) -> list[tuple[int, str]]:
    """Sample what strikes a process that begins at `step`, and when: a run goes on without its worker until the
    next."""
    plan: list[tuple[int, str]] = []
    while not plan or plan[-1][1] == "worker":
        step += rng.randint(every // 2, every * 3 // 2)
        plan.append((step, rng.choice(list(faults))))
    return plan


def watch(process: BaseProcess, folder: Path, found: Soaked, plan: list[tuple[int, str]], last: int) -> tuple[int, str]:
    """Wait for the end of a process, strike it as planned, but not after step `last`; its exit code and last fault."""
    plan, fault = [(step, name) for step, name in plan if step < last], ""
    found.memory = []
    while process.is_alive():
        time.sleep(0.1)
        step = step_of(folder)
        training = last <= step < found.steps  # the end loads and writes other things
        if not plan and training and (mb := resident_mb(process)):
            found.memory.append((step, mb))
        if plan and step >= plan[0][0]:
            fault = plan.pop(0)[1]
            strike(fault, process, found)
    process.join()
    assert process.exitcode is not None
    return process.exitcode, fault


def step_of(folder: Path) -> int:
    """The last step that the run has recorded."""
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        return 0
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - 8192))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        return int(record["step"]) if record["phase"] == "train" else 0
    return 0


def resident_mb(process: BaseProcess) -> float | None:
    """Resident memory of a process in MiB; None when it is gone."""
    try:
        text = Path(f"/proc/{process.pid}/statm").read_text()
    except OSError:
        return None
    pages = int(text.split()[1]) if text else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20 if pages else None


def strike(fault: str, process: BaseProcess, found: Soaked) -> None:
    """Let an outside fault happen to a running process."""
    assert process.pid is not None
    found.faults[fault] += 1
    if fault == "stop":
        os.kill(process.pid, signal.SIGTERM)
    elif fault == "full":
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    elif fault == "worker":
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [int(pid) for pid in children if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if workers:
            os.kill(workers[0], signal.SIGKILL)
    else:
        process.kill()


def damage(fault: str, folder: Path) -> None:
    """Damage what a killed run has left, one checkpoint at most."""
    checkpoints = sorted((folder / "checkpoints").glob("step-*"))
    if fault == "half":
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"phase": "train", "st')
    if len(checkpoints) < 2 or fault not in ("flip", "cut"):
        return
    victim = checkpoints[-1] / ("optimizer.pt" if fault == "flip" else "policy.safetensors")
    data = bytearray(victim.read_bytes())
    if fault == "flip":
        data[len(data) // 2] ^= 4
    victim.write_bytes(data if fault == "flip" else data[: len(data) // 2])


def check_account(folder: Path, steps: int) -> dict[str, float]:
    """Check that each step was made once and every prompt and row is accounted for; returns the sums."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    train = [record for record in records if record["phase"] == "train"]
    assert [record["step"] for record in train] == list(range(1, steps + 1))
    sums: Counter[str] = Counter()
    for record in train:
        sums.update({name: n for name, n in record.items() if name.startswith(("rows_", "prompts_"))})
    lost = {kind: sum(sums[f"{kind}_lost/{why}"] for why in (*REASONS, NOT_COMPLETED)) for kind in ("rows", "prompts")}
    assert sums["rows_sampled"] + sums["rows_stored"] == sums["rows_used"] + lost["rows"]
    assert sums["prompts_sampled"] == sums["prompts_trained"] + lost["prompts"]
    state = json.loads((max((folder / "checkpoints").glob("step-*")) / "state.json").read_text())
    warmup = sum(record["phase"] == "warmup" for record in records)
    assert state["source"]["sampled"] == sums["prompts_sampled"] + warmup * 16
    names = ("rows_sampled", "rows_stored", "rows_used", "prompts_sampled", "prompts_trained")
    return {name: n for name, n in sums.items() if name in names or "_lost/" in name}
