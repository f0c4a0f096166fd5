"""Whole runs that draw ahead: exact at a bound of zero, bounded, watched, and ended with their sampler."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

import toy_envs
from grouprl import InputError, RunError
from grouprl.overlap.ahead import Ahead
from grouprl.overlap.process import SamplerProcess
from grouprl.train.config import parse_config
from grouprl.train.loop import train

OF_ASYNC = ("staleness", "spanning", "groups_ahead", "canary", "seconds", "tokens_per_second", "memory_mb")


def run_config(**changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "task": {"name": "reverse", "length": 2},
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "method": "grpo",
        "steps": 6,
        "seed": 3,
        "warmup": {"steps": 60, "batch": 32, "rise": 2, "lr": 1e-2},
        "batch": {"prompts": 4, "group": 4, "minibatches": 2},
        "optim": {"lr": 1e-3, "rise": 2},
        "eval": {"every": 0, "final_questions": 8},
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
import os, sys, zlib
from grouprl.policy.causal_lm import CausalPolicy

ASKED = []

def fails_on_some(completion, answer, **_):
    if answer < "c":
        raise ZeroDivisionError("none below c")
    return float(completion == answer)

def coin(completion, answer, **_):
    return float(zlib.crc32(f"{answer}/{completion}".encode()) & 1)

def dies(completion, answer, **_):
    if IN_SAMPLER:
        print("last words")
        os._exit(7)
    return 0.0

IN_SAMPLER = sys.argv[0].endswith("child.py")
if IN_SAMPLER and os.environ.get("TAMPER") == "stale":
    taken = CausalPolicy.load_trainable_state
    def once(self, state, seen=[]):
        if not seen:
            taken(self, state)
        seen.append(1)
    CausalPolicy.load_trainable_state = once
if IN_SAMPLER and os.environ.get("TAMPER") == "damage":
    taken = CausalPolicy.load_trainable_state
    def shifted(self, state):
        name = next(n for n in state if "norm" in n)
        taken(self, {**state, name: state[name] * 1.001})
    CausalPolicy.load_trainable_state = shifted
"""


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "my_rewards.py"
    path.write_text(REWARDS)
    return path


def plain_reward(path: Path, name: str) -> dict[str, Any]:
    return {"function": f"{path}:{name}", "workers": 0, "self_test": False, "max_failed_fraction": 1.0}


