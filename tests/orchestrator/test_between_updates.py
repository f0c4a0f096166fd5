"""Completions that the trainer leaves unfinished and continues in later steps: the same rows, bounded, repeatable."""

from __future__ import annotations

import io
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import toy_envs
from async_runs import assert_own_versions, evidence, launch, plain_reward, records, rollouts, run_config, write_rewards
from grouprl import RunError
from grouprl.config.run import parse_config
from grouprl.orchestrator.asynchronous.between_updates import BetweenUpdates
from grouprl.orchestrator.asynchronous.source import AsyncSource
from grouprl.orchestrator.asynchronous.unfinished import OpenSample, extend, gathered
from grouprl.plan.plan import plan
from grouprl.protocols import Request, Samples
from grouprl.rollout.local.lean_decoder import LeanDecoder
from grouprl.rollout.local.sampler import LocalSampler
from grouprl.training.loop import train

STEPS, AHEAD, GROUPS, GROUP = 10, 2, 2, 2
TINY = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32, "max_positions": 192}

CORRECTED = {"token_weight": [{"part": "truncated_importance"}]}
REMAX = {"base": "remax", **CORRECTED}
REFILLED = {"base": "dapo", "max_rounds": 3, "greedy_baseline": True, "advantage": {"part": "greedy_baseline"}}
"""Refills take a part of what was sampled for the next step; the rest keeps the greedy completions of this one."""


class Unpaused(LocalSampler):
    """An engine that is asked for tokens only, as a server is."""

    exact = True


def settings(home: Path, **changes: Any) -> dict[str, Any]:
    """A run of an untrained model, whose completions end by chance: some after a token, some at the limit."""
    config: dict[str, Any] = {
        "model": {"name": "tiny", "tiny": TINY},
        "sampling": {"max_new_tokens": 96},
        "steps": STEPS,
        "batch": {"prompts": GROUPS, "group_size": GROUP},
        "run": {"threads": 1, "async_steps": AHEAD, "samplers": 0, "checkpoint_every": 1, "keep": STEPS + 1},
        "reward": plain_reward(write_rewards(home), "coin"),
    }
    return config | changes


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("between")
    return launch(home / "run", **settings(home))


def test_completions_continue_with_new_weights_and_are_no_older_than_the_bound(finished: Path) -> None:
    rows = rollouts(finished)
    assert [row["group"] for row in rows] == [i // GROUP for i in range(STEPS * GROUPS * GROUP)], (
        "trained in the order of requests"
    )
    spanning = 0
    for row in rows:
        assert len(row["version"]) == len(row["completion_ids"])
        assert row["version"] == sorted(row["version"]), "a completion never goes back to older weights"
        assert 0 <= row["step"] - 1 - min(row["version"]) <= AHEAD
        spanning += len(set(row["version"])) > 1
    assert spanning >= 5
    assert max(r["staleness_max"] for r in records(finished) if "staleness_max" in r) == AHEAD
    assert not any("canary_gap" in r for r in records(finished)), "no other process has weights"


def test_every_log_prob_is_that_of_the_version_that_sampled_the_token(finished: Path) -> None:
    assert_own_versions(finished, rollouts(finished), STEPS)


def test_without_an_update_the_rows_are_those_of_a_run_that_samples_step_by_step(tmp_path: Path) -> None:
    """Nothing is chosen by its length: every completion that is begun is trained on, as it would have been."""
    still = {"optim": {"lr": 1e-30, "warmup_steps": 0}}
    between = rollouts(launch(tmp_path / "between", **settings(tmp_path, **still)))
    plain = rollouts(launch(tmp_path / "plain", **settings(tmp_path, **still, run={"threads": 1})))
    assert any(len(set(row["version"])) > 1 for row in between)
    for ours, theirs in zip(between, plain, strict=True):
        assert (ours["group"], ours["completion_ids"]) == (theirs["group"], theirs["completion_ids"])
        assert (ours["step"], ours["reward"]) == (theirs["step"], theirs["reward"])
        np.testing.assert_allclose(ours["behavior_logp"], theirs["behavior_logp"], atol=1e-5)


