"""Policies over arrays on several ranks, each with a copy: the run of one process, kills, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import rank_catalogue
import rank_runs
from grouprl.config.run import parse_config
from grouprl.orchestrator.rank_refusals import rank_refusals
from grouprl.orchestrator.resolve import resolve
from ranks import run_on_ranks

SUPPORT = Path(__file__).parents[1] / "support"
WIDE = str(SUPPORT / "wide_policy.py")
NORMALISED = {"name": "mlp", "dtype": "float64", "settings": {"hidden": [8], "normalise": True}}
OWN = {"name": f"{WIDE}:Wide", "dtype": "float64"}


WHOLE_ROWS = {
    "task": {"name": "control:CartPole-v1", "turns": 24},
    "method": "ppo",
    "batch": {"prompts": 4, "group_size": 2, "minibatches": 2, "epochs": 2, "tokens_per_microbatch": 16},
}
"""Changes for policies that remember: rows stay whole, in whichever passes."""
SWINGING = {"task": {"name": "control:Pendulum-v1", "turns": 12}, "batch": {**WHOLE_ROWS["batch"], "minibatches": 1}}
KINDS: dict[str, dict[str, Any]] = {
    **{
        cell: {"model": {"name": "recurrent", "settings": {"width": 6, "cell": cell, "normalise": True}}, **WHOLE_ROWS}
        for cell in ("gru", "lstm")
    },
    **{
        f"{cell} of vectors": {
            "model": {"name": "recurrent", "settings": {"width": 6, "cell": cell}},
            **WHOLE_ROWS,
            **SWINGING,
        }
        for cell in ("gru", "lstm")
    },
    **{kind: {"model": {"name": kind, "settings": {"hidden": [8]}}, **SWINGING} for kind in ("mixture", "squashed")},
}
"""Runs of policies that remember, and of those whose actions are of several or bounded normals."""


def settings(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": {"name": "control:CartPole-v1", "horizon": 16},
        "model": model,
        "method": {"name": "ppo_control", "size": 16},
        "steps": 4,
        "batch": {"prompts": 4, "group_size": 1, "epochs": 2, "tokens_per_microbatch": 16},
        "eval": {"every": 0, "final_prompts": 2},
        "run": {"checkpoint_every": 2, "threads": 1, "rank_timeout": 60},
        "plugins": [rank_runs.KILLER],
    }


def write(folder: Path, model: dict[str, Any]) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(settings(model)))
    return path


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(next((run / "model").glob("*.safetensors")))


def apart(one: Path, other: Path) -> float:
    mine, theirs = weights(one), weights(other)
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


@pytest.mark.parametrize("model", [NORMALISED, OWN], ids=["normalised", "of a file"])
def test_a_run_that_loses_a_rank_goes_on_with_another_number_of_them(model: dict[str, Any], tmp_path: Path) -> None:
    config = write(tmp_path, model)
    for ranks in (1, 2):
        rank_runs.train_on(ranks, config, tmp_path / f"r{ranks}", "-q")
    assert apart(tmp_path / "r1", tmp_path / "r2") < 1e-13
    assert rank_catalogue.differing(tmp_path / "r1", tmp_path / "r2") == {}
    struck = tmp_path / "struck"
    codes, said = rank_runs.on_ranks(2, config, struck, "-q", fault="1 passes of copies 13 kill")
    assert codes[0] == 3, said
    assert "rank 1 of 2 is gone" in said
    assert not (struck / "model").exists()
    rank_runs.train_on(3, config, struck, "-q", "--resume")
    assert apart(tmp_path / "r1", struck) < 1e-13


def test_the_same_number_of_ranks_continues_with_the_same_bytes(tmp_path: Path) -> None:
    config = write(tmp_path, NORMALISED)
    rank_runs.train_on(2, config, tmp_path / "whole", "-q")
    struck = tmp_path / "struck"
    codes, said = rank_runs.on_ranks(2, config, struck, "-q", fault="0 weights of copies 20 kill")
    assert codes[0] == -9, said
    rank_runs.train_on(2, config, struck, "-q", "--resume")
    mine, theirs = weights(tmp_path / "whole"), weights(struck)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def of_kind(folder: Path, name: str, **batch: Any) -> Path:
    """Write the run of a kind of policy in float64."""
    given = settings({}) | KINDS[name]
    given["model"] = {**given["model"], "dtype": "float64"}
    given["batch"] = {**given["batch"], **batch}
    path = folder / f"{len(list(folder.glob('*.yaml')))}.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


@pytest.mark.parametrize("name", KINDS)
def test_what_remembers_and_what_mixes_is_cut_into_any_passes_and_copied_to_ranks(name: str, tmp_path: Path) -> None:
    """Passes of 16 actions, of one row and of all rows; one rank and two; and two of which one was killed."""
    config = of_kind(tmp_path, name)
    rank_runs.train_on(1, config, tmp_path / "cut", "-q")
    for passes in (1, 4096):
        rank_runs.train_on(1, of_kind(tmp_path, name, tokens_per_microbatch=passes), tmp_path / f"p{passes}", "-q")
        assert apart(tmp_path / "cut", tmp_path / f"p{passes}") < 1e-12
    rank_runs.train_on(2, config, tmp_path / "two", "-q")
    assert apart(tmp_path / "cut", tmp_path / "two") < 1e-12
    struck = tmp_path / "struck"
    codes, said = rank_runs.on_ranks(2, config, struck, "-q", fault="1 passes of copies 5 kill")
    assert codes[0] == 3, said
    rank_runs.train_on(2, config, struck, "-q", "--resume")
    mine, theirs = weights(tmp_path / "two"), weights(struck)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_policy_that_cannot_be_sent_is_refused_in_words(tmp_path: Path) -> None:
    config = write(tmp_path, OWN | {"settings": {"closure": True}})
    codes, said = rank_runs.on_ranks(2, config, tmp_path / "run", "-q")
    assert codes[0] == 2
    assert "policy 'Wide' cannot be sent to a worker process" in " ".join(said.split())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"name": f"{WIDE}:Bare"}, "is neither a language model nor made of grouprl.policy.TrainableModule"),
        (NORMALISED | {"tensor_parallel": 2}, "model.tensor_parallel = 2: each rank holds a whole copy of mlp"),
        (NORMALISED | {"context_parallel": 2}, "model.context_parallel = 2: each rank holds a whole copy of mlp"),
        (NORMALISED | {"offload": True}, "model.offload = true: each rank holds a whole copy of mlp"),
    ],
)
def test_what_copies_cannot_do_is_refused_before_the_run(model: dict[str, Any], said: str) -> None:
    run = resolve(parse_config(settings(model)))
    assert any(said in reason for reason in rank_refusals(run, 2))


def test_any_optimiser_and_any_part_may_be_had_with_copies() -> None:
    given = settings(NORMALISED) | {"optim": {"name": "muon"}, "method": "trpo"}
    assert list(rank_refusals(resolve(parse_config(given)), 2)) == []


@pytest.mark.parametrize("ranks", [2, 3])
def test_outputs_and_gradients_are_those_of_one_process(ranks: int) -> None:
    found = json.loads(run_on_ranks(SUPPORT / "rank_copies.py", ranks).splitlines()[-1])
    assert found.pop("none") == 0
    assert min(found.pop(f"moved {turn}") for turn in range(2)) > 1
    assert max(found.values()) < 1e-14, found


def test_copies_train_while_a_sampler_plays_ahead(tmp_path: Path) -> None:
    """What these environments pay depends on how long they have been in play alone."""
    task = {
        "name": f"control:{SUPPORT / 'foreign_control.py'}:Walk",
        "turns": 20,
        "horizon": 4,
        "config": {"length": 7},
    }
    given = settings(NORMALISED) | {"task": task, "method": {"name": "ppo_control", "size": 8}, "steps": 6}
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(given | {"run": {**given["run"], "async_steps": 1}}))
    rank_runs.train_on(2, config, tmp_path / "run", "-q")
    found = [record for record in rank_runs.metrics(tmp_path / "run") if record["phase"] == "train"]
    paid = [(action % 7) + 1 for action in range(6 * 4)]
    assert [r["reward_mean"] * r["rows_sampled"] for r in found] == [
        4.0 * sum(paid[4 * step : 4 * step + 4]) for step in range(6)
    ]
    assert max(r["staleness_max"] for r in found) == 1.0
