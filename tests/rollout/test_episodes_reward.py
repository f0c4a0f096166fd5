"""A reward function beside the rewards of an environment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import toy_envs
from episode_runs import launch, records
from grouprl.rewards.scoring import score
from grouprl.rollout.episode_rows import with_function

VERDICTS = [{"turn_rewards": 1.0, "correct": 1.0}, {"turn_rewards": 0.5, "correct": 0.0}, {"turn_rewards": 2.0}]


def short(completion: str, letter: str = "") -> float | None:
    """0.25 for a transcript with the letter in it; it does not apply to empty ones."""
    return 0.25 * (letter in completion) if completion else None


def stated(completion: str, *, verdict: dict[str, float]) -> dict[str, float]:
    return verdict


def test_what_a_function_gives_is_added() -> None:
    texts, ids = ["> a", "> b", ""], ["x", "y", "z"]
    own = score(stated, texts, [{"verdict": v} for v in VERDICTS], ids=ids)
    more = score(short, texts, [{"letter": "a"}] * 3, ids=ids)
    both = with_function(own, more, "short")
    assert both.reward_b.tolist() == [1.25, 0.5, 2.0]
    np.testing.assert_array_equal(both.components["short"], [0.25, 0.0, np.nan])
    assert both.correct_b.tolist() == [True, False, True]
    assert both.ok_b.all()
    assert not both.problems


def test_where_it_fails_there_is_no_reward() -> None:
    def falls(completion: str) -> dict[str, float]:
        if completion == "> b":
            raise ValueError("no")
        return {"turn_rewards": 1.0}

    own = score(stated, ["> a", "> b"], [{"verdict": v} for v in VERDICTS[:2]], ids=["x", "y"])
    both = with_function(own, score(falls, ["> a", "> b"], [{}, {}], ids=["x", "y"]), "falls")
    assert both.reward_b[0] == 2.0
    assert np.isnan(both.reward_b[1])
    assert both.status_b.tolist() == ["ok", "error"]
    assert [problem.sample_id for problem in both.problems] == ["y"]
    assert both.components["falls.turn_rewards"][0] == 1.0


@pytest.mark.parametrize("task", ["AskTask", "TeamTask"])
def test_runs_train_on_both(tmp_path: Path, task: str) -> None:
    reward = {"function": f"{__file__}:short", "self_test": False, "workers": 0}
    name = f"{toy_envs.__file__}:{task}"
    folder = launch(tmp_path / "run", task=name, reward=reward, steps=1, eval={"final_prompts": 4})
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert {dict(row["components"])["short"] for row in rows} == {0.0, 0.25}
    for row in rows:
        parts = dict(row["components"])
        assert row["reward"] == pytest.approx(sum(value for key, value in parts.items() if key != "correct"))
    assert "reward/short" in records(folder, "train")[0]