@pytest.mark.parametrize(
    ("method", "more", "after"),
    [
        ("grpo", {}, 3),
        ({"name": "dapo", "max_rounds": 3}, {}, 3),
        (REMAX, {}, 3),
        (REFILLED | CORRECTED, {"batch": {"prompts": 3, "group_size": 2}, "optim": {"lr": 3e-2, "warmup_steps": 0}}, 2),
    ],
)
def test_a_run_that_is_resumed_ends_with_the_same_bytes(
    method: Any, more: dict[str, Any], after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = settings(tmp_path, method=method, **more)
    whole = launch(tmp_path / "whole", **changes)
    with monkeypatch.context() as patch, pytest.raises(RunError, match="pulled"):
        patch.setattr(AsyncSource, "advance", _failing_after(after, AsyncSource.advance))
        launch(tmp_path / "cut", **changes)
    said = io.StringIO()
    train(parse_config(run_config(**changes)), folder=tmp_path / "cut", resume=True, console=Console(file=said))
    assert "sampled again" not in said.getvalue()
    assert evidence(tmp_path / "cut") == evidence(whole)
    assert [row["version"] for row in rollouts(tmp_path / "cut")] == [row["version"] for row in rollouts(whole)]


def test_a_run_that_is_interrupted_keeps_what_is_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint is written after the source of samples is closed."""
    changes = settings(tmp_path)
    changes["run"] |= {"checkpoint_every": 20}
    whole = launch(tmp_path / "whole", **changes)
    advance = AsyncSource.advance

    def interrupting(self: AsyncSource, rollout: Any) -> Any:
        if self.context.step == 4:
            signal.raise_signal(signal.SIGINT)
        return advance(self, rollout)

    with monkeypatch.context() as patch:
        patch.setattr(AsyncSource, "advance", interrupting)
        launch(tmp_path / "cut", **changes)
    assert len(records(tmp_path / "cut")) == 4
    train(
        parse_config(run_config(**changes)), folder=tmp_path / "cut", resume=True, console=Console(file=io.StringIO())
    )
    assert evidence(tmp_path / "cut") == evidence(whole)


def _failing_after(steps: int, advance: Any) -> Any:
    done = []

    def failing(self: AsyncSource, rollout: Any) -> Any:
        if len(done) == steps:
            raise RunError("the plug was pulled")
        done.append(rollout)
        return advance(self, rollout)

    return failing


def test_fewer_tokens_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted, step = [], LeanDecoder.step
    monkeypatch.setattr(LeanDecoder, "step", lambda self, token_r: counted.append(len(token_r)) or step(self, token_r))
    changes = settings(tmp_path, eval={"every": 0, "final_prompts": 1})
    launch(tmp_path / "plain", **{**changes, "run": {"threads": 1}})
    plain = len(counted)
    counted.clear()
    launch(tmp_path / "between", **changes)
    assert len(counted) < 0.75 * plain


def test_an_engine_that_cannot_be_paused_samples_in_pieces(tmp_path: Path) -> None:
    changes = settings(tmp_path, sampling={"max_new_tokens": 45, "engine": f"{__file__}:Unpaused"})
    folder = launch(tmp_path / "run", **changes)
    rows = rollouts(folder)
    lengths = [len(row["completion_ids"]) for row in rows]
    assert max(lengths) == 45, "the limit of tokens holds across pieces"
    assert len(set(lengths)) > 5
    assert any(len(set(row["version"])) > 1 for row in rows)
    assert_own_versions(folder, rows, STEPS)


def test_a_checkpoint_holds_what_was_sampled_for_units() -> None:
    rows = SimpleNamespace(
        token_requests=lambda requests: [Request((r.ordinal, i), 4, i) for r in requests for i in (0, 1)]
    )
    context: Any = SimpleNamespace(row_source=rows, method=SimpleNamespace(greedy_baseline=False))
    supply = BetweenUpdates(context, 0)
    requests: Any = [SimpleNamespace(ordinal=ordinal, completions=2) for ordinal in (5, 6)]
    supply.request(7, requests)
    for number, sample in enumerate(supply._units[7].samples):
        sample.ids.append(number)
    again = BetweenUpdates(context, 0)
    again.restore([(3, requests)], supply.state([(7, requests)]))
    assert [(s.request.prompt, s.ids) for s in again._units[3].samples] == [
        ((5, 0), [0]),
        ((5, 1), [1]),
        ((6, 0), [2]),
        ((6, 1), [3]),
    ]


def test_a_sample_continues_where_it_was_left() -> None:
    sample = OpenSample(Request((5, 6), 4, seed=9))
    part = Samples(((7, 8),), np.array([[-0.5, -0.25]]), np.array([True]), True, np.array([[1.0, 2.0]]))
    extend([sample], part, version=3)
    assert sample.open
    assert (sample.rest.prompt, sample.rest.budget, sample.rest.sampled, sample.rest.seed) == ((5, 6, 7, 8), 2, 2, 9)
    sample = OpenSample.continued(sample.request, sample.state())
    extend([sample], Samples(((1,),), np.array([[-1.0]]), np.array([False]), True), version=4)
    assert not sample.open
    whole = gathered([sample], np.dtype(np.float32), exact=True)
    assert whole.actions == ((7, 8, 1),)
    assert whole.logp_bt.tolist() == [[-0.5, -0.25, -1.0]]
    assert whole.entropy_bt is not None
    assert whole.entropy_bt.tolist() == [[1.0, 2.0, 0.0]]
    assert whole.version_bt is not None
    assert whole.version_bt.tolist() == [[3, 3, 4]]
    assert whole.truncated_b.tolist() == [False]


def planned(**changes: Any) -> Any:
    run = {"async_steps": AHEAD, "samplers": 0} | changes.pop("run", {})
    return plan(parse_config({"task": "addition", "method": "grpo", "data": {"prompts": 64}, **changes, "run": run}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": f"{toy_envs.__file__}:AskTask", "data": {}}, "are not single completions"),
        ({"sampling": {"stop": ["\n"]}}, "'\\n' ends a completion"),
        ({"run": {"partial": False}}, "run.samplers is 0 and run.partial false"),
        ({"method": "trpo"}, "trpo is only correct when every completion comes from the current policy"),
    ],
)
def test_what_cannot_be_left_unfinished_is_refused(changes: dict[str, Any], words: str) -> None:
    assert any(words in sentence for sentence in planned(**changes).refusals), planned(**changes).refusals


def test_stored_rows_are_refused_once() -> None:
    """No number of samplers helps where nothing is sampled."""
    said = planned(task="preferences", method="dpo", data={}).refusals
    assert sum("run.async_steps" in sentence for sentence in said) == 1, said
    assert not any("run.samplers" in sentence for sentence in said)


def test_the_plan_says_that_the_trainer_samples_side_by_side() -> None:
    found = planned()
    assert found.refusals == ()
    said = " ".join(note.text if hasattr(note, "text") else str(note) for note in found.notes)
    assert "the completions of 3 steps side by side" in said
    assert "second copy" not in said
    costs = {cost.what: cost.bytes for cost in found.costs}
    alone = {cost.what: cost.bytes for cost in planned(run={"async_steps": 0, "samplers": 1}).costs}
    assert costs["rollout cache"] == 3 * alone["rollout cache"]
    assert set(costs) == set(alone), "no process of its own, no shared weights"
