"""Whole runs that sample ahead: exact at a bound of zero, bounded, watched, and ended with their sampler."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import slow_envs
import toy_envs
from async_runs import (
    REWARDS,
    alive,
    assert_own_versions,
    evidence,
    launch,
    plain_reward,
    records,
    rollouts,
    run_config,
    warm,
    watched,
    write_rewards,
)
from grouprl import InputError, RunError
from grouprl.config.run import parse_config
from grouprl.orchestrator.asynchronous.source import AsyncSource
from grouprl.training.loop import train

LONG = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 192}
STEPS = 8


@dataclass(frozen=True)
class Run:
    """A finished run: where it is, its records and rows, and which process sampled them."""

    folder: Path
    records: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    sampler: int


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run whose completions are long and sampled slowly, by an untrained model that ends them by chance.

    The reward fails where the completion begins with a or b, and is a coin elsewhere.
    """
    home = tmp_path_factory.mktemp("slow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAMPER", "slow")
        warm(patch)
        pids = watched(patch)
        folder = launch(
            home / "run",
            model={"name": "tiny", "tiny": LONG},
            sampling={"max_new_tokens": 128},
            steps=STEPS,
            batch={"prompts": 4, "group_size": 4},
            run={"threads": 1, "async_steps": 2, "checkpoint_every": 1, "keep": STEPS + 1},
            reward=plain_reward(write_rewards(home), "coin_or_failure"),
        )
        yield Run(folder, records(folder), rollouts(folder), pids[0])


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    return write_rewards(tmp_path)


