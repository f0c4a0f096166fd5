"""Runs that are killed with SIGKILL at exact or random moments, and what they leave at their end.

A moment is a point of the code and a place in the run (phase and step) from which on the process kills itself when it
comes to that point: the code of the package knows nothing of it. The point `random` is a moment in time instead.
"""

from __future__ import annotations

import functools
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import yaml

import toy_envs

TIMING = ("seconds", "tokens_per_second", "memory_mb")

TINY = {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}}

METHODS: dict[str, Any] = {
    "dapo": {"name": "dapo", "max_rounds": 3},
    "ppo": "ppo",
    "dots": {"name": "dots", "reference": 4},
    "hapo": "hapo",
    "skywork_r1v2": "skywork_r1v2",
    "remix": {"name": "remix", "reincarnation": 3},
    "dvpo": {"name": "dvpo", "pretraining_steps": 4},
    "trpo": "trpo",
    "lopti": "lopti",
    "together": {
        "base": "grpo",
        "curriculum": "variance_sampling",
        "allocation": "knapsack",
        "sampling": "length_budget",
        "augment": ["uncertainty_rounds"],
    },
    "gigpo": "gigpo",
    "keys": "gigpo",
}
"""State of every kind: refill, critics, curricula, budgets, stores, moving references, preludes, optimiser steps of
their own, episodes."""

ONE_STEP = ("trpo",)

POINTS: dict[str, tuple[str, str, bool]] = {
    "rollout": ("grouprl.rollout.local.sampler", "LocalSampler.sample", False),
    "episodes": ("grouprl.rollout.kinds.text_episodes", "play", False),
    "scoring": ("grouprl.rollout.row_source", "score", False),
    "judging": ("grouprl.algorithms.method", "Method.compute_advantages", True),
    "backward": ("grouprl.training.update", "accumulate", True),
    "optimiser step": ("torch.optim", "AdamW.step", True),
    "before memory": ("grouprl.training.loop", "remember", False),
    "after memory": ("grouprl.training.loop", "remember", True),
    "rollouts written": ("grouprl.monitor.run_record", "RunRecord.rollout", True),
    "half a metrics line": ("grouprl.storage.run_folder", "RunFolder.append_metrics", False),
    "after a metrics line": ("grouprl.storage.run_folder", "RunFolder.append_metrics", True),
    "checkpoint begins": ("grouprl.training.session", "save_checkpoint", False),
    "weights of a checkpoint": ("grouprl.storage.checkpoint", "save_file", True),
    "state of a checkpoint": ("grouprl.storage.checkpoint", "save_state", True),
    "checkpoint ends": ("grouprl.training.session", "save_checkpoint", True),
    "pruning ends": ("grouprl.training.session", "prune", True),
    "a file before it is moved": ("os", "replace", False),
    "a file after it was moved": ("os", "replace", True),
    "a folder being removed": ("shutil", "rmtree", False),
    "on disk": ("os", "fsync", True),
    "rewinding": ("grouprl.storage.run_folder", "RunFolder.rewind", True),
    "evaluation": ("grouprl.training.loop", "evaluate_rows", False),
    "evaluated": ("grouprl.training.loop", "evaluate_rows", True),
    "before.json": ("grouprl.training.loop", "write_before", True),
    "phase begins": ("grouprl.training.session", "Session.begin", True),
    "pretrain": ("grouprl.training.session", "Session.pretraining_pieces", True),
    "ending": ("grouprl.training.loop", "conclude", False),
    "final model": ("grouprl.policy.language.causal_lm", "CausalPolicy.save", True),
    "report": ("grouprl.training.ending", "write_report", False),
    "reported": ("grouprl.training.ending", "write_report", True),
}
"""Where a process can be killed: module, name in it, and whether after the call rather than before it."""

PHASES = ("begin", "warmup", "pretraining", "train")

Place = tuple[int, int]
"""Number of the phase, finished steps of it."""


@dataclass(frozen=True)
class Moment:
    """The first arrival at a point from `place` on, and `skip` arrivals later; 'random': after `skip` seconds there."""

    point: str
    place: Place
    skip: float = 0


def settings(name: str) -> dict[str, Any]:
    """The configuration of the run of one of METHODS."""
    config: dict[str, Any] = {
        "task": {"name": "reverse", "length": 2},
        "data": {"prompts": 12},
        "model": TINY,
        "method": METHODS[name],
        "steps": 5,
        "seed": 3,
        "warmup": {"steps": 40, "batch": 16, "warmup_steps": 2, "lr": 1e-2},
        "batch": {"prompts": 4, "group_size": 4, "minibatches": 1 if name in ONE_STEP else 2},
        "optim": {"lr": 1e-3, "warmup_steps": 2},
        "eval": {"every": 2, "prompts": 4, "final_prompts": 8},
        "run": {"checkpoint_every": 2, "keep": 2, "threads": 1},
    }
    if name == "gigpo":
        config |= {"task": f"{toy_envs.__file__}:AskTask", "data": {}}
    if name == "keys":
        config |= {"task": "keys", "data": {}}
    return config


