"""What the tests of whole asynchronous runs share: a small run, its records, rewards that alter the sampler's process.

A sampler takes seconds to import what it needs. Where its start is not what is tested, `warm` forks it from a process
that has done so.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from grouprl.config.run import parse_config
from grouprl.orchestrator.asynchronous import sampler_process
from grouprl.orchestrator.asynchronous.sampler_process import SamplerProcess
from grouprl.processes.child_process import ChildProcess, LoggedProcess
from grouprl.records.tokens import Tokens
from grouprl.training.export import load_trained
from grouprl.training.loop import train
from kills import FORKS

OF_ASYNC = ("staleness", "spanning", "groups_ahead", "canary", "seconds", "tokens_per_second", "memory_mb")


def run_config(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "task": {"name": "reverse", "length": 2},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": "grpo",
        "steps": 6,
        "seed": 3,
        "warmup": {"steps": 0},
        "batch": {"prompts": 4, "group_size": 4, "minibatches": 2},
        "optim": {"lr": 1e-3, "warmup_steps": 2},
        "eval": {"every": 0, "final_prompts": 8},
        "run": {"threads": 1, "async_steps": 2},
    }
    return config | changes


def launch(folder: Path, **changes: Any) -> Path:
    console = Console(file=io.StringIO(), width=100)
    return train(parse_config(run_config(**changes)), folder=folder, console=console).folder


def records(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == "train"]


def rollouts(folder: Path) -> list[dict[str, Any]]:
    """All stored rows; groups are counted from the first one behind the warm-up."""
    found = [row for path in sorted((folder / "rollouts").iterdir()) for row in pq.read_table(path).to_pylist()]
    first = min(row["group"] for row in found)
    return [{**row, "group": row["group"] - first} for row in found]


def evidence(folder: Path) -> dict[str, Any]:
    """What a run leaves, without what only asynchronous runs record."""
    last = max((folder / "checkpoints").iterdir())
    return {
        "metrics": [{k: v for k, v in r.items() if not k.startswith(OF_ASYNC)} for r in records(folder)],
        "rollouts": [{k: v for k, v in row.items() if k != "version"} for row in rollouts(folder)],
        "weights": (folder / "model" / "model.safetensors").read_bytes(),
        "policy": (last / "policy.safetensors").read_bytes(),
        "optimizer": next(p for p in sorted(last.iterdir()) if p.name.startswith("optimizer")).read_bytes(),
    }


REWARDS = """
import os, sys, time, zlib
from grouprl.orchestrator.asynchronous.resumable_sampling import Follower
from grouprl.policy.language.causal_lm import CausalPolicy

ASKED = []

def fails_on_some(completion, answer, **_):
    if answer < "c":
        raise ZeroDivisionError("none below c")
    return float(completion == answer)

def coin(completion, answer, **_):
    return float(zlib.crc32(f"{answer}/{completion}".encode()) & 1)

def writer(completion, answer, **_):
    return {"reward": coin(completion, answer), f"by/{os.getpid()}": 0.0}

def coin_or_failure(completion, answer, **_):
    return fails_on_some(completion, answer) if answer < "c" else coin(completion, answer)

def dies(completion, answer, **_):
    if IN_SAMPLER:
        print("last words")
        os._exit(7)
    return 0.0

IN_SAMPLER = sys.argv[0].endswith("sampler_main")
if IN_SAMPLER and os.environ.get("TAMPER") == "stale":
    taken = CausalPolicy.load_trainable_state
    def once(self, state, seen=[]):
        if not seen:
            taken(self, state)
        seen.append(1)
    CausalPolicy.load_trainable_state = once
if IN_SAMPLER and os.environ.get("TAMPER") == "slow":
    looked = Follower.outdated.fget
    def slowly(self):
        time.sleep(0.003)
        return looked(self)
    Follower.outdated = property(slowly)
