"""Balance losses of flow networks: the gradient of the whole loss, limits of λ, masks, and the exact distribution."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from grouprl import Batch, method
from grouprl.algorithms.flow import imbalance

STRINGS = torch.tensor(list(itertools.product((0, 1), repeat=3)))
PREFIX_BT = torch.stack([torch.zeros(8, dtype=torch.long), 1 + STRINGS[:, 0], 3 + 2 * STRINGS[:, 0] + STRINGS[:, 1]], 1)
"""The number of the prefix before each bit: "", 0, 1, 00, 01, 10, 11."""


def batch(logp_bt: torch.Tensor, flow_bt: torch.Tensor, reward_b: torch.Tensor, **more: object) -> Batch:
    rows, width = logp_bt.shape
    plain = {
        "mask_bt": torch.ones(rows, width, dtype=torch.bool),
        "group_b": torch.zeros(rows, dtype=torch.long),
        "turn_bt": torch.arange(width).expand(rows, -1),
        "turn_reward_bs": torch.nn.functional.pad(reward_b[:, None], (width - 1, 0)),
    }
    return Batch(reward_b=reward_b, old_bt=logp_bt.detach(), value_bt=flow_bt.detach(), **{**plain, **more})


def gradients(name: str, logp_bt: torch.Tensor, flow_bt: torch.Tensor, given: Batch, **settings: object):
    chosen = method(name, **settings)
    logp, flow = (x.detach().clone().requires_grad_() for x in (logp_bt, flow_bt))
    ready = chosen.prepare(given)
    (chosen.loss(logp, ready).value + chosen.value_loss(flow, ready).value).backward()
    return logp.grad, flow.grad


def random_rows(rows: int = 4, width: int = 5):
    luck = torch.Generator().manual_seed(0)
    return (
        -torch.rand(rows, width, generator=luck, dtype=torch.float64),
        torch.randn(rows, width, generator=luck, dtype=torch.float64),
        torch.randn(rows, generator=luck, dtype=torch.float64),
    )


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.9, 2.0, None])
def test_both_parts_together_have_the_gradient_of_the_whole_loss(lam: float | None) -> None:
    """The whole loss is written out here stretch by stretch, with flows and log-probs both free."""
    logp_bt, flow_bt, reward_b = random_rows()
    ours = gradients("subtb", logp_bt, flow_bt, batch(logp_bt, flow_bt, reward_b), lam=lam)
    logp, flow = logp_bt.clone().requires_grad_(), flow_bt.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for row in range(4):
        found, weights = [], []
        for i, j in itertools.combinations(range(6), 2):
            if lam is None and (i, j) != (0, 5):
                continue
            end = flow[row, j] if j < 5 else reward_b[row]
            found.append((flow[row, i] + logp[row, i:j].sum() - end) ** 2)
            weights.append(1.0 if lam is None else lam ** (j - i - 1))
        total = total + sum(w * x for w, x in zip(weights, found, strict=True)) / sum(weights) / 4
    total.backward()
    assert torch.allclose(ours[0], logp.grad, atol=1e-12)
    assert torch.allclose(ours[1], flow.grad, atol=1e-12)


def test_gradients_are_those_of_finite_differences() -> None:
    logp_bt, flow_bt, reward_b = random_rows(2, 3)
    given = method("subtb").prepare(batch(logp_bt, flow_bt, reward_b))
    free = (logp_bt.requires_grad_(), flow_bt.requires_grad_())
    assert torch.autograd.gradcheck(lambda logp, flow: imbalance(logp, flow, given, 0.7), free)


def test_trajectory_balance_at_the_groups_own_log_z_is_vargrad() -> None:
    """VarGrad's group mean is the log Z that balances the group best, and has no gradient of its own there."""
    logp_bt, flow_bt, reward_b = random_rows()
    flow_bt[:, 0] = (reward_b - logp_bt.sum(1)).mean()
    given = batch(logp_bt, flow_bt, reward_b)
    by_logp, by_flow = gradients("tb", logp_bt, flow_bt, given)
    leaf = logp_bt.clone().requires_grad_()
    chosen = method("vargrad")
    chosen.loss(leaf, chosen.prepare(given)).value.backward()
    assert torch.allclose(by_logp, leaf.grad, atol=1e-12)
    assert float(by_flow[:, 0].sum()) == pytest.approx(0, abs=1e-12)
    assert float(by_logp.abs().min()) > 1e-3