@pytest.mark.parametrize("method", ["grpo", {"name": "dapo", "max_rounds": 3}, "remax"])
def test_a_bound_of_zero_is_the_synchronous_run_to_the_bit(
    method: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole machinery, sampler process and shared weights, with nothing drawn ahead: the same bytes."""
    changes: dict[str, Any] = {"method": method, "run": {"threads": 1}, "steps": 4}
    if method == "remax":
        changes["batch"] = {"prompts": 4, "group": 4}
    plain = launch(tmp_path / "plain", **changes)
    monkeypatch.setattr("grouprl.train.session.runs_ahead", lambda config: True)
    apart = launch(tmp_path / "apart", **changes)
    assert all(row["version"] is None for row in rollouts(plain))
    for row in rollouts(apart):
        assert set(row["version"]) == {row["step"] - 1}
    assert {r["staleness_max"] for r in records(apart) if "staleness_max" in r} == {0.0}
    assert evidence(apart) == evidence(plain)


def test_answers_are_as_old_as_the_bound_allows_and_no_older(tmp_path: Path, rewards: Path) -> None:
    folder = launch(tmp_path / "run", steps=8, reward=plain_reward(rewards, "coin"))
    found = records(folder)
    assert [r["step"] for r in found] == list(range(1, 9))
    assert all(r["staleness_max"] <= 2 for r in found)
    assert max(r["staleness_max"] for r in found) >= 1, "something was drawn ahead"
    assert all(sum(v for k, v in r.items() if k.startswith("staleness/")) == pytest.approx(1) for r in found)
    assert [r["groups_ahead"] for r in found][-3:] == [8.0, 4.0, 0.0]
    assert any("kl_behavior" in r for r in found), "old log-probs of older answers are the trainer's own"
    rows = rollouts(folder)
    assert len({(row["group"], row["answer"]) for row in rows}) == len(rows) == 8 * 16
    assert [row["group"] for row in rows] == [i // 4 for i in range(8 * 16)], "trained in the order asked"
    for row in rows:
        assert len(row["version"]) == len(row["completion_ids"])
        assert 0 <= row["step"] - 1 - min(row["version"]) <= 2
        assert row["version"] == sorted(row["version"])


def test_refill_ahead_trains_on_whole_wanted_groups(tmp_path: Path) -> None:
    folder = launch(tmp_path / "run", method={"name": "dapo", "max_rounds": 3}, run={"threads": 1, "async_steps": 1})
    rows = rollouts(folder)
    assert all(r["staleness_max"] <= 1 for r in records(folder) if "staleness_max" in r)
    assert sorted({row["group"] for row in rows}) == list(range(len({row["group"] for row in rows}))), "none is skipped"
    used: dict[int, set[bool]] = {}
    for row in rows:
        used.setdefault(row["group"], set()).add(row["used"])
    assert all(len(states) == 1 for states in used.values()), "a group is used whole or not at all"
    assert {True} in used.values()
    assert {False} in used.values()


def test_old_log_probs_can_stay_the_samplers(tmp_path: Path, rewards: Path) -> None:
    run = {"threads": 1, "async_steps": 2, "partial": False}
    changes: dict[str, Any] = {"reward": plain_reward(rewards, "coin"), "batch": {"prompts": 4, "group": 4}}
    kept = records(launch(tmp_path / "kept", **changes, run={**run, "proximal": "sampler"}))
    assert not any("kl_behavior" in r for r in kept)
    assert all(r["spanning_fraction"] == 0 for r in kept)
    assert kept[-1]["kl_old"] > 1e-6, "with one update the ratio to the sampler is not 1"
    anew = records(launch(tmp_path / "anew", **changes, run=run))
    assert "kl_behavior" in anew[-1]
    assert anew[-1]["kl_old"] < 1e-9, "to the policy at the start of the update it is"


def test_episodes_are_played_ahead(tmp_path: Path) -> None:
    folder = launch(
        tmp_path / "run", task=f"{toy_envs.__file__}:AskTask", warmup={"steps": 0}, run={"threads": 1, "async_steps": 1}
    )
    rows = rollouts(folder)
    assert len(records(folder)) == 6
    assert all(0 <= r["staleness_max"] <= 1 for r in records(folder))
    for row in rows:
        own = [version for version, acted in zip(row["version"], row["mask"], strict=True) if acted]
        assert len(set(own)) == 1, "an episode keeps the weights it began with"
        assert all(v == -1 for v, acted in zip(row["version"], row["mask"], strict=True) if not acted)


@pytest.mark.parametrize("tamper", ["stale", "damage"])
def test_a_sampler_with_the_wrong_weights_stops_the_run(
    tamper: str, tmp_path: Path, rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward that alters the sampler's process: it keeps its first weights, or takes damaged ones."""
    monkeypatch.setenv("TAMPER", tamper)
    with pytest.raises(RunError, match=r"not those of version \d that it says it has: it is stale or damaged"):
        launch(tmp_path / "run", reward=plain_reward(rewards, "coin"))
    assert len(records(tmp_path / "run")) <= 3


def test_a_sampler_that_dies_is_noticed_in_words(tmp_path: Path, rewards: Path) -> None:
    with pytest.raises(RunError, match=r"(?s)ended by itself with exit code 7.*--resume.*last words"):
        launch(tmp_path / "run", reward=plain_reward(rewards, "dies"))


def test_a_sampler_that_is_killed_is_noticed_and_the_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    begin, advance = SamplerProcess.__init__, Ahead.advance

    def noted(self: SamplerProcess, *given: Any) -> None:
        begin(self, *given)
        pids.append(self._child.pid)

    def killed(self: Ahead, gathered: Any) -> dict[str, float]:
        if self.desk.step == 3 and len(pids) == 1:
            os.kill(pids[0], signal.SIGKILL)
        return advance(self, gathered)

    monkeypatch.setattr(SamplerProcess, "__init__", noted)
    monkeypatch.setattr(Ahead, "advance", killed)
    changes = {"run": {"threads": 1, "async_steps": 1, "checkpoint_every": 1}}
    with pytest.raises(RunError, match="was ended by the signal SIGKILL"):
        launch(tmp_path / "run", **changes)
    assert not _alive(pids[0])
    console = Console(file=io.StringIO(), width=200)
    train(parse_config(run_config(**changes)), folder=tmp_path / "run", resume=True, console=console)
    assert "were under way when the run was interrupted: drawn anew" in console.file.getvalue()  # type: ignore[attr-defined]
    rows = rollouts(tmp_path / "run")
    assert sorted({row["group"] for row in rows}) == list(range(24))
    assert len(rows) == len({(row["group"], row["answer"]) for row in rows})
    assert not any(_alive(pid) for pid in pids)


def test_failing_rewards_are_counted_as_in_other_runs(tmp_path: Path, rewards: Path) -> None:
    folder = launch(tmp_path / "run", reward=plain_reward(rewards, "fails_on_some"))
    found = records(folder)
    failed = sum(r["reward_errors"] for r in found)
    assert failed > 0
    assert sum(r["rows_dropped"] for r in found) == failed
    problems = [row["problem"] for row in rollouts(folder) if row["status"] == "error"]
    assert len(problems) == failed
    assert all("none below c" in problem for problem in problems)


def test_what_the_sampler_refuses_is_the_users_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import sys\nif sys.argv[0].endswith('child.py'):\n    raise ValueError('not here')\n" + REWARDS)
    with pytest.raises(InputError, match="not here"):
        launch(tmp_path / "run", reward=plain_reward(broken, "coin"))


def _alive(pid: int) -> bool:
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


def test_the_sampler_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    begin = SamplerProcess.__init__

    def noted(self: SamplerProcess, *given: Any) -> None:
        begin(self, *given)
        pids.append(self._child.pid)

    monkeypatch.setattr(SamplerProcess, "__init__", noted)
    launch(tmp_path / "run", steps=2)
    assert len(pids) == 1
    assert not _alive(pids[0])
    assert "grouprl.overlap.sampling" not in sys.modules, "the trainer needs nothing of the sampler's side"
