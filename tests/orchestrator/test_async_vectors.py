"""Episodes over arrays, sampled ahead of training: exact at a bound of zero, bounded, learning, and resumed."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from async_runs import alive, launch, records, rollouts, warm, watched
from grouprl import RunError
from grouprl.config.run import parse_config
from grouprl.orchestrator.asynchronous.resumable_sampling import Follower, Following, following
from grouprl.orchestrator.asynchronous.sampler_canary import CanaryReport
from grouprl.orchestrator.asynchronous.source import AsyncSource
from grouprl.orchestrator.asynchronous.sync import SharedMemorySync
from grouprl.orchestrator.asynchronous.weights import SharedWeights
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.records.requests import RolloutRequest
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.rollout.kinds.row_kinds import open_rows
from grouprl.training.loop import train

pytest.importorskip("gymnasium")
SUPPORT = Path(__file__).parents[1] / "support"
STEPS = 6
CARTPOLE: dict[str, Any] = {
    "task": {"name": "control:CartPole-v1", "turns": 60, "success": 50},
    "model": {"name": "mlp", "settings": {"hidden": [16]}},
    "method": {"base": "grpo", "token_weight": [{"part": "truncated_importance"}]},
    "steps": STEPS,
    "batch": {"prompts": 4, "group_size": 4, "minibatches": 2},
    "optim": {"lr": 1e-2, "schedule": "constant"},
    "environment": {"workers": 0},
    "run": {"threads": 1, "async_steps": 1, "checkpoint_every": 2, "keep": STEPS},
}
RANKED = {**CARTPOLE["task"], "name": f"{SUPPORT / 'ranked_control.py'}:RankedControl", "id": "CartPole-v1"}


def evidence(folder: Path) -> dict[str, Any]:
    """What a run leaves, without times and what only asynchronous runs record."""
    gone = ("staleness", "spanning", "groups_ahead", "canary", "seconds", "tokens_per_second", "memory_mb")
    return {
        "metrics": [{k: v for k, v in r.items() if not k.startswith(gone)} for r in records(folder)],
        "rollouts": [{k: v for k, v in row.items() if k != "version"} for row in rollouts(folder)],
        "weights": (folder / "model" / "policy.safetensors").read_bytes(),
    }


LANES: dict[str, Any] = {
    "task": {"name": "control:CartPole-v1", "horizon": 20},
    "method": {"name": "ppo_control", "size": 40},
    "batch": {"prompts": 4, "group_size": 1, "epochs": 2},
}
NORMALISED = {"name": "mlp", "settings": {"hidden": [16], "normalise": True}}


@pytest.mark.parametrize(
    "change",
    [{}, {"task": RANKED}, {"model": NORMALISED}, {**LANES, "model": NORMALISED}],
    ids=["control", "ranked", "normalised", "lanes"],
)
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_bound_of_zero_is_the_synchronous_run_to_the_bit(
    change: dict[str, Any], interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the run is interrupted and resumed, if episodes are paid by comparing those of a group, and if
    observations are read by statistics of all so far.
    """
    warm(monkeypatch)
    changes = {**CARTPOLE, **change, "run": {**CARTPOLE["run"], "async_steps": 0}}
    plain = launch(tmp_path / "plain", **changes)
    monkeypatch.setattr("grouprl.training.session.is_asynchronous", lambda config: True)
    if interrupted:
        with monkeypatch.context() as patch:
            patch.setattr(AsyncSource, "advance", failing_after(3, AsyncSource.advance))
            with pytest.raises(RunError, match="pulled"):
                launch(tmp_path / "apart", **changes)
        console = Console(file=io.StringIO(), width=100)
        config = parse_config({**CARTPOLE, **changes, **SAME})
        train(config, folder=tmp_path / "apart", resume=True, console=console)
        apart = tmp_path / "apart"
    else:
        apart = launch(tmp_path / "apart", **changes)
    for row in rollouts(apart):
        assert set(row["version"]) == {row["step"] - 1}
    assert evidence(apart) == evidence(plain)
    if change.get("task") is RANKED:
        assert {dict(row["components"])["place"] for row in rollouts(apart)} == {0.0, 1.0, 2.0, 3.0}


SAME = {"seed": 3, "warmup": {"steps": 0}, "eval": {"every": 0, "final_prompts": 8}}
"""Settings that `launch` adds."""


def failing_after(steps: int, advance: Any) -> Any:
    """`AsyncSource.advance` that ends the run after some steps."""
    calls = itertools.count(1)

    def failing(self: AsyncSource, rollout: Any) -> Any:
        if next(calls) > steps:
            raise RunError("the plug was pulled")
        return advance(self, rollout)

    return failing


