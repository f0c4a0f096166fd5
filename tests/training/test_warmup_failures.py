"""Demonstrations that raise or hang: left out and counted, or the end of the run, as reward.on_error says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import toy_envs
from episode_runs import launch, records
from grouprl import RunError
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.rewards.error_policy import ErrorPolicy
from grouprl.tasks.builtin.single_turn.sequences import Reverse
from grouprl.training.warmup import demonstration_batch

FALLING = 4
"""Every so manieth prompt has no demonstration."""


class Falling(toy_envs.AskTask):
    """The environment raises while it demonstrates every fourth prompt; it acts well all the same."""

    def environment(self) -> Any:
        class Shy(toy_envs.Asking):
            def reset(self, example: Any, seed: int) -> Any:
                self.falls = int(example.id.rsplit("/", 1)[1]) % FALLING == 0
                return super().reset(example, seed)

            def demonstrate(self, rng: Any) -> str:
                if self.falls:
                    raise ValueError("stage fright")
                return super().demonstrate(rng)

        return Shy()


class Broken(Reverse):
    """Raises where every fourth prompt is to be demonstrated."""

    def demonstrate(self, example: Any, rng: Any) -> str:
        if int(example.id.rsplit("/", 1)[1]) % FALLING == 0:
            raise ValueError("no idea")
        return super().demonstrate(example, rng)


def settings(**reward: Any) -> dict[str, Any]:
    return {"warmup": {"steps": 3, "batch": 8}, "steps": 1, "reward": {"max_failed_fraction": 0.5, **reward}}


@pytest.mark.parametrize("mode", ["drop_row", "drop_group", "zero"])
def test_what_fails_is_left_out_and_counted(tmp_path: Path, mode: str) -> None:
    folder = launch(tmp_path / "run", task=f"{__file__}:Falling", **settings(on_error=mode))
    found = records(folder, "warmup")
    assert [record["demonstrations_failed"] for record in found] == [2.0, 2.0, 2.0]
    assert all(record["loss"] > 0 for record in found)


def test_the_first_one_ends_a_run_that_asks_for_it(tmp_path: Path) -> None:
    words = r"^The environment failed; for instance sample ask/train/0#demonstration: the environment failed "
    with pytest.raises(RunError, match=words + r"\(prompt 'ask/train/0', seed \d+, turn 0\): .*stage fright"):
        launch(tmp_path / "run", task=f"{__file__}:Falling", **settings(on_error="raise"))


def test_too_many_end_every_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"The environment failed on 2 of the last 8 samples.*stage fright"):
        launch(tmp_path / "run", task=f"{__file__}:Falling", **settings(max_failed_fraction=0.001))


def batch(task: Any, indices: list[int], mode: Any) -> Any:
    numbered_examples = [(10 + i, task.example("train", i)) for i in indices]
    sizes = {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16, "max_positions": 64}
    policy = CausalPolicy(*build_tiny(task.alphabet, **sizes, seed=1))
    return demonstration_batch(policy, task, numbered_examples, 0, errors=ErrorPolicy(mode))


@pytest.mark.parametrize("task", [Falling(), Broken(length=2)])
def test_the_others_are_what_they_would_have_been(task: Any) -> None:
    mixed, alone = batch(task, [0, 1, 4, 5], "drop_row"), batch(task, [1, 5], "drop_row")
    assert mixed.group_b.tolist() == alone.group_b.tolist() == [11, 15]
    assert mixed.inputs == alone.inputs
    assert mixed.mask_bt.tolist() == alone.mask_bt.tolist()


@pytest.mark.parametrize("task", [Falling(), Broken(length=2)])
def test_a_step_without_any_is_none(task: Any) -> None:
    assert batch(task, [0, 4], "zero") is None


def test_a_run_goes_on_where_a_whole_step_failed(tmp_path: Path) -> None:
    changes = settings() | {"warmup": {"steps": 4, "batch": 1}}
    found = records(launch(tmp_path / "run", task=f"{__file__}:Falling", **changes), "warmup")
    assert [(record["demonstrations_failed"], record["tokens"] > 0) for record in found] == [
        (1.0, False),
        (0.0, True),
        (0.0, True),
        (0.0, True),
    ]
    assert [record.get("demonstrated_turns") for record in found] == [None, 2.0, 2.0, 2.0]


def test_completions_have_the_right_words_too() -> None:
    words = r"^The demonstration failed; for instance sample reverse/train/4#demonstration: demonstration\(\) raised "
    with pytest.raises(RunError, match=words + "ValueError: no idea"):
        batch(Broken(length=2), [1, 4], "raise")


def test_a_run_of_completions_goes_on_too(tmp_path: Path) -> None:
    """Example 0, which is looked at before the run begins, is one of those that raise."""
    task = {"name": f"{__file__}:Broken", "length": 2}
    folder = launch(tmp_path / "run", task=task, method="grpo", **settings())
    assert [record["demonstrations_failed"] for record in records(folder, "warmup")] == [2.0, 2.0, 2.0]
