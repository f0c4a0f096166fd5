"""VPL: its loss by hand, the cycle of its weight, what it reduces to, and a run that resumes and pays."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import grouprl
from grouprl.algorithms.regularize.papers.user_kl import UserKL
from grouprl.config.run import parse_config
from grouprl.orchestrator.model_reward import load_model_reward
from grouprl.plan.plan import plan
from grouprl.policy.language.users.user_reward_model import UserRewardModel
from grouprl.tasks import load_task
from grouprl.training.export import export, load_trained
from grouprl.training.loop import train
from small import f64, near, small


def loss_of(name: str, outputs: dict[str, torch.Tensor], step: int = 0, **settings: Any) -> torch.Tensor:
    rows = len(next(iter(outputs.values())))
    batch = small([1.0, 0.0] * (rows // 2), groups=[i // 2 for i in range(rows)], old_bt=None, step=step)
    method = grouprl.method(name, **settings)
    return method.loss(None, method.prepare(batch), outputs=outputs).value


def logistic(z: float) -> float:
    return math.log1p(math.exp(-z))


@pytest.mark.parametrize(("step", "beta"), [(0, 0.1), (2, 0.1 + 0.9 / 2), (3, 0.1 + 0.9 * 0.75), (4, 0.1), (6, 0.55)])
def test_the_weight_rises_along_half_a_cosine_and_begins_anew(step, beta):
    """In 4 steps, of which (1 - cos(π·3/4))/2 is 0.853553."""
    expected = 0.1 + 0.9 * 0.8535533905932737 if step == 3 else beta
    assert UserKL(period=4).weight(step) == pytest.approx(expected, abs=1e-12)


def test_vpl_is_the_mean_over_pairs_of_two_terms() -> None:
    found = loss_of(
        "vpl",
        {"drawn_score": f64([1.0, -1.0, 0.0, 0.5]), "user_kl": f64([3.0, 3.0, 0.0, 0.0])},
        step=5000,
        kl_coef=0.2,
    )
    near(found, (logistic(2.0) + logistic(-0.5)) / 2 + 0.2 * 0.55 * 1.5)


def test_without_the_kl_it_is_bradley_terry_of_the_drawn_score() -> None:
    for gaps in ([0.5, -2.0], [50.0, -500.0]):
        score_b = f64([x for gap in gaps for x in (gap, 0.0)])
        vpl = loss_of("vpl", {"drawn_score": score_b, "user_kl": score_b * 0 + 7}, kl_coef=0.0)
        near(vpl, loss_of("bradley_terry", {"score": score_b}))


SETTINGS: dict[str, Any] = {
    "task": {"name": "preferences", "annotators": 2, "longest": 2, "context": 2},
    "method": {"name": "vpl", "kl_coef": 0.01, "period": 3},
    "model": {
        "name": "tiny",
        "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 16},
        "users": {"latent": 4, "hidden": 8},
    },
    "warmup": {"steps": 0},
    "steps": 4,
    "batch": {"prompts": 4, "group_size": 2},
    "optim": {"lr": 0.005, "schedule": "constant"},
    "eval": {"every": 0, "final_prompts": 4},
}


def run(folder: Any, **changes: Any) -> Any:
    where = {"run": {"folder": str(folder), "checkpoint_every": 2}}
    return train(parse_config(SETTINGS | where | changes)).folder


def test_a_run_learns_of_users_resumes_to_the_bit_and_pays(tmp_path):
    whole = run(tmp_path / "whole")
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["phase"] == "train"]
    assert min(step["user_kl"] for step in steps) > 0
    assert min(step["grad_norm"] for step in steps) > 0
    assert 0 <= rows[-1]["eval/pair_accuracy"] <= 1
    cut = run(tmp_path / "cut", steps=2)
    train(parse_config(SETTINGS), folder=cut, resume=True, changes=["steps=4"])
    for name in ("model.safetensors", "user_layers.safetensors"):
        one, other = (load_file(each / "model" / name) for each in (whole, cut))
        assert not [key for key, x in one.items() if not torch.equal(x, other[key])]
    trained = load_trained(whole).model
    assert isinstance(trained, UserRewardModel)
    export(whole, tmp_path / "out")
    task = load_task(SETTINGS["task"])
    prompt = task.example("eval", 0).prompt
    reward = load_model_reward([str(whole)])
    paid = reward.models[0].scores(reward.models[0].tokens_of([prompt], ["a"]))
    torch.testing.assert_close(paid, trained.scores(trained.tokens_of([prompt], ["a"])), rtol=0, atol=1e-5)


def test_the_plan_says_whose_score_it_is_and_refuses_adapters():
    notes = " ".join(plan(parse_config(SETTINGS)).notes)
    assert "on what the judgements before a prompt say of its user" in notes
    model = {**SETTINGS["model"], "lora": {"r": 2}}
    assert "trained whole" in " ".join(plan(parse_config(SETTINGS | {"model": model})).refusals)