@pytest.mark.parametrize("pulled", [0, 5])
def test_environments_that_continue_do_so_ahead_of_training(
    pulled: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What these environments pay depends on how long they have been in play alone, whatever is done in them."""
    warm(monkeypatch)
    task = {
        "name": f"control:{SUPPORT / 'foreign_control.py'}:Walk",
        "turns": 20,
        "horizon": 4,
        "config": {"length": 7},
    }
    changes = {**CARTPOLE, **LANES, "task": task, "steps": 9, "run": {**CARTPOLE["run"], "async_steps": 2, "keep": 9}}
    folder = tmp_path / "run"
    if pulled:
        with monkeypatch.context() as patch:
            patch.setattr(AsyncSource, "advance", failing_after(pulled, AsyncSource.advance))
            with pytest.raises(RunError, match="pulled"):
                launch(folder, **changes)
        console = Console(file=io.StringIO(), width=100)
        train(parse_config({**changes, **SAME}), folder=folder, resume=True, console=console)
    else:
        launch(folder, **changes)
    found = records(folder)
    paid = [(action % 7) + 1 for action in range(9 * 4)]
    segments = [[paid[n] for n in range(4 * step, 4 * step + 4)] for step in range(9)]
    assert [r["reward_mean"] * r["rows_sampled"] for r in found] == [4.0 * sum(each) for each in segments]
    assert max(r["staleness_max"] for r in found) == 2.0, "something was sampled ahead, and nothing further"


def test_a_pole_is_balanced_one_step_off_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(monkeypatch)
    pids = watched(monkeypatch)
    batch = {"prompts": 4, "group_size": 8, "minibatches": 2, "epochs": 2}
    folder = launch(tmp_path / "run", **{**CARTPOLE, "steps": 16, "batch": batch})
    found, rows = records(folder), rollouts(folder)
    assert np.mean([r["reward_mean"] for r in found[:2]]) < 35
    assert np.mean([r["reward_mean"] for r in found[-2:]]) > 50
    assert max(r["staleness_max"] for r in found) == 1.0, "something was sampled ahead, and nothing further"
    assert all(r["spanning_fraction"] == 0 for r in found if "spanning_fraction" in r)
    assert all(r["canary_gap"] == 0 for r in found)
    for row in rows:
        assert len(set(row["version"])) == 1, "an episode is played to its end with the weights that it began with"
        assert 0 <= row["step"] - 1 - row["version"][0] <= 1
    assert [row["group"] for row in rows] == sorted(row["group"] for row in rows), "trained in the order of requests"
    assert not alive(pids[0])


def test_a_run_goes_on_with_the_prompts_that_were_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(AsyncSource, "advance", failing_after(3, AsyncSource.advance))
        with pytest.raises(RunError, match="pulled"):
            launch(tmp_path / "run", **CARTPOLE)
    console = Console(file=io.StringIO(), width=100)
    train(parse_config({**CARTPOLE, **SAME}), folder=tmp_path / "run", resume=True, console=console)
    rows = rollouts(tmp_path / "run")
    assert "were in flight when the run was interrupted" in console.file.getvalue()  # type: ignore[attr-defined]
    assert [row["group"] for row in rows] == [i // 4 for i in range(STEPS * 16)]
    assert all(0 <= row["step"] - 1 - min(row["version"]) <= 1 for row in rows)


def followed() -> tuple[Any, SharedMemorySync, Follower, list[CanaryReport], Any]:
    """A trainer's policy, and rows of a sampler whose policy follows it."""
    run = resolve(parse_config({**CARTPOLE, **SAME}))
    trained, own = build_policy(run), build_policy(run)
    sync, reports = SharedMemorySync(trained, 2, run.row_kind.canary(trained)), list[CanaryReport]()
    weights = SharedWeights(sync.memory, sync.hello()["places"])  # type: ignore[arg-type]
    follower = Follower(own, weights, reports.append, run.row_kind.canary(own))
    sampler = following(follower, run.engine(own), partial=True)
    assert type(sampler) is Following
    source = open_rows(run.config, run.task, own, run.reward, 8, ErrorPolicy(), kind=run.row_kind, sampler=sampler)
    return trained, sync, follower, reports, source


def test_log_probs_belong_to_the_version_that_acted() -> None:
    trained, sync, follower, reports, source = followed()
    requests = [RolloutRequest(n, n, source.task.example("train", n), 2) for n in range(2)]
    for version in range(3):
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        sync.publish(version, trained)
        follower.refresh()
        rows = source.rows(requests)
        assert sync.check(reports[-1]) == 0.0
        assert reports[-1].version == version
        torch.testing.assert_close(trained.logp(rows.inputs), rows.rollout.logp_bt, rtol=0, atol=1e-6)
    source.close()


def test_weights_that_are_not_those_of_their_version_are_caught() -> None:
    trained, sync, follower, reports, source = followed()
    sync.publish(0, trained)
    follower.policy.load_trainable_state = lambda state: None
    with torch.no_grad():
        next(iter(follower.policy.parameters())).add_(1.0)
    follower.refresh()
    with pytest.raises(RunError, match="it is stale or damaged"):
        sync.check(reports[-1])
    source.close()


def test_the_plan_says_what_running_ahead_means_for_episodes_over_arrays() -> None:
    found = plan(parse_config(CARTPOLE))
    found.raise_if_refused()
    assert any("with the weights that it began with" in note for note in found.notes)
    assert not any("continue with new weights" in note or "next turn" in note for note in found.notes)