@pytest.mark.parametrize("method", [{"name": "dapo", "max_rounds": 3}, "remax"])
def test_a_bound_of_zero_is_the_synchronous_run_to_the_bit(
    method: Any, tmp_path: Path, rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole machinery, sampler process and shared weights, with nothing sampled ahead: the same bytes."""
    changes: dict[str, Any] = {"method": method, "run": {"threads": 1}, "steps": 4}
    changes["reward"] = plain_reward(rewards, "coin")
    if method == "remax":
        changes["batch"] = {"prompts": 4, "group_size": 4}
        warm(monkeypatch)
    plain = launch(tmp_path / "plain", **changes)
    monkeypatch.setattr("grouprl.training.session.is_asynchronous", lambda config: True)
    apart = launch(tmp_path / "apart", **changes)
    assert all(row["version"] is None for row in rollouts(plain))
    for row in rollouts(apart):
        assert set(row["version"]) == {row["step"] - 1}
    assert {r["staleness_max"] for r in records(apart) if "staleness_max" in r} == {0.0}
    found, expected = evidence(apart), evidence(plain)
    assert found == expected


def test_completions_are_as_old_as_the_bound_allows_and_no_older(slow: Run) -> None:
    found, rows = slow.records, slow.rows
    assert [r["step"] for r in found] == list(range(1, STEPS + 1))
    aged = [r for r in found if "staleness_max" in r]
    assert all(r["staleness_max"] <= 2 for r in aged)
    assert max(r["staleness_max"] for r in aged) >= 1, "something was sampled ahead"
    assert all(sum(v for k, v in r.items() if k.startswith("staleness/")) == pytest.approx(1) for r in aged)
    assert [r["groups_ahead"] for r in found][-3:] == [8.0, 4.0, 0.0]
    assert len({(row["group"], row["sample"]) for row in rows}) == len(rows) == STEPS * 16
    assert [row["group"] for row in rows] == [i // 4 for i in range(STEPS * 16)], "trained in the order of requests"
    for row in rows:
        assert len(row["version"]) == len(row["completion_ids"])
        assert 0 <= row["step"] - 1 - min(row["version"]) <= 2


def test_completions_span_versions(slow: Run) -> None:
    used = [row for row in slow.rows if row["used"]]
    spans = {
        step: [len(set(row["version"])) > 1 for row in used if row["step"] == step] for step in range(1, STEPS + 1)
    }
    said = {r["step"]: r["spanning_fraction"] for r in slow.records if "spanning_fraction" in r}
    assert said == {step: pytest.approx(np.mean(found)) for step, found in spans.items() if found}
    assert max(said.values()) > 0, "weights arrived while completions were sampled"
    for row in slow.rows:
        assert row["version"] == sorted(row["version"]), "a completion never goes back to older weights"


def test_every_log_prob_of_a_run_is_that_of_its_version(slow: Run) -> None:
    """Against the checkpoint of every version: the weights that sampled a token give its log-prob, the others do
    not."""
    assert_own_versions(slow.folder, slow.rows, STEPS)


def test_old_log_probs_of_older_completions_are_computed_anew(slow: Run) -> None:
    older = [r for r in slow.records if r.get("staleness_max")]
    assert all("kl_behavior" in r for r in older)
    assert all(r["kl_old"] < 1e-9 for r in older), "the ratio to the policy at the start of the update is 1"


def test_failing_rewards_are_counted_as_in_other_runs(slow: Run) -> None:
    failed = sum(r["reward_errors"] for r in slow.records)
    assert failed > 0
    assert sum(r["rows_dropped"] for r in slow.records) == failed
    problems = [row["problem"] for row in slow.rows if row["status"] == "error"]
    assert len(problems) == failed
    assert all("none below c" in problem for problem in problems)


def test_several_samplers_sample_the_same_prompts_in_the_same_order(
    tmp_path: Path, rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(monkeypatch)
    monkeypatch.setenv("TAMPER", "slow")
    pids = watched(monkeypatch)
    run = {"threads": 1, "async_steps": 2, "samplers": 3, "checkpoint_every": 1, "keep": STEPS + 1}
    changes: dict[str, Any] = {"batch": {"prompts": 4, "group_size": 4}, "reward": plain_reward(rewards, "writer")}
    folder = launch(tmp_path / "run", **changes, steps=STEPS, run=run)
    rows, found = rollouts(folder), records(folder)
    assert len(set(pids)) == 3
    assert not any(map(alive, pids))
    assert [row["group"] for row in rows] == [i // 4 for i in range(STEPS * 16)], "trained in the order of requests"
    assert all(r["staleness_max"] <= 2 for r in found)
    assert len({tuple(sorted(row["components"])) for row in rows}) == 3, "each of them sampled"
    assert_own_versions(folder, rows, STEPS)


def test_the_sampler_ends_with_the_run(slow: Run) -> None:
    assert not alive(slow.sampler)
    code = (
        "import sys, grouprl.training.loop, grouprl.orchestrator.asynchronous.source\n"
        "print('grouprl.orchestrator.asynchronous.sampling_worker' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n", "the trainer needs nothing of the sampler's side"


def test_old_log_probs_can_stay_the_samplers(tmp_path: Path, rewards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(monkeypatch)
    run = {"threads": 1, "async_steps": 2, "partial": False, "proximal": "sampler"}
    changes: dict[str, Any] = {"reward": plain_reward(rewards, "coin"), "batch": {"prompts": 4, "group_size": 4}}
    kept = records(launch(tmp_path / "kept", **changes, run=run))
    assert not any("kl_behavior" in r for r in kept)
    assert all(r["spanning_fraction"] == 0 for r in kept)
    assert kept[-1]["kl_old"] > 1e-6, "with one update the ratio to the sampler is not 1"


def test_refill_ahead_trains_on_whole_wanted_groups(
    tmp_path: Path, rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(monkeypatch)
    changes: dict[str, Any] = {"method": {"name": "dapo", "max_rounds": 3}, "batch": {"prompts": 4, "group_size": 2}}
    run = {"threads": 1, "async_steps": 1}
    folder = launch(tmp_path / "run", **changes, run=run, reward=plain_reward(rewards, "coin"))
    rows = rollouts(folder)
    assert all(r["staleness_max"] <= 1 for r in records(folder) if "staleness_max" in r)
    assert sorted({row["group"] for row in rows}) == list(range(len({row["group"] for row in rows}))), "none is skipped"
    used: dict[int, set[bool]] = {}
    for row in rows:
        used.setdefault(row["group"], set()).add(row["used"])
    assert all(len(states) == 1 for states in used.values()), "a group is used whole or not at all"
    assert {True} in used.values()
    assert {False} in used.values()


@pytest.mark.parametrize("partial", [True, False])
def test_episodes_are_played_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partial: bool) -> None:
    warm(monkeypatch)
    run = {"threads": 1, "async_steps": 1, "partial": partial}
    folder = launch(tmp_path / "run", task=f"{toy_envs.__file__}:AskTask", steps=4, run=run)
    rows = rollouts(folder)
    assert len(records(folder)) == 4
    assert all(0 <= r["staleness_max"] <= 1 for r in records(folder))
    for row in rows:
        own = [version for version, acted in zip(row["version"], row["mask"], strict=True) if acted]
        assert own == sorted(own), "a turn is not sampled with older weights than the one before it"
        assert partial or len(set(own)) == 1, "an episode keeps the weights it began with"
        assert all(v == -1 for v, acted in zip(row["version"], row["mask"], strict=True) if not acted)


def test_the_slow_are_trained_on_as_often_as_they_are_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Admission bounds how old samples can be, so nothing has to be thrown away for having taken long."""
    warm(monkeypatch)
    task, batch = f"{slow_envs.__file__}:UnevenTask", {"prompts": 4, "group_size": 2}
    run = {"threads": 1, "async_steps": 2}
    folder = launch(tmp_path / "run", task=task, steps=5, batch=batch, run=run)
    rows, steps = rollouts(folder), records(folder)
    assert all(record["staleness_max"] <= 2 for record in steps)
    lost = {name for record in steps for name in record if name.startswith(("rows_lost", "prompts_lost"))}
    assert lost <= {"rows_lost/masked", "prompts_lost/masked"}, "groups whose rewards are all the same, and none else"
    assert sorted({row["group"] for row in rows}) == list(range(5 * 4)), "in the order in which they were begun"
    turns = [len(row["turn_text"]) if "turn_text" in row else max(row["turn"]) + 1 for row in rows]
    begun = [slow_envs.UnevenTask().example("train", i).columns["turns"] for i in range(20) for _ in range(2)]
    assert sorted(turns) == sorted(begun)


def test_a_sampler_with_the_wrong_weights_stops_the_run(
    tmp_path: Path, rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward that alters the sampler's process: it keeps its first weights."""
    warm(monkeypatch)
    monkeypatch.setenv("TAMPER", "stale")
    with pytest.raises(RunError, match=r"not those of version \d that it says it has: it is stale or damaged"):
        launch(tmp_path / "run", reward=plain_reward(rewards, "coin"))
    assert len(records(tmp_path / "run")) <= 3


def test_a_sampler_that_dies_is_noticed_in_words(
    tmp_path: Path, rewards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(monkeypatch)
    with pytest.raises(RunError, match=r"(?s)ended by itself with exit code 7.*--resume.*last words"):
        launch(tmp_path / "run", reward=plain_reward(rewards, "dies"))


def test_a_sampler_that_is_killed_is_noticed_and_the_run_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(monkeypatch)
    pids, advance = watched(monkeypatch), AsyncSource.advance

    def killed(self: AsyncSource, rollout: Any) -> dict[str, float]:
        if self.context.step == 3 and len(pids) == 1:
            os.kill(pids[0], signal.SIGKILL)
        return advance(self, rollout)

    monkeypatch.setattr(AsyncSource, "advance", killed)
    changes = {"run": {"threads": 1, "async_steps": 1, "checkpoint_every": 1}}
    with pytest.raises(RunError, match="was ended by the signal SIGKILL"):
        launch(tmp_path / "run", **changes)
    assert not alive(pids[0])
    console = Console(file=io.StringIO(), width=200)
    train(parse_config(run_config(**changes)), folder=tmp_path / "run", resume=True, console=console)
    assert "were in flight when the run was interrupted; they are sampled again" in console.file.getvalue()  # type: ignore[attr-defined]
    rows = rollouts(tmp_path / "run")
    assert sorted({row["group"] for row in rows}) == list(range(24))
    assert len(rows) == len({(row["group"], row["sample"]) for row in rows})
    assert not any(alive(pid) for pid in pids)


def test_what_the_sampler_refuses_is_the_users_to_mend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(monkeypatch)
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import sys\nif sys.argv[0].endswith('sampler_main'):\n    raise ValueError('not here')\n" + REWARDS
    )
    with pytest.raises(InputError, match="not here"):
        launch(tmp_path / "run", reward=plain_reward(broken, "coin"))
