"""Every part that remembers something, in a run that goes on from a checkpoint: it ends as the run that never stopped.

Which parts these are is read off the registry: whatever asks its run for `context.state_of`. A new part is included by
itself, with the first entry of the catalogue that has it; one that no entry has needs a line in `COMPOSED`.
"""

from __future__ import annotations

import inspect
import shutil
import types
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from rich.console import Console

from grouprl.algorithms.part import KINDS, PARTS, Part
from grouprl.config.run import parse_config
from grouprl.methods import methods
from grouprl.storage.checkpoint import newest
from grouprl.storage.run_folder import RunFolder
from grouprl.training.loop import train
from killed_runs import evidence
from kills_catalogue import names, settings

STOPPED = 2
"""The step of training after which a run is continued from its checkpoint."""
COMPOSED: dict[str, dict[str, Any]] = {
    "curriculum.failure_neighbours": {"base": "grpo", "curriculum": {"part": "failure_neighbours", "after": 0.25}},
    "curriculum.rising_entropy": {"base": "grpo", "curriculum": "rising_entropy"},
    "pretrain.trajectory_reward": {
        "base": "grpo",
        "pretrain": [{"part": "trajectory_reward", "steps": 2}],
        "reward_transform": ["learned_reward"],
    },
    "pretrain.irl_reward": {
        "base": "grpo",
        "pretrain": [{"part": "irl_reward", "steps": 2}],
        "reward_transform": ["learned_reward"],
        "advantage_transform": ["difficulty_scale"],
    },
    "pretrain.rejection_step": {
        "base": "grpo",
        "kl_coef": 0.1,
        "pretrain": ["initial_completions", "rejection_step"],
    },
    "reward_transform.adaptive_kl_in_reward": {"name": "grpo@verl", "use_kl_in_reward": True, "kl_ctrl": "adaptive"},
    "regularize.adaptive_kl": {"base": "grpo", "regularize": [{"part": "adaptive_kl"}]},
    "curriculum.easy_to_hard": {"base": "grpo", "curriculum": {"part": "easy_to_hard", "by": "answer", "mastery": 0.1}},
    "curriculum.hard_stage": {"base": "grpo", "curriculum": {"part": "hard_stage", "after": 0.25}},
    "curriculum.reward_selection": {"base": "grpo", "curriculum": "reward_selection"},
    "curriculum.open_prompts": {"base": "grpo", "curriculum": "open_prompts"},
    "update.ranked_directions": {
        "base": "grpo",
        "update": {"part": "ranked_directions", "directions": 2, "best": 2},
    },
    "augment.tie_margin": {"name": "dpo_ties", "rate": 0.1},
}
"""Methods of parts that no entry of the catalogue has by default."""
ELSEWHERE = {
    "advantage.lagrangian": "it needs a task with costs: docs/kills_catalogue.json has its kill",
    "augment.return_scale": "it needs a policy over arrays: tests/orchestrator/test_other_policies.py, lanes",
    "pretrain.prompt_density": "it needs stored labels: tests/methods/test_prompt_density.py",
    "pretrain.interventions": "it needs a task of steps: tests/algorithms/test_interventions.py",
    "augment.send_called": "two runs exchange rows: tests/algorithms/test_exchange.py",
    "buffer.take_called": "two runs exchange rows: tests/algorithms/test_exchange.py",
    "update.coach_after_player": "players are examined over tens of steps: tests/algorithms/test_coaching.py",
    "augment.retrospect": "it writes reviews of whole episodes: tests/algorithms/test_reviews.py",
}
"""Parts that need more than one such run, or a longer one, and where they are resumed."""


def remembers(part: type[Part]) -> bool:
    """Whether some method of a part, or a function of its module that it calls, asks for what the part remembers."""
    module = vars(inspect.getmodule(part))
    own = [f for cls in part.__mro__ if cls.__module__.startswith("grouprl.algorithms") for f in vars(cls).values()]
    found, seen = [f.__code__ for f in own if inspect.isfunction(f)], set()
    while found:
        code = found.pop()
        if code in seen:
            continue
        seen.add(code)
        if "state_of" in code.co_names:
            return True
        found += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        found += [module[n].__code__ for n in code.co_names if inspect.isfunction(module.get(n))]
    return False


@cache
def stateful() -> tuple[str, ...]:
    """Parts that remember something, as `kind.name`."""
    found = [(kind, name, part) for kind in KINDS for name, part in sorted(PARTS[kind].items())]
    return tuple(f"{kind}.{name}" for kind, name, part in found if ours(part) and remembers(part))


