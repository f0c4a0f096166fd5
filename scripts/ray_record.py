"""Measure runs on a real Ray of three logical nodes of this machine: what placing costs, and what each kill costs.

    python scripts/ray_record.py     starts a Ray of its own, and ends it

It writes docs/ray.json; docs/ray.md tells of it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")  # it ends workers where other programs fill the memory

import ray
import torch

from finished import finished
from grouprl.config.run import parse_config
from grouprl.orchestrator.on_ray.placement import RunPlacement
from grouprl.orchestrator.resolve import resolve

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from learner_runs import kill, ranks, same_results, started, steps_done, until
from placed_runs import restarts, same_run
from ray_nodes import STORE, three_nodes

RESULT = Path(__file__).parent.parent / "docs" / "ray.json"
ROUNDS, STEPS, CALLS = 1, 8, 300
ROWS: dict[str, Any] = {
    "task": "addition",
    "model": "tiny",
    "steps": STEPS,
    "seed": 1,
    "warmup": {"steps": 10, "batch": 16},
    "batch": {"prompts": 16, "group_size": 8, "minibatches": 2},
    "eval": {"prompts": 8, "final_prompts": 8, "samples": 2, "k": [1]},
    "run": {"threads": 1, "checkpoint_every": 2},
}
ACTED: dict[str, Any] = ROWS | {
    "task": {"name": "guess", "turns": 4},
    "batch": {"prompts": 8, "group_size": 8, "minibatches": 2},
}
JOBS = {"completions": ROWS, "episodes": ACTED}


def step_seconds(folder: Path) -> list[float]:
    """Seconds of each training step but the first, in which workers start."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    at = [line["seconds"] for line in lines if line["phase"] == "train"]
    return [b - a for a, b in itertools.pairwise(at)]


def run(folder: Path, config: dict[str, Any], cluster: dict[str, Any]) -> list[float]:
    """Train in `folder`, and return the seconds of its steps."""
    shutil.rmtree(folder, ignore_errors=True)
    finished(config | {"cluster": cluster}, folder)
    return step_seconds(folder)


def overhead(folder: Path, address: str) -> dict[str, Any]:
    """Seconds of a step with and without Ray, in turns; and whether both runs end with the same bytes."""
    found: dict[str, Any] = {}
    for name, samplers in (("completions", 1), ("completions", 2), ("episodes", 2)):
        here, there = [], []
        for _ in range(ROUNDS):
            here += run(folder / "here", JOBS[name], {"samplers": samplers})
            there += run(folder / "there", JOBS[name], {"ray": address, "samplers": samplers})
            same_run(folder / "here", folder / "there")
        seconds = {"without": statistics.median(here), "with": statistics.median(there)}
        ratio = seconds["with"] / seconds["without"]
        found[f"{name}, {samplers} sampler{'s' * (samplers > 1)}"] = seconds | {"ratio": ratio, "same_bytes": True}
        print(name, samplers, seconds, ratio, flush=True)
    return found


def calls(address: str) -> dict[str, float]:
    """Milliseconds of a call that does nothing, and of handing over weights of 100 MB to two samplers."""
    placement = RunPlacement(resolve(parse_config(ROWS | {"cluster": {"ray": address, "samplers": 2}})), "cpu")
    try:
        pool = placement.pools["sampler"]
        pool.start()
        while len(pool.pids) < pool.count:
            pool.wait(0.1)
        begun = time.perf_counter()
        for _ in range(CALLS):
            call = pool.send(0, "close_session", 0)
            while call not in pool.wait():
                pass
        each = (time.perf_counter() - begun) / CALLS
        weights = {"w": torch.zeros(25_000_000)}
        begun = time.perf_counter()
        placement.host.share({name: tensor.numpy() for name, tensor in weights.items()})
        return {"call_ms": 1000 * each, "share_100MB_ms": 1000 * (time.perf_counter() - begun)}
    finally:
        placement.close()


def kills(folder: Path, address: str) -> dict[str, Any]:
    """Kill one worker of each kind in the middle of a run: what was done again, and that nothing else changed."""
    found = {}
    for name, config, kind in (
        ("completions", ROWS, "sampler"),
        ("completions", ROWS, "reward"),
        ("episodes", ACTED, "environment"),
    ):
        run(folder / "here", config, {"samplers": 2})
        with killing(kind):
            seconds = run(folder / "there", config, {"ray": address, "samplers": 2})
        same_run(folder / "here", folder / "there")
        told = {"same_bytes": True, "step_seconds": statistics.median(seconds), "longest_step": max(seconds)}
        found[f"{kind} of {name}"] = told | restarts(folder / "there")
        print(kind, found[f"{kind} of {name}"], flush=True)
    return found


@contextlib.contextmanager
def killing(kind: Any) -> Any:
    """Meanwhile, SIGKILL the first worker of a kind after the fourth step."""
    metrics, steps = RunPlacement.metrics, []

    def counted(self: RunPlacement) -> dict[str, float]:
        steps.append(1)
        if len(steps) == 4:
            pid = self.pools[kind].pids[0]
            threading.Timer(0.05, os.kill, (pid, signal.SIGKILL)).start()
        return metrics(self)

    RunPlacement.metrics = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        RunPlacement.metrics = metrics  # type: ignore[method-assign]


def learners(folder: Path, address: str) -> dict[str, Any]:
    """Seconds of a step of two learners, without Ray, with it, and with it while rank 1 is killed; the same bytes."""
    medians, placed = {}, {"ray": address, "learners": 2, "samplers": 2}
    for name, cluster in (("without", {"learners": 2, "samplers": 2}), ("with", placed), ("killed", placed)):
        at = folder / f"learners-{name}"
        at.mkdir()
        driver = started(at, ROWS | {"cluster": cluster, "run": {"threads": 1, "checkpoint_every": 1}})
        lost = 0.0
        if name == "killed":
            until(driver, lambda at=at: steps_done(at) >= 4 and len(ranks(at)) == 2)
            done, begun = steps_done(at), time.perf_counter()
            kill(ranks(at)[1])
            until(driver, lambda at=at, done=done: steps_done(at) > done + 1)
            lost = time.perf_counter() - begun
        if driver.wait() != 0:
            raise RuntimeError((at / "said").read_text())
        medians[name] = statistics.median(step_seconds(at / "run"))
    for name in ("with", "killed"):
        same_results(folder / "learners-without" / "run", folder / f"learners-{name}" / "run")
    found = {"step_seconds": medians, "ratio": medians["with"] / medians["without"], "same_bytes": True}
    print("learners", found, lost, flush=True)
    return found | {"seconds_until_two_steps_after_a_kill": lost}


def main() -> None:
    """Measure, and write the record."""
    record: dict[str, Any] = {
        "versions": {"ray": ray.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {"cores": os.cpu_count(), "load_before": os.getloadavg()[0], "nodes": "0 + 4 + 4 logical CPUs"},
        "rounds": ROUNDS,
        "steps": STEPS,
    }
    with three_nodes(cpus=4, store=3 * STORE) as cluster, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record["calls"] = calls(cluster.address)
        record["kills"] = kills(folder, cluster.address)
        record["overhead"] = overhead(folder, cluster.address)
        record["learners"] = learners(folder, cluster.address)
    record["machine"]["load_after"] = os.getloadavg()[0]
    RESULT.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
