"""Faults of the machine in a run: no memory at any call, a clock that jumps, state that a resume forgets."""

from __future__ import annotations

import importlib
import multiprocessing
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner, Result

import kills
import kills_catalogue
from grouprl.cli.app import app

STEPS = 3


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def config_of(home: Path, method: str = "ppo") -> Path:
    home.mkdir(parents=True, exist_ok=True)
    settings = kills_catalogue.settings(method) | {"steps": STEPS}
    path = home / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run leaves that suffers nothing."""
    home = tmp_path_factory.mktemp("whole")
    assert run(config_of(home), "--folder", home / "run").exit_code == 0
    assert sum(norm > 0 for norm in kills_catalogue.gradients(home / "run")) == STEPS
    assert kills.count_tensors(home / "run") > 0
    return kills.evidence(home / "run")


# ── no memory ───────────────────────────────────────────────────────────────────────────────────────────────────────
class Refusal:
    """Raises an error at the n-th call of a function, and never again."""

    def __init__(self, patch: pytest.MonkeyPatch, place: str, number: int, error: Exception) -> None:
        module, name, _ = kills.POINTS[place]
        owner: Any = importlib.import_module(module)
        *outer, last = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        real, self.calls, self.raised = getattr(owner, last), 0, False

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == number:
                self.raised = True
                raise error
            return real(*args, **kwargs)

        patch.setattr(owner, last, wrapped)


SEAMS = [
    ("rollout", 2),
    ("scoring", 2),
    ("judging", 2),
    ("backward", 3),
    ("optimiser step", 15),
    ("before memory", 2),
    ("rollouts written", 2),
    ("half a metrics line", 16),
    ("checkpoint begins", 3),
    ("weights of a checkpoint", 3),
    ("state of a checkpoint", 5),
    ("a file before it is moved", 9),
    ("pruning ends", 2),
    ("evaluation", 1),
    ("phase begins", 1),
    ("ending", 1),
    ("final model", 1),
    ("report", 1),
]
"""A point of the code, and at which of its calls there is no memory."""
TORCH = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried ...")


@pytest.mark.parametrize(("place", "number"), SEAMS, ids=[place for place, _ in SEAMS])
def test_no_memory_at_any_call_is_one_sentence_and_the_run_goes_on(
    place: str, number: int, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = config_of(tmp_path), tmp_path / "run"
    error = TORCH if place in ("backward", "optimiser step") else MemoryError()
    with monkeypatch.context() as patch:
        refusal = Refusal(patch, place, number, error)
        failed = run(config, "--folder", folder)
    assert refusal.raised, f"the run came to '{place}' {refusal.calls} times"
    assert failed.exit_code == 3, failed.output
    assert failed.output.count("error:") == 1
    assert "memory" in failed.output.partition("error:")[2]
    assert "Traceback" not in failed.output
    again = run(folder, "--resume") if (folder / "run.json").exists() else run(config, "--folder", folder)
    assert again.exit_code == 0, again.output
    assert kills.difference(kills.evidence(folder), whole) == []


# ── no memory at any allocation ─────────────────────────────────────────────────────────────────────────────────────
def starved(config: Path, folder: Path, place: str, room: int, said: Path) -> None:
    """Train in this process, which gets no more address space than it has and `room` from some moment on."""
    module, name, _ = kills.POINTS[place]
    owner: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    real = getattr(owner, last)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + room, resource.RLIM_INFINITY))
        return real(*args, **kwargs)

    setattr(owner, last, wrapped)
    ended = run(config, "--folder", folder)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    said.write_text(f"{ended.exit_code}\n{ended.output}")


@pytest.mark.parametrize(
    ("place", "room"), [("rollout", 0), ("backward", 1 << 16), ("state of a checkpoint", 1 << 20), ("scoring", 1 << 22)]
)
def test_no_memory_at_any_allocation_is_a_sentence_or_an_end_and_the_run_goes_on(
    place: str, room: int, whole: dict[str, Any], tmp_path: Path
) -> None:
    """Whichever allocation fails then, in Python or below it, is no choice of ours."""
    config, folder, said = config_of(tmp_path), tmp_path / "run", tmp_path / "said"
    process = multiprocessing.get_context("fork").Process(target=starved, args=(config, folder, place, room, said))
    process.start()
    process.join(300)
    assert process.exitcode is not None
    if said.exists():
        code, output = said.read_text().split("\n", 1)
        assert code in ("0", "3"), output
        assert "Traceback" not in output
        assert output.count("error:") == (code == "3")
    else:
        assert process.exitcode != 0, "the system, or a library, ended it"
    again = run(folder, "--resume") if (folder / "run.json").exists() else run(config, "--folder", folder)
    assert again.exit_code == 0, again.output
    assert kills.difference(kills.evidence(folder), whole) == []


# ── a clock that jumps ──────────────────────────────────────────────────────────────────────────────────────────────
def jumping(real: Callable[[], float], rng: random.Random, *, back: bool) -> Iterator[float]:
    """Yield times that leap by up to a month at every twentieth look, backwards too if `back`."""
    shift = 0.0
    while True:
        if rng.random() < 0.05:
            shift += rng.uniform(-3e6 if back else 0, 3e6)
        yield real() + shift


@pytest.mark.parametrize("seed", [0, 1])
def test_a_clock_that_jumps_changes_nothing(
    seed: int, whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    with monkeypatch.context() as patch:
        for name in ("time", "monotonic", "perf_counter"):
            clock = jumping(getattr(time, name), rng, back=name == "time")
            patch.setattr(time, name, clock.__next__)
        assert run(config_of(tmp_path), "--folder", tmp_path / "run").exit_code == 0
        shutil.rmtree(max((tmp_path / "run" / "checkpoints").iterdir()))
        resumed = run(tmp_path / "run", "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert kills.difference(kills.evidence(tmp_path / "run"), whole) == []


# ── state that a resume forgets ─────────────────────────────────────────────────────────────────────────────────────
def cut_off(home: Path, method: str) -> Path:
    """Make a run, and take its last checkpoint away as if it had been killed before it."""
    assert run(config_of(home, method), "--folder", home / "run").exit_code == 0
    shutil.copytree(home / "run", home / "cut")
    shutil.rmtree(max((home / "cut" / "checkpoints").iterdir()))
    return home / "cut"


@pytest.mark.parametrize(
    ("method", "owner", "name", "shows"),
    [
        ("ppo", torch.optim.Optimizer, "load_state_dict", "optimizer.pt"),
        ("dots", "grouprl.orchestrator.context.SessionContext", "restore", "data.pt"),
        ("ppo", "grouprl.rollout.prompt_stream.PromptStream", "restore", "state"),
    ],
    ids=["optimiser", "memory of parts", "stream of prompts"],
)
def test_a_resume_that_forgets_is_noticed(
    method: str, owner: Any, name: str, shows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison of killed runs sees each kind of state: without it the runs end otherwise, with it alike."""
    folder = cut_off(tmp_path, method)
    forgetful = Path(shutil.copytree(folder, tmp_path / "forgetful"))
    assert run(folder, "--resume").exit_code == 0
    assert kills.difference(kills.evidence(folder), kills.evidence(tmp_path / "run")) == []
    target = f"{owner}.{name}" if isinstance(owner, str) else owner
    replaced = (target, lambda *a, **k: None) if isinstance(owner, str) else (owner, name, lambda *a, **k: None)
    monkeypatch.setattr(*replaced)
    run(forgetful, "--resume")
    assert shows in kills.difference(kills.evidence(forgetful), kills.evidence(tmp_path / "run"))
