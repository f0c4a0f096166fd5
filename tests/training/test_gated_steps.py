"""Gates in the trainer: the whole step is ranked, however it is cut into passes."""

from __future__ import annotations

import pytest
import torch

import grouprl
from updates import accumulate, gradient, make_batch, make_policy

SETTINGS = {"top_entropy_quantile": 0.4, "entropy_coef": 0.01, "off_policy_mask_threshold": 0.05}


@pytest.mark.parametrize("loss", ["grpo", "dapo", "gspo", "luspo"])
def test_a_gated_step_does_not_depend_on_how_it_is_cut(loss: str) -> None:
    """Passes of 4096 and of 24 tokens against the loss of all rows at once, differentiated directly."""
    method = grouprl.method(f"{loss}@trl", **SETTINGS)
    found = []
    for budget in (4096, 24):
        policy = make_policy(budget)
        step = method.prepare(make_batch(policy))
        metrics = accumulate(policy, method, step)
        found.append(gradient(policy))
        assert 0.5 < metrics["gated/top_entropy"] < 0.7
        assert metrics["gated/left_behind"] > 0
    out = policy.evaluate(step.inputs, ["log_prob", "entropy"], grad=True)
    method.loss(out["log_prob"], step, out["entropy"]).value.backward()
    direct = gradient(policy)
    for each in found:
        torch.testing.assert_close(each, direct, rtol=1e-9, atol=1e-12)


def test_a_gate_on_entropies_alone_sends_no_gradient_through_them() -> None:
    """Ranking is not differentiated: the gradient is that of the kept tokens' policy loss."""
    method = grouprl.method("grpo@trl", top_entropy_quantile=0.4)
    policy = make_policy()
    step = method.prepare(make_batch(policy))
    accumulate(policy, method, step)
    gated = gradient(policy)
    out = policy.evaluate(step.inputs, ["log_prob", "entropy"])
    factor_bt = method.token_gate[0](out["log_prob"], step, out["entropy"])
    plain = grouprl.method("grpo@trl")
    accumulate(policy, plain, step.replace(multiplier_bt=factor_bt))
    torch.testing.assert_close(gated, gradient(policy), rtol=1e-9, atol=1e-12)
