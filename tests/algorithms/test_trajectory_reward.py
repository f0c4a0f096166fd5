"""ARMAP: the loss of pairs, the model before training, and the reward it pays."""

from __future__ import annotations

import math

import pytest
import torch

import grouprl
from grouprl.algorithms.pretrain.papers.trajectory_reward import bradley_terry
from grouprl.algorithms.reward_transform.papers.learned_reward import LearnedReward
from pretraining_runs import cut_at, records, run

MODEL = {"part": "trajectory_reward", "steps": 3, "lr": 3e-3, "epochs": 2}
METHOD = {"base": "grpo", "pretrain": [MODEL], "reward_transform": ["learned_reward"]}


def test_the_loss_is_that_of_bradley_and_terry_and_its_gradient_that_of_torch():
    reward_b = torch.tensor([2.0, -1.0, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    loss, slope_b = bradley_terry(reward_b.detach())
    assert loss == pytest.approx((math.log(1 + math.exp(-1.5)) + math.log(1 + math.exp(1.0))) / 2)
    (-torch.nn.functional.logsigmoid(reward_b[:2] - reward_b[2:]).mean()).backward()
    assert torch.allclose(slope_b, reward_b.grad)


def test_the_loss_is_finite_far_out_and_shifts_do_not_matter():
    loss, slope_b = bradley_terry(torch.tensor([-500.0, 500.0], dtype=torch.float64))
    assert (loss, slope_b.tolist()) == (1000.0, [-1.0, 1.0])
    assert bradley_terry(torch.tensor([3.0, 1.0]))[0] == pytest.approx(bradley_terry(torch.tensor([13.0, 11.0]))[0])


def test_the_reward_is_the_models_alone():
    mask_bt = torch.tensor([[True, True], [True, False]])
    said_bt = torch.tensor([[0.7, 0.7], [-2.0, -2.0]])
    batch = grouprl.Batch(
        mask_bt=mask_bt, group_b=torch.zeros(2, dtype=torch.int64), reward_b=torch.ones(2),
        stats={"trajectory_reward": said_bt},
    )  # fmt: skip
    assert LearnedReward()(batch).reward_b.tolist() == pytest.approx([0.7, -2.0])


def test_a_run_fits_the_model_freezes_it_and_resumes_to_the_bit(tmp_path):
    whole = run(tmp_path / "run", METHOD)
    before = records(whole, "pretraining")
    assert len(before) == 3
    assert all(record["pairs"] > 0 for record in before)
    assert all(0 <= record["preference_accuracy"] <= 1 for record in before)
    cut = cut_at(whole, tmp_path / "cut", "pretraining-000002")
    assert records(cut, "pretraining") == before
    assert records(cut, "train") == records(whole, "train")


def test_the_reward_without_its_model_is_refused():
    with pytest.raises(grouprl.InputError, match="trajectory_reward"):
        grouprl.train({"task": "addition", "method": {"base": "grpo", "reward_transform": ["learned_reward"]}})
