"""Whole runs of tasks that are acted in over turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import toy_envs
from episode_runs import launch, records, run_config
from grouprl import RunError
from grouprl.config.run import parse_config
from grouprl.plan.plan import plan


def test_a_policy_learns_to_ask_and_to_answer(tmp_path: Path) -> None:
    task = {"name": f"{toy_envs.__file__}:AskTask", "noise": 0.5}
    folder = launch(tmp_path / "run", task=task, warmup={"steps": 100, "batch": 32, "lr": 1e-2}, steps=40)
    before, after = records(folder, "eval")[0], records(folder, "eval")[-1]
    assert before["eval/pass@1"] < 0.6
    assert after["eval/pass@1"] > 0.9
    last = records(folder, "train")[-1]
    assert last["reward_mean"] > 0.85
    assert last["turns_mean"] == 2.0
    assert last["invalid_fraction"] < 0.1


def test_planning_counts_what_the_environment_says() -> None:
    made = plan(parse_config(run_config()))
    assert not made.refusals
    assert made.batch.prompt_tokens == 2
    assert made.batch.max_new_tokens == 2 * (2 + 1)
    small = {"name": "tiny", "tiny": {**run_config()["model"]["tiny"], "max_positions": 6}}
    assert any("2 turns can take 8 positions" in note for note in plan(parse_config(run_config(model=small))).notes)


@pytest.mark.parametrize("method", ["gigpo", "mt_grpo", "turn_ppo", "ppo"])
def test_methods_train_on_turns(tmp_path: Path, method: str) -> None:
    record = records(launch(tmp_path / "run", method=method, eval={"final_prompts": 8}), "train")[-1]
    assert record["grad_norm"] > 0


def test_fields_of_turns_exist_where_there_are_turns() -> None:
    (reason,) = plan(parse_config(run_config(task="addition", method="mt_grpo"))).refusals
    assert "reads batch.turn_reward_bs" in reason


def test_a_warm_up_without_demonstrations_is_refused() -> None:
    config = run_config(task=f"{__file__}:Silent", warmup={"steps": 2})
    (reason,) = plan(parse_config(config)).refusals
    assert "has no demonstrations to imitate" in reason


class Silent(toy_envs.AskTask):
    """An environment that cannot show what to do."""

    def environment(self) -> Any:
        made = toy_envs.Asking()
        made_of = {name: staticmethod(getattr(made, name)) for name in ("reset", "step", "score", "close")}
        return type("Quiet", (), made_of)()


def test_what_a_run_records_of_episodes(tmp_path: Path) -> None:
    folder = launch(tmp_path / "run")
    rows = pq.read_table(folder / "rollouts" / "step-000002.parquet").to_pylist()
    assert len(rows) == 64
    for row in rows:
        assert len(row["mask"]) == len(row["completion_ids"]) == len(row["behavior_logp"]) == len(row["advantage"])
        mask, logp, advantage = row["mask"], row["behavior_logp"], row["advantage"]
        assert not any(logp[i] or advantage[i] for i, acted in enumerate(mask) if not acted)
        assert all(logp[i] < 0 for i, acted in enumerate(mask) if acted)
        assert not all(mask)
        assert row["prompt"] == "?"
        assert row["completion"].count("> ") == 2
        assert row["reward"] == dict(row["components"])["turn_rewards"]
    train_record = records(folder, "train")[-1]
    assert train_record["tokens"] == sum(sum(row["mask"]) for row in rows)
    assert train_record["length_mean"] == pytest.approx(sum(sum(row["mask"]) for row in rows) / 64)


class Fragile(toy_envs.AskTask):
    """One prompt in four has an environment that raises."""

    every = 4

    def environment(self) -> Any:
        every = self.every

        class Falling(toy_envs.Asking):
            def step(self, action: str) -> Any:
                if int(self.number) % every == 0 and self.turn == 1:
                    raise ValueError("the board fell down")
                return super().step(action)

            def reset(self, example: Any, seed: int) -> Any:
                self.number = example.id.rsplit("/", 1)[1]
                return super().reset(example, seed)

        return Falling()


@pytest.mark.parametrize(("mode", "used"), [("drop_row", 48), ("drop_group", 48), ("zero", 64)])
def test_failing_environments_follow_the_policy_of_the_run(tmp_path: Path, mode: str, used: int) -> None:
    reward = {"on_error": mode, "max_failed_fraction": 0.5}
    folder = launch(tmp_path / "run", task=f"{__file__}:Fragile", reward=reward, steps=1, eval={"final_prompts": 24})
    rows = pq.read_table(folder / "rollouts" / "step-000001.parquet").to_pylist()
    assert sum(row["used"] for row in rows) == used
    bad = [row for row in rows if row["status"] == "error"]
    assert len(bad) == 16
    assert "the environment failed (prompt 'ask/train/" in bad[0]["problem"]
    assert "ValueError: the board fell down" in bad[0]["problem"]
    (record,) = records(folder, "train")
    assert (record["reward_errors"], record["environment_errors"]) == (16, 16)


def test_the_first_failure_stops_a_run_that_asks_for_it(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^The environment failed; for instance sample .*the board fell down"):
        launch(tmp_path / "run", task=f"{__file__}:Fragile", reward={"on_error": "raise"}, eval={"final_prompts": 9})