def launch(config: Path, folder: Path, moment: Moment | None = None, count: Path | None = None) -> BaseProcess:
    """Begin or go on with a run in a process that has its imports done; it is killed at `moment`."""
    process = FORKS.Process(target=_child, args=(config, folder, moment, count))
    process.start()
    return process


FORKS: Any = multiprocessing.get_context("forkserver")
"""Processes that have their imports done."""
FORKS.set_forkserver_preload(
    [
        "grouprl.training.loop",
        "grouprl.policy.language.tiny",
        "grouprl.methods",
        "transformers.models.llama.modeling_llama",
        "pyarrow.parquet",
        "torch._dynamo",
        "transformers.generation",
        "grouprl.plan.plan",
        "grouprl.view.report",
        "grouprl.policy.language.causal_lm",
        "grouprl.orchestrator.make_policy",
    ]
)


def _child(config: Path, folder: Path, moment: Moment | None, count: Path | None) -> None:
    from grouprl.config.run import load_config
    from grouprl.training.loop import train

    with folder.with_suffix(".log").open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    watch = _Watch(moment)
    _trap("grouprl.training.session", "Session.__init__", True, watch.see)
    points = () if moment is None and count is None else POINTS if moment is None or moment.point == "random" else None
    for point in (moment.point,) if points is None and moment is not None else points or ():
        _trap(*POINTS[point], functools.partial(watch.arrive, point))
    resume = (folder / "config.yaml").is_file()
    summary = train(load_config(str(config)), folder=folder, resume=resume)
    if count is not None:
        count.write_text(json.dumps(watch.arrivals))
    sys.stdout.flush()
    os._exit(130 if summary.interrupted else 0)


class _Watch:
    """Knows where the run is, notes the arrivals at points, and kills the process at its moment."""

    def __init__(self, moment: Moment | None) -> None:
        self.moment, self.session, self.arrivals = moment, None, []
        self.skipped: float = 0

    def see(self, session: Any, *args: Any) -> None:
        self.session = session

    def place(self) -> Place:
        if self.session is None:
            return 0, 0
        return PHASES.index(self.session.phase), self.session.step

    def arrive(self, point: str, *args: Any) -> None:
        place, moment = self.place(), self.moment
        self.arrivals.append((point, place))
        if moment is None or place < moment.place:
            return
        if moment.point == "random" and not self.skipped:
            self.skipped = 1
            threading.Timer(moment.skip, _die).start()
        elif moment.point == point and self.skipped >= moment.skip:
            _leave_halves(point, *args)
            _die()
        elif moment.point == point:
            self.skipped += 1


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _leave_halves(point: str, *args: Any) -> None:
    if point == "half a metrics line":
        with args[0].metrics.open("a") as file:
            file.write('{"phase": "train", "step": 1, "rew')
    if point == "a folder being removed":
        first = next((path for path in Path(args[0]).iterdir() if path.is_file()), None)
        if first is not None:
            first.unlink()


def _trap(module: str, name: str, after: bool, act: Callable[..., None]) -> None:
    """Have `act` called whenever the process comes to a function, or has just left it."""
    owner: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    real = getattr(owner, last)

    @functools.wraps(real)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not after:
            act(*args)
        result = real(*args, **kwargs)
        if after:
            act(*args)
        return result

    setattr(owner, last, wrapped)


def run_whole(name: str, home: Path) -> tuple[Path, list[tuple[str, Place]], float]:
    """Make the uninterrupted run `home`/whole; its configuration, its arrivals at points in order, and its seconds."""
    home.mkdir(parents=True, exist_ok=True)
    config, count, begin = home / "run.yaml", home / "arrivals.json", time.perf_counter()
    config.write_text(yaml.safe_dump(settings(name)))
    finish(launch(config, home / "whole", count=count), home / "whole")
    arrivals = [(point, (phase, step)) for point, (phase, step) in json.loads(count.read_text())]
    return config, arrivals, time.perf_counter() - begin


def finish(process: BaseProcess, folder: Path) -> None:
    """Wait for a run to end well."""
    process.join(timeout=300)
    assert process.exitcode == 0, folder.with_suffix(".log").read_text()[-3000:]


