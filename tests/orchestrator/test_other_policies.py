"""Policies that are no language models, trained by the whole trainer from a YAML file."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from grouprl.config.run import load_config, parse_config
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from grouprl.envs import Step
from grouprl.orchestrator.make_policy import build_policy
from grouprl.orchestrator.resolve import resolve
from grouprl.plan.plan import plan
from grouprl.protocols import Box, Spaces
from grouprl.protocols.run_events import RunListener, StepEnded
from grouprl.training.export import load_trained
from grouprl.training.loop import train

gymnasium = pytest.importorskip("gymnasium")

HERE = Path(__file__).parents[1] / "support"
TIMING = ("seconds", "tokens_per_second", "memory_mb")

CARTPOLE: dict[str, Any] = {
    "task": {"name": "control:CartPole-v1", "turns": 100, "success": 90},
    "model": {"name": "mlp", "settings": {"hidden": [32, 32]}},
    "method": "grpo",
    "steps": 12,
    "batch": {"prompts": 4, "group_size": 8, "minibatches": 2, "epochs": 2},
    "optim": {"lr": 1e-2, "schedule": "constant"},
    "eval": {"every": 0, "final_prompts": 16},
    "environment": {"workers": 0},
    "run": {"checkpoint_every": 5, "threads": 1},
}
BRIEF: dict[str, Any] = {
    "task": {"name": "control:CartPole-v1", "turns": 24, "success": 20},
    "eval": {"every": 0, "final_prompts": 4},
}
"""Changes for runs that need not learn: some episodes still end before the limit."""
LANES: dict[str, Any] = {
    "task": {"name": "control:CartPole-v1", "turns": 40, "horizon": 16, "success": 40},
    "model": {"name": "mlp", "settings": {"hidden": [16], "normalise": True}},
    "method": {"name": "ppo_control", "scale_rewards": True, "size": 32},
    "batch": {"prompts": 4, "group_size": 1, "epochs": 2},
}
"""Changes for runs whose environments go on from step to step."""
RECURRENT = {"name": "recurrent", "settings": {"width": 8, "cell": "lstm", "normalise": True}}
DENOISING: dict[str, Any] = {
    "task": {"name": f"env:{HERE / 'denoising.py'}:Denoising", "turns": 4, "own_luck": True},
    "model": {"name": f"{HERE / 'denoising.py'}:Chain", "settings": {"sigma": 0.3}},
    "method": "grpo",
    "steps": 30,
    "batch": {"prompts": 8, "group_size": 8, "minibatches": 2},
    "optim": {"lr": 1e-2, "schedule": "constant"},
    "eval": {"every": 0, "final_prompts": 32},
    "environment": {"workers": 0},
    "run": {"checkpoint_every": 10, "threads": 1},
}


def written(settings: dict[str, Any], folder: Path, **changes: Any) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**settings, **changes}))
    return path


def run(path: Path, folder: Path) -> list[dict[str, Any]]:
    train(load_config(str(path)), folder=folder, console=Console(quiet=True))
    return records(folder)


def records(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(TIMING)} for row in rows]


def of_phase(rows: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["phase"] == phase]


def test_a_perceptron_learns_to_balance_a_pole(tmp_path: Path) -> None:
    rows = run(written(CARTPOLE, tmp_path), tmp_path / "run")
    before, after = of_phase(rows, "eval")
    steps = of_phase(rows, "train")
    assert before["eval/length_mean"] < 40  # a random policy falls after some twenty steps
    assert after["eval/length_mean"] > 85
    assert after["eval/pass@1"] > before["eval/pass@1"] + 0.7
    assert steps[0]["reward_mean"] == pytest.approx(steps[0]["length_mean"])  # a point for every step
    assert steps[0]["entropy"] == pytest.approx(np.log(2), abs=1e-3)
    assert steps[0]["logp_gap_max"] < 1e-5  # the sampler's log-probs are the policy's
    folder = tmp_path / "run"
    assert (folder / "report.html").is_file()
    assert isinstance(json.loads((folder / "health.json").read_text()), list)
    assert (folder / "model" / "policy.safetensors").is_file()
    assert len(list((folder / "rollouts").iterdir())) == 12


def test_a_denoising_chain_learns_to_reach_its_target(tmp_path: Path) -> None:
    rows = run(written(DENOISING, tmp_path), tmp_path / "run")
    before, after = of_phase(rows, "eval")
    steps = of_phase(rows, "train")
    assert before["eval/greedy"] < 0.3
    assert after["eval/greedy"] > 0.8
    assert steps[-1]["reward_mean"] > steps[0]["reward_mean"] + 0.3
    assert {row["length_mean"] for row in steps} == {4.0}
    # Four steps of a normal in two dimensions with a deviation of 0.3: the entropy is known.
    assert steps[0]["entropy"] == pytest.approx(2 * (0.5 * np.log(2 * np.pi * np.e) + np.log(0.3)), abs=1e-4)


TOURS: dict[str, Any] = {
    "task": {"name": f"env:{HERE / 'tours.py'}:WholeTour", "turns": 1},
    "model": {"name": f"{HERE / 'tours.py'}:Pointer"},
    "method": "grpo",
    "steps": 20,
    "batch": {"prompts": 8, "group_size": 16, "minibatches": 2},
    "optim": {"lr": 1e-2, "schedule": "constant"},
    "eval": {"every": 0, "final_prompts": 64},
    "environment": {"workers": 0},
    "run": {"threads": 1},
}


def test_a_solver_that_reads_its_map_once_learns_shorter_tours(tmp_path: Path) -> None:
    rows = run(written(TOURS, tmp_path), tmp_path / "run")
    before, after = of_phase(rows, "eval")
    assert after["eval/reward"] > before["eval/reward"] + 0.3
    steps = of_phase(rows, "train")
    assert {row["length_mean"] for row in steps} == {6.0}
    assert max(row["logp_gap_max"] for row in steps) < 1e-5  # masks and maps are scored as they were sampled


def test_a_run_of_whole_chains_is_the_run_step_by_step(tmp_path: Path) -> None:
    whole = {"name": f"env:{HERE / 'denoising.py'}:WholeDenoising", "turns": 1, "own_luck": True}
    short = {"steps": 2, "method": {"name": "grpo", "kl_coef": 0.1}}
    one = run(written(DENOISING, tmp_path, **short), tmp_path / "one")
    all_at_once = run(written(DENOISING, tmp_path, **short, task=whole), tmp_path / "whole")
    assert len(one) == len(all_at_once)
    for step, chain in zip(one, all_at_once, strict=True):
        assert chain.pop("turns_mean", 1.0) == 1.0
        assert step.pop("turns_mean", 4.0) == 4.0
        assert chain == step
    weights = [(tmp_path / name / "model" / "policy.safetensors").read_bytes() for name in ("one", "whole")]
    assert weights[0] == weights[1]


def test_a_limit_of_time_bootstraps_the_returns_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from grouprl.training import loop

    seen: list[Batch] = []
    whole = loop.with_scores

    def kept(*given: Any, **settings: Any) -> Batch:
        seen.append(whole(*given, **settings))
        return seen[-1]

    monkeypatch.setattr(loop, "with_scores", kept)
    short = {"name": "control:CartPole-v1", "turns": 12}
    method = {"base": "ppo", "advantage": {"gamma": 0.9}, "critic": {"gamma": 0.9, "clip": None}}
    batch = {"prompts": 4, "group_size": 8, "minibatches": 4, "epochs": 4}
    changes = {"task": short, "method": method, "steps": 12, "batch": batch}
    rows = of_phase(run(written(CARTPOLE, tmp_path, **changes), tmp_path / "run"), "train")
    for step in seen:
        assert step.final_value_b is not None
        assert step.truncated_b is not None
        assert step.truncated_b.any()
        assert torch.equal(step.final_value_b != 0, step.truncated_b)
    # 12 points at the end are worth 12·0.9^k with k actions to go, 7.2 on average, unless the episode goes on.
    paid = np.mean([12 * 0.9**left for left in range(12)])
    assert rows[0]["return_mean"] < paid
    assert rows[-1]["return_mean"] > paid + 1


def test_a_critic_without_discount_is_noted_in_the_plan() -> None:
    notes = [*plan(parse_config({**CARTPOLE, "method": "ppo"})).notes]
    assert any("Set gamma below 1" in note for note in notes)
    method = {"base": "ppo", "advantage": {"gamma": 0.9}, "critic": {"gamma": 0.9}}
    assert not any("gamma" in note for note in plan(parse_config({**CARTPOLE, "method": method})).notes)


@pytest.mark.parametrize("method", ["ppo", "reference"])
def test_critics_and_references_work_with_any_policy(tmp_path: Path, method: str) -> None:
    named: Any = "ppo" if method == "ppo" else {"name": "grpo", "kl_coef": 0.1}
    rows = of_phase(run(written(CARTPOLE, tmp_path, **BRIEF, method=named, steps=3), tmp_path / "run"), "train")
    if method == "ppo":
        assert all(np.isfinite(row["value_loss"]) for row in rows)
    else:
        assert rows[0]["kl_ref"] == pytest.approx(0.0, abs=0.05)
        assert rows[-1]["kl_ref"] > 0.0


class Deadly(RunListener):
    """Kills the run as a step of training has ended."""

    def __init__(self, last: int) -> None:
        self.last = last

    def step(self, event: StepEnded) -> None:
        if event.phase == "train" and event.step == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def _die_at(path: str, folder: str, step: int) -> None:
    train(load_config(path), folder=Path(folder), console=Console(quiet=True), listeners=[Deadly(step)])


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        (CARTPOLE, {**BRIEF, "method": "ppo"}),
        (CARTPOLE, {**BRIEF, "method": {"name": "grpo", "kl_coef": 0.1}, "optim": {"name": "sgd", "lr": 0.1}}),
        (DENOISING, {"eval": {"every": 0, "final_prompts": 4}}),
        (CARTPOLE, {**BRIEF, **LANES}),
        (CARTPOLE, {**BRIEF, "method": "ppo", "model": RECURRENT}),
    ],
    ids=["critic", "reference", "chain", "lanes", "memory"],
)
def test_a_killed_run_ends_like_one_that_was_not(tmp_path: Path, settings: Any, changes: Any) -> None:
    """It is killed a step after a checkpoint, and a step before its end."""
    short = {"steps": 4, "run": {"checkpoint_every": 2, "threads": 1}}
    path = written(settings, tmp_path, **changes, **short)
    whole = run(path, tmp_path / "whole")
    spawned = multiprocessing.get_context("spawn").Process(
        target=_die_at, args=(str(path), str(tmp_path / "killed"), 3)
    )
    spawned.start()
    spawned.join(120)
    assert spawned.exitcode == -signal.SIGKILL
    train(load_config(str(path)), folder=tmp_path / "killed", resume=True, console=Console(quiet=True))
    assert records(tmp_path / "killed") == whole
    for name in ("model/policy.safetensors", *(f"rollouts/{p.name}" for p in (tmp_path / "whole/rollouts").iterdir())):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_trained_policy_is_loaded_again(tmp_path: Path) -> None:
    run(written(CARTPOLE, tmp_path, **BRIEF, steps=2), tmp_path / "run")
    trained = load_trained(tmp_path / "run")
    from safetensors.torch import load_file

    stored = load_file(tmp_path / "run" / "model" / "policy.safetensors")
    assert all(torch.equal(stored[name], x) for name, x in trained.policy.trainable_state().items())


def test_environments_act_in_workers_as_they_do_here(tmp_path: Path) -> None:
    changes = {"steps": 1, "task": {"name": "control:CartPole-v1", "turns": 8}, "eval": BRIEF["eval"]}
    here = run(written(CARTPOLE, tmp_path, **changes), tmp_path / "here")
    away = run(written(CARTPOLE, tmp_path, **changes, environment={"workers": 1}), tmp_path / "away")
    assert away == here


class Broken:
    """Fails in its second step for half of its seeds, or shows what is not in its space."""

    spaces = Spaces(observation=Box((2,)), action=Box((1,)))

    def __init__(self, how: str) -> None:
        self.how, self.odd, self.time = how, False, 0

    def reset(self, example: Any, seed: int) -> Any:
        self.odd = seed % 2 == 1
        return [0.0, 0.0]

    def step(self, action: Any) -> Any:
        self.time += 1
        if self.odd and self.time == 2:
            if self.how == "raise":
                raise RuntimeError("the pole broke")
            return Step([0.0] * 3 if self.how == "shape" else [0.0, float("nan")])  # type: ignore[arg-type]
        return Step([0.0, 1.0], float(action[0]), terminated=self.time == 3)  # type: ignore[arg-type]

    def score(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("how", "said"), [("raise", "the pole broke"), ("shape", "(3,)"), ("nan", "finite")])
def test_environments_that_fail_are_named_and_left_out(tmp_path: Path, how: str, said: str) -> None:
    changes = {
        "task": {"name": f"env:{__file__}:Broken", "turns": 5, "config": {"how": how}, "own_luck": True},
        "steps": 1,
        "eval": BRIEF["eval"],
        "reward": {"on_error": "drop_row", "max_failed_fraction": 1.0},
    }
    (row,) = of_phase(run(written(CARTPOLE, tmp_path, **changes), tmp_path / "run"), "train")
    import pyarrow.parquet as pq

    problems = pq.read_table(tmp_path / "run" / "rollouts").to_pydict()["problem"]
    assert row["environment_errors"] == sum(problem is not None for problem in problems) > 0
    assert all(said in problem for problem in problems if problem)
    assert row["rows_used"] == 32 - row["environment_errors"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "tiny"}, "reads text. Set model: mlp"),
        ({"task": "addition"}, "is made of text"),
        ({"model": {"name": "mlp", "settings": {"hiden": [3]}}}, "model.settings.hiden"),
        ({"model": {"name": "mlp", "settings": {"activation": "gelu"}}}, "activation = gelu"),
        ({"model": {"name": "mlp", "lora": {"r": 4}}}, "model.lora is a setting of language models"),
        ({"model": {"name": "tiny", "settings": {"hidden": 3}}, "task": "addition"}, "model.settings"),
        ({"model": RECURRENT, "method": "ppo_control"}, "remembers what came before"),
        ({"model": RECURRENT, "task": {"name": "control:CartPole-v1", "horizon": 8}}, "Leave out task.horizon"),
        ({"warmup": {"steps": 3}}, "warmup.steps"),
        ({"sampling": {"top_k": 3}}, "sampling.top_k"),
        ({"method": "archer"}, "archer"),
        ({"method": "gmah"}, "lacks it. Set model: team_values"),
        ({"optim": {"name": "adamv"}}, "Did you mean 'adam'"),
        ({"optim": {"name": "lbfgs"}}, "evaluates the loss several times"),
        ({"optim": {"name": "sgd", "settings": {"momentun": 0.9}}}, "momentum"),
        ({"optim": {"name": "sgd", "settings": {"momentum": -1.0}}}, "Invalid momentum"),
        ({"optim": {"name": "sgd", "betas": [0.8, 0.9]}}, "sgd has no betas"),
        ({"optim": {"settings": {"lr": 0.9}}}, "optim.lr"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(changes: Any, said: str) -> None:
    with pytest.raises(InputError) as found:
        plan(parse_config({**CARTPOLE, **changes})).raise_if_refused()
    assert said.lower() in str(found.value).lower()


def test_no_policy_is_mistaken_for_one(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Mine:\n    def __init__(self, build):\n        pass\n")
    for name, said in ((f"{tmp_path}/mine.py:Mine", "has no backward"), (f"{tmp_path}/mine.py:Other", "no 'Other'")):
        with pytest.raises(InputError, match=said):
            plan(parse_config({**CARTPOLE, "model": name})).raise_if_refused()


def test_the_plan_of_a_policy_over_vectors_has_its_memory() -> None:
    found = plan(parse_config(CARTPOLE))
    size = {cost.what: cost.bytes for cost in found.costs}
    policy = build_policy(resolve(parse_config(CARTPOLE)))
    weights = sum(4 * parameter.numel() for parameter in policy.parameters())
    assert size["weights"] == size["gradients"] == size["Adam moments"] // 2 == weights
    rows = found.batch.completions
    assert size["rollout cache"] == rows * resolve(parse_config(CARTPOLE)).task.max_turns * 4 * 4
    assert found.peak == sum(size.values())
    with_reference = plan(parse_config({**CARTPOLE, "model": {**CARTPOLE["model"], "reference": "initial"}}))
    assert {cost.what: cost.bytes for cost in with_reference.costs}["reference copy"] == weights
