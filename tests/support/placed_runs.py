"""A host of workers in this process, which can be lost at any call, and runs of small configurations on it."""

from __future__ import annotations

import io
import json
import pickle
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from safetensors.torch import load_file

from grouprl.config.run import parse_config
from grouprl.orchestrator.on_ray.worker_host import Hello, Kind, Reply, Ticket, WorkerLost, WorkerRoom
from grouprl.training.loop import train


@dataclass(frozen=True)
class Held:
    """A value as another process would read it."""

    pickled: bytes

    def get(self) -> object:
        return pickle.loads(self.pickled)


@dataclass(eq=False)
class _Actor:
    kind: Kind
    number: int
    room: WorkerRoom
    alive: bool = True
    called: int = 0


@dataclass(eq=False)
class _Ticket:
    actor: _Actor
    method: str
    arguments: tuple[object, ...]
    done: Reply | None = None


@dataclass
class HostHere:
    """Does each call when it is waited for; `lose(actor kind, number, method, which call)` says before and after it
    whether the worker is lost at that moment: "before" its work, or with the work "done" and the reply lost."""

    hello: Mapping[Kind, Hello]
    lose: object = None
    hang: set[tuple[Kind, int]] = field(default_factory=set)
    started: list[tuple[Kind, int]] = field(default_factory=list)
    performed: list[tuple[Kind, int, str]] = field(default_factory=list)
    shared: int = 0

    def start(self, kind: Kind, number: int) -> object:
        self.started.append((kind, number))
        return _Actor(kind, number, WorkerRoom(kind, Held(pickle.dumps(self.hello[kind]))))

    def call(self, worker: _Actor, method: str, arguments: tuple[object, ...]) -> Ticket:
        return _Ticket(worker, method, pickle.loads(pickle.dumps(arguments)))

    def ready(self, calls: Sequence[_Ticket], seconds: float) -> list[Ticket]:
        return [call for call in calls if not call.actor.alive or (call.actor.kind, call.actor.number) not in self.hang]

    def reply(self, call: _Ticket) -> Reply:
        actor = call.actor
        if not actor.alive:
            raise WorkerLost("it was killed")
        moment = self.lose(actor, call) if callable(self.lose) else ""
        if moment != "before":
            actor.called += 1
            found = actor.room.call(call.method, call.arguments)
            self.performed.append((actor.kind, actor.number, call.method))
            if not moment:
                return pickle.loads(pickle.dumps(found))
        actor.alive = False
        raise WorkerLost("it was killed")

    def end(self, worker: _Actor) -> None:
        worker.alive = False

    def share(self, value: object) -> Held:
        self.shared += 1
        return Held(pickle.dumps(value))

    def close(self) -> None:
        pass


def at_random(seed: int, share: float):
    """Lose a worker at this share of the calls, half of them with the work done."""
    rng = random.Random(seed)

    def lose(actor: _Actor, call: _Ticket) -> str:
        if call.method == "present" or rng.random() >= share:
            return ""
        return rng.choice(["before", "done"])

    return lose


SIZE = {"hidden": 32, "layers": 1, "heads": 2, "intermediate": 32}
REWARD = """def digits(completion, **_):
    return min(1.0, sum(c in "0123" for c in completion) / 6)
"""
TIMING = ("seconds", "tokens_per_second", "memory_mb")
PLACED = ("workers_restarted", "work_redone")


def run_config(folder: Path, cluster: Mapping[str, object], **changes: object) -> dict[str, Any]:
    """A run of three steps whose rewards vary, with a reward of its own in `folder`."""
    (folder / "score.py").write_text(REWARD)
    config: dict[str, Any] = {
        "task": "addition",
        "model": {"name": "tiny", "tiny": SIZE},
        "method": "grpo",
        "reward": {"function": f"{folder / 'score.py'}:digits", "workers": 0},
        "steps": 3,
        "seed": 5,
        "warmup": {"steps": 0},
        "optim": {"lr": 1e-2},
        "batch": {"prompts": 4, "group_size": 4, "minibatches": 2},
        "eval": {"prompts": 4, "final_prompts": 8, "samples": 2, "k": [1]},
        "run": {"threads": 1, "checkpoint_every": 1},
        "environment": {"workers": 0},
        "cluster": dict(cluster),
    }
    return config | changes


def launch(folder: Path, config: Mapping[str, object], *, resume: bool = False) -> str:
    """Run a configuration in `folder`; return what it printed."""
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    train(parse_config(config), folder=folder, resume=resume, console=console)
    return printed.getvalue()


def records(folder: Path) -> list[dict[str, Any]]:
    """The run's metrics, without clocks and what became of workers."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    left_out = (*TIMING, *PLACED)
    return [{name: x for name, x in line.items() if not name.startswith(left_out)} for line in lines]


def restarts(folder: Path) -> dict[str, float]:
    """How many workers were replaced in a run, and how much work was done again."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {name: sum(line.get(name, 0.0) for line in lines) for name in PLACED}


def same_run(one: Path, other: Path) -> None:
    """Hold two runs to the same bytes: final weights, optimiser, rewards, every token, the account."""
    assert records(one) == records(other)
    for name in ("model/model.safetensors", "model/tokenizer.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    rollouts = sorted(path.name for path in (one / "rollouts").iterdir())
    assert rollouts == sorted(path.name for path in (other / "rollouts").iterdir())
    assert rollouts
    for name in rollouts:
        assert pq.read_table(one / "rollouts" / name).equals(pq.read_table(other / "rollouts" / name)), name
    newest = [max((folder / "checkpoints").iterdir(), key=lambda path: path.name) for folder in (one, other)]
    a, b = (load_file(folder / "policy.safetensors") for folder in newest)
    assert a.keys() == b.keys()
    assert all(a[name].equal(b[name]) for name in a)


def closed_account(folder: Path) -> None:
    """Hold a run's account to the rule that nothing sampled is lost or used twice."""
    for line in (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()):
        if line["phase"] == "train":
            lost = sum(n for name, n in line.items() if name.startswith("rows_lost/"))
            assert line["rows_sampled"] + line["rows_stored"] == line["rows_used"] + lost
            assert line["rows_sampled"] == 16