def moments(arrivals: list[tuple[str, Place]], rng: random.Random, count: int, seconds: float) -> list[Moment]:
    """Sample `count` moments in the order of the run, of as many different points as there are; a quarter is in
    time."""
    timed = count // 4
    points = sorted({point for point, _ in arrivals})
    chosen = rng.sample(points, min(count - timed, len(points)))
    exact = [_exact(arrivals, rng, point) for point in chosen]
    sampled = [Moment("random", _place(arrivals, rng), rng.uniform(0, seconds / 12)) for _ in range(timed)]
    order = {point: number for number, (point, _) in enumerate(arrivals)}
    return sorted([*exact, *sampled], key=lambda moment: (moment.place, order.get(moment.point, 0)))


def _place(arrivals: list[tuple[str, Place]], rng: random.Random, point: str | None = None) -> Place:
    """Sample a place at which the run comes to a point (None: any): each of its phases is equally likely."""
    places = sorted({place for at, place in arrivals if point in (None, at)})
    phase = rng.choice(sorted({phase for phase, _ in places}))
    return rng.choice([place for place in places if place[0] == phase])


def _exact(arrivals: list[tuple[str, Place]], rng: random.Random, point: str) -> Moment:
    """Sample a place of a point, and whether the first or second arrival there, if the run comes to it twice."""
    place = _place(arrivals, rng, point)
    later = sum(at == point and where >= place for at, where in arrivals)
    return Moment(point, place, rng.choice((0, 0, 1)) if later > 1 else 0)


def run_killed(config: Path, home: Path, plan: list[Moment]) -> tuple[list[Moment], list[Path]]:
    """Begin a run, kill it at each moment of the plan in turn, going on after each, then let it end.

    Returns the moments that came, and the folders of the runs: where a run ends before its moment, the next one begins.
    """
    came: list[Moment] = []
    folders = [home / "killed-0"]
    for moment in plan:
        process = launch(config, folders[-1], moment)
        process.join(timeout=300)
        if process.exitcode == -signal.SIGKILL:
            came.append(moment)
        else:
            finish(process, folders[-1])
            folders.append(home / f"killed-{len(folders)}")
    finish(launch(config, folders[-1]), folders[-1])
    return came, folders


def differences(home: Path, folders: list[Path]) -> list[str]:
    """What differs in killed runs from the uninterrupted one in `home`."""
    whole = evidence(home / "whole")
    return [f"{folder.name}: {name}" for folder in folders for name in difference(whole, evidence(folder))]


def evidence(folder: Path) -> dict[str, Any]:
    """Everything a run leaves that must not depend on interruptions."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found: dict[str, Any] = {"metrics": [_timeless(line) for line in lines]}
    summary = _timeless(json.loads((folder / "summary.json").read_text()))
    found["summary"] = {**summary, "after": _timeless(summary["after"]), "before": _timeless(summary["before"])}
    last = max((folder / "checkpoints").glob("step-*"))
    state = json.loads((last / "state.json").read_text())
    found["state"] = {k: v for k, v in state.items() if k not in ("elapsed", "metrics_size")}
    found |= {name: plain(torch.load(last / name, weights_only=True)) for name in ("optimizer.pt", "data.pt")}
    files = [
        last / "policy.safetensors",
        *sorted((folder / "rollouts").iterdir()),
        *sorted(path for path in (folder / "model").rglob("*") if path.is_file()),
        *sorted(folder.glob("reference*.safetensors")),
        *(folder / name for name in ("samples.json", "health.json", "config.yaml")),
    ]
    found |= {str(path.relative_to(folder)): path.read_bytes() for path in files}
    found["before.json"] = _timeless(json.loads((folder / "before.json").read_text())["record"])
    found["checkpoints"] = sorted(path.name for path in (folder / "checkpoints").iterdir())
    found["left over"] = sorted(path.name for path in folder.rglob(".*") if path.name != ".lock")
    return found


def plain(value: Any) -> Any:
    """Containers and tensors as what can be compared: equal exactly when every bit is."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return [(plain(key), plain(each)) for key, each in value.items()]
    return [type(value).__name__, *map(plain, value)] if isinstance(value, list | tuple) else (value, repr(value))


def _timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if not name.startswith(TIMING)}


def difference(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of what differs."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def clear(home: Path) -> None:
    """Remove the runs of a method."""
    shutil.rmtree(home, ignore_errors=True)


def count_tensors(folder: Path) -> int:
    """Return how many tensors the optimiser of a run's last checkpoint remembers that are not all zero."""
    last = max((folder / "checkpoints").glob("step-*"))
    state = torch.load(last / "optimizer.pt", weights_only=True)["state"]
    return sum(bool(value.any()) for each in state.values() for value in each.values() if torch.is_tensor(value))
