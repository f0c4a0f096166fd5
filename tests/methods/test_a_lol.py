"""A-LoL: its weights by hand, the first step, what is left out, and a run on stored completions of another run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import grouprl
from grouprl import Batch
from grouprl.config.run import parse_config
from grouprl.training.loop import train
from small import f64, near, small

RATIOS = ("sequence", "token", "none")


def batch_of(old: list[list[float]], ref: float = -1.0, baseline: float = 0.5) -> Batch:
    rewards = [1.0, 0.0, 0.75][: len(old)]
    lengths = [len(row) for row in old]
    batch = small(rewards, lengths, groups=list(range(len(old))), old_bt=old, ref_bt=[[ref] * n for n in lengths])
    return batch.replace(past={"baseline": torch.full_like(batch.reward_b, baseline)})


def grad_of(batch: Batch, **settings: object) -> torch.Tensor:
    made = grouprl.method("a_lol", **settings)
    logp_bt = batch.old_bt.clone().requires_grad_()
    return torch.autograd.grad(made.loss(logp_bt, made.prepare(batch)).value, logp_bt)[0]


@pytest.mark.parametrize("ratio", RATIOS)
def test_at_the_reference_every_variant_is_the_advantage_times_the_likelihood(ratio):
    near(grad_of(batch_of([[-1.0, -1.0], [-1.0], [-1.0]]), ratio=ratio), f64([[-0.25, -0.25], [0, 0], [-0.125, 0]]))


def test_ratios_of_tokens_and_completions_are_held_on_both_sides():
    """ρ of the tokens e^1 and e^-3, held at 1.9 and 0.1; of the completion e^-2 = 0.135."""
    batch = batch_of([[0.0, -4.0]])
    near(grad_of(batch, ratio="token"), f64([[-0.5 * 1.9, -0.5 * 0.1]]))
    near(grad_of(batch, ratio="sequence"), f64([[-0.5 * math.exp(-2)] * 2]))
    near(grad_of(batch_of([[0.0, -5.0]]), ratio="sequence"), f64([[-0.05, -0.05]]))
    near(grad_of(batch, ratio="token", clip=0.5), f64([[-0.75, -0.25]]))


@pytest.mark.parametrize("ratio", RATIOS)
def test_nothing_above_its_value_has_no_loss(ratio):
    made, batch = grouprl.method("a_lol", ratio=ratio), batch_of([[-1.0, -1.0], [-2.0], [-1.0]], baseline=1.0)
    assert made.loss(batch.old_bt, made.prepare(batch)).value == 0
    assert not grad_of(batch, ratio=ratio).any()


def test_far_policies_stay_finite():
    for far in (-500.0, 0.0):
        assert grad_of(batch_of([[far, far]], ref=-250.0)).isfinite().all()


def test_equal_rewards_without_a_value_are_supervised_learning():
    """R = 1, ratio none: the mean over completions of -log π(y)."""
    batch = small([1, 1], [2, 1], groups=[0, 1], old_bt=[[-1.0, -2.0], [-3.0]])
    made = grouprl.method("a_lol", ratio="none", value="none")
    near(made.loss(batch.old_bt, made.prepare(batch)).value, 3.0)


def test_a_run_learns_from_stored_rollouts(tmp_path: Path):
    base = {
        "model": {"name": "tiny", "tiny": {"hidden": 16, "layers": 1, "heads": 2, "intermediate": 32}},
        "eval": {"every": 0, "final_prompts": 1},
    }
    task = {"name": "preferences", "longest": 3}
    data = {"task": task, "data": {"prompts": 8}, "batch": {"prompts": 8, "group_size": 2}}
    folder = train(parse_config({**base, **data, "method": "a_lol", "steps": 2}), folder=tmp_path / "run").folder
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record.get("phase") == "train" and "loss" in record]
    assert [step["grad_norm"] > 0 for step in steps] == [True, True]
    assert [step["rows_trained"] for step in steps] == [0.5, 0.5]
