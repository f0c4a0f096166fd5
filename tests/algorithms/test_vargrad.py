"""VarGrad: samples in proportion to the reward, and its identity to a policy gradient with a group baseline."""

from __future__ import annotations

import itertools

import pytest
import torch

from grouprl import Batch, method

STRINGS = torch.tensor(list(itertools.product((0, 1), repeat=3)))


def batch(logp_bt: torch.Tensor, reward_b: torch.Tensor, group_b: torch.Tensor) -> Batch:
    mask_bt = torch.ones(logp_bt.shape, dtype=torch.bool)
    return Batch(mask_bt=mask_bt, group_b=group_b, reward_b=reward_b, old_bt=logp_bt.detach())


def gradient(name: str, logp_bt: torch.Tensor, reward_b: torch.Tensor, group_b: torch.Tensor) -> torch.Tensor:
    chosen = method(name)
    leaf_bt = logp_bt.clone().requires_grad_()
    prepared = chosen.prepare(batch(logp_bt, reward_b, group_b))
    chosen.loss(leaf_bt, prepared).value.backward()
    assert leaf_bt.grad is not None
    return leaf_bt.grad


def test_on_policy_it_is_twice_a_policy_gradient_whose_reward_is_log_r_minus_log_pi() -> None:
    """The bridge to group baselines: reinforce with the group's mean, entropy in the reward, no deviation."""
    luck = torch.Generator().manual_seed(0)
    logp_bt = -torch.rand(6, 4, generator=luck, dtype=torch.float64)
    reward_b = torch.randn(6, generator=luck, dtype=torch.float64)
    group_b = torch.tensor([0, 0, 0, 1, 1, 1])
    ours = gradient("vargrad", logp_bt, reward_b, group_b)
    soft_b = reward_b - logp_bt.sum(1)
    mean_b = torch.stack([soft_b[group_b == g].mean() for g in group_b.tolist()])
    expected = -2 * (soft_b - mean_b)[:, None].expand(-1, 4) / 6
    assert torch.allclose(ours, expected, atol=1e-12)
    # and by the catalogue: the mean of the others as baseline is the group's mean, scaled
    plain = gradient("rloo", logp_bt, soft_b, group_b)
    assert torch.allclose(ours / plain, torch.full_like(ours, float((ours / plain)[0, 0])), atol=1e-9)


def test_a_constant_of_the_group_changes_nothing_and_rows_alone_have_no_gradient() -> None:
    luck = torch.Generator().manual_seed(1)
    logp_bt = -torch.rand(4, 2, generator=luck, dtype=torch.float64)
    reward_b = torch.randn(4, generator=luck, dtype=torch.float64)
    group_b = torch.tensor([0, 0, 1, 2])
    shift_b = torch.tensor([5.0, 5.0, -3.0, 0.0], dtype=torch.float64)
    one, other = (gradient("vargrad", logp_bt, r, group_b) for r in (reward_b, reward_b + shift_b))
    assert torch.allclose(one, other, atol=1e-12)
    assert bool((one[2:] == 0).all())
    assert bool((one[:2] != 0).all())


def test_strings_are_sampled_in_proportion_to_their_reward() -> None:
    """All eight strings of three bits, whatever sampled them: off-policy, without ratios."""
    log_r = torch.randn(8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    table = torch.zeros(7, dtype=torch.float64, requires_grad=True)  # a logit for each prefix: "", 0, 1, 00 …
    prefix_bt = torch.stack(
        [torch.zeros(8, dtype=torch.long), 1 + STRINGS[:, 0], 3 + 2 * STRINGS[:, 0] + STRINGS[:, 1]], 1
    )
    optimizer, chosen = torch.optim.Adam([table], 0.05), method("vargrad")
    for _ in range(400):
        logits = torch.stack([torch.zeros_like(table), table], -1)[prefix_bt]
        logp_bt = logits.log_softmax(-1).gather(-1, STRINGS[..., None])[..., 0]
        prepared = chosen.prepare(batch(logp_bt, log_r, torch.zeros(8, dtype=torch.long)))
        optimizer.zero_grad()
        chosen.loss(logp_bt, prepared).value.backward()
        optimizer.step()
    distance = 0.5 * float((logp_bt.detach().sum(1).exp() - log_r.softmax(0)).abs().sum())
    assert distance == pytest.approx(0, abs=1e-3)
