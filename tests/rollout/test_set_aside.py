"""A prompt whose environment hangs or ends its process is set aside, offered once more, and then left out."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import culprit_envs
import toy_envs
from episode_runs import launch, run_config
from grouprl.config.run import parse_config
from grouprl.core.errors import RunError
from grouprl.records.scores import Problem, Scores
from grouprl.rewards.error_policy import PROMPTS, ErrorPolicy
from grouprl.rollout.prompt_stream import PromptStream
from grouprl.rollout.quarantine import AGAIN_AFTER
from grouprl.training.loop import train


class Finite(toy_envs.AskTask):
    def size(self, split: Any) -> int:
        return 6


def indices(stream: PromptStream, count: int) -> list[int]:
    return [request.index for request in stream.requests(count, 2)]


def test_a_lost_prompt_is_offered_once_more_and_then_left_out() -> None:
    stream = PromptStream(Finite(), 0)
    first = indices(stream, 6)
    stream.aside.failed(first[2], "p", "it hung", stream.position)
    second = indices(stream, 6)
    assert sorted(second) == sorted(first), "offered once more in the next epoch"
    stream.aside.failed(first[2], "p", "it hung", stream.position)
    later = indices(stream, 20)
    assert first[2] not in later
    assert set(later) == set(first) - {first[2]}
    assert stream.aside.excluded == 1
    assert [own.prompt for own in stream.aside.prompts] == ["p"]


def test_endless_streams_offer_it_again_later() -> None:
    stream = PromptStream(toy_envs.AskTask(), 0)
    indices(stream, 10)
    stream.aside.failed(3, "p", "it hung", stream.position)
    found = indices(stream, AGAIN_AFTER + 5)
    assert found.count(3) == 1
    assert found.index(3) == AGAIN_AFTER
    assert stream.aside.came_through(3) is not None
    assert 3 not in indices(stream, 200)
    assert not stream.aside.prompts


def test_a_resumed_stream_knows_what_was_left_out() -> None:
    stream = PromptStream(Finite(), 0)
    (bad, *_) = indices(stream, 6)
    for _ in range(2):
        stream.aside.failed(bad, "p", "it hung", stream.position)
    resumed = PromptStream(Finite(), 0)
    resumed.restore(json.loads(json.dumps(stream.state())))
    assert indices(resumed, 15) == indices(stream, 15)
    assert bad not in indices(resumed, 15)
    old = {"sampled": 6, "position": 6}  # a checkpoint from before prompts could be set aside
    resumed.restore(old)
    assert not resumed.aside.prompts


def test_where_every_prompt_is_left_out_the_run_ends_in_words() -> None:
    stream = PromptStream(Finite(), 0)
    for index in indices(stream, 6) * 2:
        stream.aside.failed(index, f"p{index}", "it hung", stream.position)
    with pytest.raises(RunError, match="all 6 training prompts of the task 'ask' are left out"):
        stream.requests(1, 1)


def lost_scores(groups: int, size: int, bad: set[int], *, each: int) -> tuple[Scores, np.ndarray]:
    """`groups` prompts of `size` samples; the first `each` samples of those in `bad` are lost."""
    group_b = np.repeat(np.arange(groups), size)
    lost_b = np.isin(group_b, list(bad)) & (np.arange(groups * size) % size < each)
    status_b = np.where(lost_b, "timeout", "ok").astype("<U14")
    problems = [Problem(f"p{g}#0", "timeout", "it hung", "", "", "environment") for g in sorted(bad)]
    reward_b = np.where(lost_b, np.nan, 1.0)
    return Scores(reward_b, {}, ~lost_b, status_b, problems, lost_b=lost_b), group_b


@pytest.mark.parametrize("size", [2, 8, 16, 128])
@pytest.mark.parametrize("order", ["first", "last", "spread"])
def test_bad_prompts_cost_themselves_whatever_the_size_of_their_group(size: int, order: str) -> None:
    bad = {"first": set(range(16)), "last": set(range(240, 256)), "spread": set(range(0, 256, 16))}[order]
    scores, group_b = lost_scores(256, size, bad, each=size)
    valid_b = ErrorPolicy().apply(scores, group_b)
    assert set(group_b[~valid_b].tolist()) == bad


def test_systematic_failure_ends_the_run_in_words() -> None:
    policy = ErrorPolicy()
    for _ in range(2):
        scores, group_b = lost_scores(8, 4, set(range(8)), each=1)
        policy.apply(scores, group_b)
    resumed = ErrorPolicy()
    resumed.load_state_dict(json.loads(json.dumps(policy.state_dict())))
    scores, group_b = lost_scores(8, 4, {0}, each=1)
    with pytest.raises(RunError, match=rf"The environment failed on {PROMPTS + 1} of the last 24 prompts"):
        resumed.apply(scores, group_b)
    strict = ErrorPolicy(max_fraction=0.0)
    scores, group_b = lost_scores(256, 4, {3}, each=1)
    with pytest.raises(RunError, match="1 of the last 1024 samples"):
        strict.apply(scores, group_b)


class BadPrompts(culprit_envs.CulpritTask):
    """Eight prompts; every episode of two of them ends its process."""

    def size(self, split: Any) -> int:
        return 8

    def example(self, split: Any, index: int) -> Any:
        bad = range(2**64) if index in (2, 5) and split == "train" else ()
        example = culprit_envs.culprit_example(index, (), "exit", "step")
        example.columns["bad"] = bad
        return example


def test_a_run_names_them_and_a_resumed_one_does_not_meet_them_again(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "task": f"{__file__}:BadPrompts",
        "batch": {"prompts": 4, "group_size": 2},
        "steps": 6,
        "warmup": {"steps": 0},
        "environment": {"workers": 2, "timeout": 20},
        "run": {"threads": 1, "checkpoint_every": 5},
        "eval": {"final_prompts": 2, "samples": 1},
    }
    whole = launch(tmp_path / "whole", **changes)
    rows = [row for i in range(1, 7) for row in pq.read_table(whole / f"rollouts/step-{i:06d}.parquet").to_pylist()]
    failed = [row for row in rows if row["status"] != "ok"]
    assert {row["prompt_id"] for row in failed} == {"culprit/2", "culprit/5"}
    assert len(failed) == 2 * 2 * 2, "each is offered twice, with two completions"
    summary = json.loads((whole / "summary.json").read_text())
    assert {(row["prompt"], row["left_out"]) for row in summary["set_aside"]} == {
        ("culprit/2", True),
        ("culprit/5", True),
    }
    assert summary["account"]["prompts_set_aside"] == 4
    report = (whole / "report.html").read_text()
    assert "2 prompts are set aside" in report
    assert "culprit/5" in report
    again = Path(shutil.copytree(whole, tmp_path / "again"))
    shutil.rmtree(max((again / "checkpoints").iterdir(), key=lambda path: path.name))
    train(parse_config(run_config(**changes)), folder=again, resume=True, console=Console(file=io.StringIO()))
    name = "rollouts/step-000006.parquet"
    assert pq.read_table(again / name).equals(pq.read_table(whole / name))
