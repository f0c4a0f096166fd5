"""Reward models on several ranks: the run of one process, what it keeps of its rows, kills, and the saved model."""

from __future__ import annotations

from pathlib import Path

import pytest

import rank_rewards
import rank_runs
from grouprl.config.run import load_config, parse_config
from grouprl.orchestrator.rank_refusals import rank_refusals
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.policy.language.load_reward import load_reward_model
from grouprl.training.export import export

WAYS = {
    "bradley_terry": 2,
    "reward_regression": 3,
    "attribute_regression+context": 2,
    "process_reward": 2,
    "gpm+tensor": 2,
    "reward_regression+lora+offload": 2,
}
"""Pairs, ratings, several heads on rows in slices, steps, a game on cut matrices, adapters; on how many ranks."""


def ran(config: Path, folder: Path, ranks: int, *more: str) -> Path:
    rank_runs.train_on(ranks, config, folder, "-q", *more)
    return folder


@pytest.mark.parametrize("case", WAYS)
def test_a_reward_model_on_ranks_is_that_of_one_process(tmp_path: Path, case: str) -> None:
    config = rank_rewards.write_case(tmp_path, case)
    one = ran(rank_rewards.of_one_process(config), tmp_path / "one", 1)
    apart = rank_rewards.apart(one, ran(config, tmp_path / "several", WAYS[case]))
    assert apart.pop("samples") == 0.0
    assert max(apart.values()) < 1e-12, apart


def test_a_killed_rank_leaves_a_model_that_is_exported_and_trained_on(tmp_path: Path) -> None:
    config = rank_rewards.write_case(tmp_path, "bradley_terry+lora")
    whole, run = ran(config, tmp_path / "whole", 2), tmp_path / "run"
    codes, said = rank_runs.on_ranks(2, config, run, "-q", fault="1 step begins 6 kill")
    assert codes[0] == 3, said
    assert "rank 1 of 2 is gone" in said
    assert export(run, tmp_path / "out", 2) == "checkpoint 2", "its scores are those of transformers"
    assert load_reward_model(tmp_path / "out", trained=True).outputs == ("score",)
    ran(config, run, 2, "--resume")
    assert rank_runs.evidence(run) == rank_runs.evidence(whole), "byte for byte"
    other, said = tmp_path / "other", ""
    codes, said = rank_runs.on_ranks(2, config, other, "-q", fault="0 metrics 3 int")
    assert codes[0] == 130, said
    ran(config, other, 1, "--resume")
    assert max(rank_rewards.apart(whole, other).values()) < 1e-12


def test_a_reward_model_of_ranks_pays_a_policy(tmp_path: Path) -> None:
    trained = ran(rank_rewards.write_config(tmp_path, "bradley_terry"), tmp_path / "rm", 2)
    config = rank_runs.write_config(tmp_path, "policy", reward={"model": str(trained)}, steps=2)
    apart = rank_runs.apart(ran(config, tmp_path / "one", 1), ran(config, tmp_path / "two", 2))
    assert max(apart.values()) < 1e-12, apart


def test_updates_are_recorded_on_ranks_as_in_one_process(tmp_path: Path) -> None:
    kept = {"rollouts_every": 1, "record_updates": "gradients", "checkpoint_every": 2, "rank_timeout": 60}
    config = rank_runs.write_config(tmp_path, run=kept, steps=2)
    runs = [rank_rewards.stored(ran(config, tmp_path / str(ranks), ranks)) for ranks in (1, 2)]
    seen = dict.fromkeys(("ratio", "weight", "push", "gradient"), 0.0)
    for mine, theirs in zip(*runs, strict=True):
        for name in seen:
            one, other = (each[name] if isinstance(each[name], list) else [each[name]] for each in (mine, theirs))
            assert [x is None for x in one] == [x is None for x in other], name
            pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None]
            assert all(abs(a - b) < 1e-12 for a, b in pairs), (name, pairs)
            seen[name] = max([seen[name], *(abs(a) for a, _ in pairs)])
    assert min(seen.values()) > 0, seen


def test_a_plan_has_no_word_against_ranks_but_for_reward_models_of_users(tmp_path: Path) -> None:
    config = load_config(str(rank_rewards.write_config(tmp_path, "bradley_terry")))
    assert list(rank_refusals(resolve(config), 2)) == []
    placed = config.model_copy(update={"cluster": config.cluster.model_copy(update={"learners": 2})})
    assert not [each for each in plan(placed).refusals if "reward model" in str(each)]
    users = parse_config({"task": "preferences", "method": "vpl", "batch": {"prompts": 4, "group_size": 2}})
    assert [each for each in rank_refusals(resolve(users), 2) if "a reward model of users" in each]
