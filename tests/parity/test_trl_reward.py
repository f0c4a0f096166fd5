"""TRL's own `RewardTrainer.compute_loss` and `bradley_terry` give the same loss, gradients and accuracy."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

import grouprl

pytest.importorskip("trl", reason="trl is not installed: pip install 'grouprl[parity]'")
from trl import RewardTrainer


def by_trl(logit_b, margin_e, center):
    """The loss of TRL's trainer on the scores of the chosen, then of the rejected, and what it logs."""
    trainer = RewardTrainer.__new__(RewardTrainer)
    same = SimpleNamespace(gather=lambda x: x, gather_for_metrics=lambda x: x)
    trainer.model, trainer.accelerator, trainer._total_train_tokens = SimpleNamespace(training=True), same, 0
    trainer._tp_size, trainer._metrics = 1, {"train": defaultdict(list)}
    trainer.args = SimpleNamespace(center_rewards_coefficient=center)
    inputs = {"attention_mask": torch.ones(len(logit_b), 2)} | ({} if margin_e is None else {"margin": margin_e})
    outputs = SimpleNamespace(logits=logit_b[:, None])
    loss = trainer.compute_loss(lambda **given: outputs, inputs)
    return loss, trainer._metrics["train"]["accuracy"][0]


@pytest.mark.parametrize("center", [None, 0.01])
@pytest.mark.parametrize("with_margin", [False, True])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_loss_and_gradients_are_those_of_trl(center, with_margin, scale):
    drawn = torch.randn(2, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * scale
    margin_e = torch.rand(5, generator=torch.Generator().manual_seed(4), dtype=torch.float64) if with_margin else None
    theirs_b = drawn.flatten().requires_grad_()
    loss, accuracy = by_trl(theirs_b, margin_e, center)
    loss.backward()
    ours_b = drawn.flatten().clone().requires_grad_()
    batch = grouprl.Batch(
        mask_bt=torch.ones(10, 2, dtype=torch.bool),
        group_b=torch.arange(5).repeat(2),
        reward_b=torch.tensor([1.0, 0.0], dtype=torch.float64).repeat_interleave(5),
        rewards={} if margin_e is None else {"margin": margin_e.repeat(2)},
    )
    method = grouprl.method("bradley_terry", margin=with_margin, center=center or 0.0)
    found = method.loss(None, method.prepare(batch), outputs={"score": ours_b})
    found.value.backward()
    torch.testing.assert_close(found.value, loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours_b.grad, theirs_b.grad, rtol=1e-12, atol=1e-12)
    assert float(found.metrics["pair_accuracy"]) == pytest.approx(accuracy)