def test_padding_and_gaps_in_a_row_change_nothing() -> None:
    logp_bt, flow_bt, reward_b = random_rows(2, 3)
    short = batch(logp_bt, flow_bt, reward_b)
    at = torch.tensor([0, 2, 3])  # a gap at 1, padding at 4
    mask_bt = torch.zeros(2, 5, dtype=torch.bool).index_fill(1, at, True)

    def spread(x_bt: torch.Tensor, fill: float) -> torch.Tensor:
        return torch.full((2, 5), fill, dtype=x_bt.dtype).index_copy(1, at, x_bt)

    long = batch(
        spread(logp_bt, 9.0),
        spread(flow_bt, -7.0),
        reward_b,
        mask_bt=mask_bt,
        turn_bt=spread(torch.arange(3).expand(2, -1), 0).long().where(mask_bt, torch.tensor(-1)),
        turn_reward_bs=short.turn_reward_bs,
    )
    ours = gradients("subtb", logp_bt, flow_bt, short)
    theirs = gradients("subtb", spread(logp_bt, 9.0), spread(flow_bt, -7.0), long)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(other[:, at], one, atol=1e-12)
        assert bool((other[:, [1, 4]] == 0).all())


def test_rewards_of_steps_are_paid_where_they_are_earned() -> None:
    logp_bt, flow_bt, reward_b = random_rows(1, 2)
    late = batch(logp_bt, flow_bt, reward_b)
    early = batch(logp_bt, flow_bt, reward_b, turn_reward_bs=torch.tensor([[float(reward_b[0]), 0.0]]).double())
    whole = [gradients("tb", logp_bt, flow_bt, x) for x in (late, early)]
    steps = [gradients("db", logp_bt, flow_bt, x) for x in (late, early)]
    assert torch.allclose(whole[0][0], whole[1][0])
    assert not torch.allclose(steps[0][0], steps[1][0])


@pytest.mark.parametrize("name", ["tb", "db", "subtb"])
def test_strings_are_sampled_in_proportion_to_their_reward_and_z_is_found(name: str) -> None:
    log_r = torch.randn(8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    table, flow = (torch.zeros(7, dtype=torch.float64, requires_grad=True) for _ in range(2))
    optimizer, chosen = torch.optim.Adam([table, flow], 0.05), method(name)
    for _ in range(500):
        logits = torch.stack([torch.zeros_like(table), table], -1)[PREFIX_BT]
        logp_bt = logits.log_softmax(-1).gather(-1, STRINGS[..., None])[..., 0]
        ready = chosen.prepare(batch(logp_bt, flow[PREFIX_BT], log_r))
        optimizer.zero_grad()
        (chosen.loss(logp_bt, ready).value + chosen.value_loss(flow[PREFIX_BT], ready).value).backward()
        optimizer.step()
    distance = 0.5 * float((logp_bt.detach().sum(1).exp() - log_r.softmax(0)).abs().sum())
    assert distance == pytest.approx(0, abs=2e-3)
    assert float(flow[0].detach()) == pytest.approx(float(log_r.logsumexp(0)), abs=1e-2)
    assert math.isfinite(float(flow.detach().abs().max()))


def test_what_a_row_says_of_its_flows_by_hand() -> None:
    """log F(s_0) = 1 + log 2 + log 4 and log F(s_1) = 1 + log 4, where the row's end has a log reward of 1."""
    logp_bt = torch.tensor([[0.5, 0.25]], dtype=torch.float64).log()
    flow_bt = torch.tensor([[1 + math.log(8), 1 + math.log(4)]], dtype=torch.float64)
    ready = method("db").prepare(batch(logp_bt, flow_bt, torch.ones(1, dtype=torch.float64)))
    assert torch.allclose(ready.need("return_bt", "test"), flow_bt)
    loss = method("db").value_loss(flow_bt, ready)
    assert float(loss.value) == pytest.approx(0.0, abs=1e-15)
    assert float(loss.metrics["value_error"]) == pytest.approx(0.0, abs=1e-15)