"""


def plain_reward(path: Path, name: str) -> dict[str, Any]:
    return {"function": f"{path}:{name}", "workers": 0, "self_test": False, "max_failed_fraction": 1.0}


def assert_own_versions(folder: Path, rows: list[dict[str, Any]], steps: int) -> None:
    """Each token has the log-prob of the checkpoint of its version, and some have not that of another."""
    tokens = Tokens.of([row["prompt_ids"] for row in rows], [row["completion_ids"] for row in rows])
    version_bt = _laid_out([row["version"] for row in rows], -1)
    sampled_bt = _laid_out([row["behavior_logp"] for row in rows], 0.0)
    gaps = []
    for version in range(steps):
        logp_bt = load_trained(folder, version).policy.logp(tokens)
        own_bt, others_bt = version_bt == version, (version_bt >= 0) & (version_bt != version)
        torch.testing.assert_close(sampled_bt[own_bt], logp_bt[own_bt], rtol=0, atol=1e-4)
        gaps.append(float((sampled_bt - logp_bt)[others_bt].abs().max()))
    assert max(gaps) > 1e-2


def _laid_out(rows: list[list[float]], fill: float) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])


class _Forked:
    """Stands for the `LoggedProcess` of a sampler: the same function, in a process with the imports done."""

    def __init__(self, main: Callable[..., object], *words: object, files: Sequence[int]) -> None:
        lifeline, self._lifeline = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        kept = self._kept((lifeline, *files, self._log.fileno()))
        given = (main, [str(lifeline), *map(str, words)], kept, os.getcwd(), dict(os.environ))
        self._process = self._forks().Process(target=_sampler, args=given)
        self._process.start()
        os.close(lifeline)
        self.pid = self._process.pid

    last_output = LoggedProcess.last_output

    def end(self) -> None:
        ChildProcess.end(self)  # type: ignore[arg-type]
        self._log.close()

    def _forks(self) -> Any:
        return FORKS

    def _kept(self, numbers: tuple[int, ...]) -> _Descriptors:
        return _Descriptors(numbers)

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


class _Descriptors:
    """Open files that travel to a forked process, where they get the same numbers."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        self._sent: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "_sent": [reduction.DupFd(fd) for fd in self.numbers]}

    def take(self) -> None:
        """Put the files where they are expected."""
        apart = [fcntl.fcntl(sent.detach(), fcntl.F_DUPFD, 500) for sent in self._sent]
        for fd, number in zip(apart, self.numbers, strict=True):
            os.dup2(fd, number)
            os.close(fd)


def _sampler(
    main: Callable[..., object], words: list[str], descriptors: _Descriptors, folder: str, environment: dict[str, str]
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.update(environment)
    descriptors.take()
    for ours in (1, 2):
        os.dup2(descriptors.numbers[-1], ours)
    sys.argv = [main.__module__, *words]
    main(*words)


class _ForkedHere(_Forked):
    """The same from a trainer that has the imports done itself; files keep their numbers."""

    def _forks(self) -> Any:
        return multiprocessing.get_context("fork")

    def _kept(self, numbers: tuple[int, ...]) -> _Descriptors:
        return _Kept(numbers)


class _Kept(_Descriptors):
    def take(self) -> None:
        """Close all others, as a process of its own does not have them: the lifeline must have one end only."""
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd > 2 and fd not in self.numbers:
                with contextlib.suppress(OSError):
                    os.close(fd)


def warm_here() -> None:
    """Let the samplers of this process, a trainer's, be forked from it."""
    sampler_process.LoggedProcess = _ForkedHere  # type: ignore[assignment,misc]


def warm(patch: pytest.MonkeyPatch) -> None:
    """Let samplers be forked."""
    patch.setattr(sampler_process, "LoggedProcess", _Forked)


def watched(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that the ids of samplers are written to."""
    pids: list[int] = []
    begin = SamplerProcess.__init__

    def noted(self: SamplerProcess, *given: Any) -> None:
        begin(self, *given)
        pids.append(self._child.pid)

    patch.setattr(SamplerProcess, "__init__", noted)
    return pids


def write_rewards(folder: Path) -> Path:
    """Write the rewards to a file of their own."""
    path = folder / "my_rewards.py"
    path.write_text(REWARDS)
    return path


def alive(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True
