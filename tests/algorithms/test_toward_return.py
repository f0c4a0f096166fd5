"""COUNTERPOL: the gradient is exactly that of the squared distance, and the nearest policy is found."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from rich.console import Console

import grouprl
from grouprl.algorithms.advantage_transform.papers.toward_return import TowardReturn, others_mean
from grouprl.config.run import parse_config
from grouprl.policy import Build, Mlp
from grouprl.training.loop import train
from small import near, small

PAY = torch.tensor([1.0, 0.6, 0.0], dtype=torch.float64)


def test_the_others_mean_leaves_the_row_itself_out() -> None:
    near(others_mean(small([1.0, 0.0, 2.0]), 7.0), [1.0, 1.5, 0.5])
    near(others_mean(small([1.0]), 7.0), [7.0])


def test_rows_that_do_not_count_are_in_nobodys_mean() -> None:
    batch = small([1.0, 0.0, 2.0]).replace(stat_b=torch.tensor([True, True, False]))
    near(others_mean(batch, 7.0), [0.0, 1.0, 0.5])


def test_below_the_target_better_rows_are_pushed_up_and_above_it_down() -> None:
    batch = small([1.0, 0.0])
    adv_bt = torch.tensor([[0.5], [-0.5]], dtype=torch.float64)
    near(TowardReturn(target=2.0)(adv_bt, batch), [[2.0], [-1.0]])
    near(TowardReturn(target=-1.0)(adv_bt, batch), [[-1.0], [2.0]])


@pytest.mark.parametrize("rows", [2, 3])
def test_the_mean_gradient_is_that_of_the_squared_distance(rows: int) -> None:
    """Over all samples of two or three rows from three arms, each with its chance."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    logp_a = logits.log_softmax(0)
    (wanted,) = torch.autograd.grad(((logp_a.exp() @ PAY) - 0.8).square(), logits, retain_graph=True)
    method, total = grouprl.method("counterpol", target=0.8, coef=0.0), torch.zeros(3, dtype=torch.float64)
    for arms in itertools.product(range(3), repeat=rows):
        index = torch.tensor(arms)
        logp_bt = logits.log_softmax(0)[index][:, None]
        batch = small(PAY[index].tolist()).replace(group_b=torch.zeros(rows, dtype=torch.int64))
        loss = method.loss(logp_bt, method.prepare(batch)).value
        (slope,) = torch.autograd.grad(loss, logits)
        total += logp_a.detach()[index].sum().exp() * slope
    assert torch.allclose(total, wanted, atol=1e-12)


def test_without_a_weight_no_pivot_is_kept() -> None:
    assert grouprl.method("counterpol", coef=0.0).regularize == ()
    assert grouprl.method("counterpol", every=4).regularize[0].every == 4  # type: ignore[attr-defined]


def test_the_target_is_reached_by_the_nearest_policy(tmp_path: Path) -> None:
    """From even shares to a mean of 0.7: exp(1.091·pay) is the nearest policy, at a KL of 0.0872."""
    config = {
        "task": "env:grouprl.envs.construction.arms:Arms",
        "model": {"name": "mlp", "settings": {"hidden": [8]}},
        "method": {"name": "counterpol", "baseline": "group", "target": 0.7, "every": 1000},
        "batch": {"prompts": 1, "group_size": 64, "minibatches": 1},
        "steps": 60,
        "warmup": {"steps": 0},
        "eval": {"every": 0, "prompts": 1, "final_prompts": 1},
        "optim": {"lr": 0.03, "schedule": "constant"},
        "run": {"threads": 1},
    }
    train(parse_config(config), folder=tmp_path / "run", console=Console(quiet=True))
    from safetensors.torch import load_file

    from grouprl.envs.construction.arms import Arms

    policy = Mlp(Build(Arms().spaces, seed=0), hidden=(8,))
    policy.load_trainable_state(load_file(tmp_path / "run" / "model" / "policy.safetensors"))
    with torch.no_grad():
        share_a = policy.module["mean"](torch.ones(1, 1))[0].double().softmax(0)  # type: ignore[index]
    assert float(share_a @ PAY) == pytest.approx(0.7, abs=0.03)
    assert float((share_a * (3 * share_a).log()).sum()) < 0.12