def ours(part: type[Part]) -> bool:
    return part.__module__.startswith("grouprl.")


@cache
def entries() -> dict[str, str]:
    """The first entry of the catalogue with each of these parts."""
    found: dict[str, str] = {}
    for name in names():
        for part in methods()[name].build().parts():
            found.setdefault(f"{part.kind}.{part.name}", name)
    return found


def configuration(part: str) -> dict[str, Any]:
    """The tiny run of a part."""
    if part in COMPOSED:
        entry = COMPOSED[part].get("name", "grpo")
        return settings(entry) | {"method": COMPOSED[part]}
    return settings(entries()[part])


def test_every_part_with_a_memory_has_its_run() -> None:
    assert len(stateful()) > 25
    assert {part for part in stateful() if part not in {*entries(), *COMPOSED, *ELSEWHERE}} == set()
    assert set(COMPOSED) | set(ELSEWHERE) <= set(stateful())


@pytest.mark.parametrize("part", [part for part in stateful() if part not in ELSEWHERE])
def test_what_a_part_remembers_is_there_after_a_resume(part: str, tmp_path: Path) -> None:
    changes = configuration(part)
    config = parse_config(changes | {"run": {**changes["run"], "keep": 10, "threads": 1}})
    whole, other = tmp_path / "whole", tmp_path / "other"
    train(config, folder=whole, console=Console(quiet=True))
    shutil.copytree(whole, other)
    for checkpoint in list((other / "checkpoints").glob("step-*")):
        if int(checkpoint.name.removeprefix("step-")) > STOPPED:
            shutil.rmtree(checkpoint)
    shutil.rmtree(other / "model", ignore_errors=True)
    found, complaints = newest(RunFolder.open(other))
    assert complaints == []
    assert found is not None
    assert (found.state["phase"], found.state["step"]) == ("train", STOPPED)
    assert part in found.data["memory"], "the part has nothing to remember in this run"
    train(config, folder=other, resume=True, console=Console(quiet=True))
    one, two = left(whole), left(other)
    assert {name for name in one if not same(one[name], two[name])} == set()


@pytest.mark.parametrize("part", [part for part in stateful() if part.startswith("update.") and part not in ELSEWHERE])
def test_a_run_that_ended_goes_on_as_one_that_was_longer_from_the_beginning(part: str, tmp_path: Path) -> None:
    """An update may leave the policy elsewhere between two steps than at the end, where its weights are measured."""
    changes, quiet = configuration(part), Console(quiet=True)
    changes["method"] = {**changes["method"], **BOUNDARIES.get(part, {})}
    changes["run"] = {**changes["run"], "threads": 1}
    changes["optim"] = {**changes["optim"], "schedule": "constant"}
    longer, ended = tmp_path / "longer", tmp_path / "ended"
    train(parse_config(changes), folder=longer, console=quiet)
    short = parse_config({**changes, "steps": STOPPED})
    train(short, folder=ended, console=quiet)
    train(short, folder=ended, resume=True, changes=[f"steps={changes['steps']}"], console=quiet)
    one, two = left(longer), left(ended)
    for each in (one, two):
        each["metrics"] = [_without_measures(row) for row in cast("list[dict[str, Any]]", each["metrics"])]
    assert {name for name in one if not same(one[name], two[name])} == set()


BOUNDARIES = {"update.round_momentum": {"every": 2}, "update.achievement_phases": {"every": 4}}
"""Settings with which something is due where the shorter run ends, or spans its end."""


def _without_measures(row: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in row.items() if not (row["step"] == STOPPED and name.startswith("update_ratio"))}


def left(folder: Path) -> dict[str, object]:
    """Everything that a run leaves; what its parts remember as values, whose pickles may differ in what they share."""
    found, _ = newest(RunFolder.open(folder))
    assert found is not None
    return evidence(folder) | {"data.pt": found.data}


def same(one: Any, two: Any) -> bool:
    """Whether two plain values are the same to the bit; not-a-number is itself."""
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and one.numpy().tobytes() == two.numpy().tobytes()
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    return type(one) is type(two) and (one == two or (one != one and two != two))


def test_a_difference_is_found() -> None:
    value = {"a": [torch.ones(2), float("nan")], "b": (1, "x")}
    assert same(value, {"a": [torch.ones(2), float("nan")], "b": (1, "x")})
    assert not same(value, {"a": [torch.zeros(2), float("nan")], "b": (1, "x")})
    assert not same(value, {"a": [torch.ones(2), float("nan")], "b": (1.0, "x")})
