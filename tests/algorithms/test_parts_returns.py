"""Returns to go, generalised advantage estimation, the critic."""

from __future__ import annotations

import pytest
import torch

from grouprl.algorithms.advantage.returns import GAE, ReturnsToGo, next_value, token_rewards
from grouprl.algorithms.critic.critic import ValueLoss
from grouprl.algorithms.part import RunFacts
from grouprl.core.batch import Batch
from grouprl.core.errors import InputError
from small import f64, near, small

GAP = [[True, True, False, False, True, True]]


def test_the_reward_sits_on_the_last_action_token():
    batch = small([2.0, 5.0], [3, 1], token_reward_bt=[[0.1, 0.2, 0.3], [0.4]])
    near(token_rewards(batch), [[0.1, 0.2, 2.3], [5.4, 0.0, 0.0]])


def test_returns_to_go():
    batch = small([1.0], [3], token_reward_bt=[[0.25, 0.0, 0.5]])
    near(ReturnsToGo()(batch), [[1.75, 1.5, 1.5]])
    near(ReturnsToGo(gamma=0.5)(batch), [[0.25 + 0.375, 0.75, 1.5]])


def test_gae_by_hand():
    batch = small([1.0], [3], value_bt=[[0.5, 0.25, 0.75]])
    delta = [0.25 - 0.5, 0.75 - 0.25, 1 - 0.75]
    near(GAE(lam=0.5)(batch), [[delta[0] + 0.5 * (delta[1] + 0.5 * delta[2]), delta[1] + 0.5 * delta[2], delta[2]]])
    near(GAE(gamma=0.9, lam=0.0)(batch), [[0.9 * 0.25 - 0.5, 0.9 * 0.75 - 0.25, 0.25]])


def test_lambda_one_is_the_return_less_the_value():
    batch = small([1.0], [4], value_bt=[[0.3, -0.2, 0.9, 0.1]])
    near(GAE(lam=1.0)(batch), 1 - batch.value_bt)
    constant = small([2.0], [4], value_bt=[[0.7] * 4])
    near(GAE(lam=1.0)(constant), [[1.3] * 4])


def test_without_a_critic_lambda_is_the_decay_of_the_outcome():
    batch = small([1.0], [1000], value_bt=[[0.0] * 1000])
    adv_bt = GAE(lam=0.95)(batch)
    near(adv_bt[0, 0], 0.95**999, 1e-12)
    near(GAE(lam=1.0)(batch), torch.ones_like(adv_bt))


@pytest.mark.parametrize("part", [GAE(gamma=0.9, lam=0.8), GAE(lam=0.3), ReturnsToGo(gamma=0.9)])
def test_tool_output_in_the_middle_is_skipped(part):
    """A gap in the mask gives the tokens around it the same credit as the sequence without the gap."""
    extra = {"value_bt": [[0.1, 0.4, 9.0, -9.0, 0.3, 0.2]], "token_reward_bt": [[0.0, 1.0, 7.0, 7.0, 0.0, 0.5]]}
    with_gap = small([1.0], [6], mask_bt=torch.tensor(GAP), **extra)
    without = small([1.0], [4], value_bt=[[0.1, 0.4, 0.3, 0.2]], token_reward_bt=[[0.0, 1.0, 0.0, 0.5]])
    adv_bt = part(with_gap.replace(token_reward_bt=with_gap.token_reward_bt * with_gap.mask_bt))
    near(adv_bt[with_gap.mask_bt], part(without)[0])
    assert not adv_bt[~with_gap.mask_bt].any()


@pytest.mark.parametrize(("length", "lam"), [(1, 0.0), (20, 0.0), (100, 0.8), (1000, 0.98)])
def test_length_adaptive_lambda(length, lam):
    batch = small([1.0], [length], value_bt=[[0.0] * length])
    near(GAE(length_alpha=0.05).lambdas(batch), [lam])


def test_lambda_per_sequence_equals_running_the_sequences_alone():
    values = [[0.5, 0.1, 0.2, 0.3, 0.4], [0.3, 0.9]]
    both = small([1.0, 2.0], [5, 2], value_bt=values)
    part = GAE(length_alpha=0.7)
    long = GAE(lam=1 - 1 / 3.5)(small([1.0], [5], value_bt=values[:1]))
    short = GAE(lam=1 - 1 / 1.4)(small([2.0], [2], value_bt=values[1:]))
    near(part(both)[0], long[0])
    near(part(both)[1, :2], short[0])


def test_a_replaced_lambda_is_named():
    assert "length_alpha replaces it" in GAE(lam=0.5, length_alpha=0.05).idle(RunFacts())[0]
    assert GAE(length_alpha=0.05).idle(RunFacts()) == []


def test_gae_needs_values():
    with pytest.raises(InputError, match=r"needs batch.value_bt.*value head"):
        GAE()(small([1.0]))


def test_value_targets_of_lambda_one_are_outcomes_whatever_the_critic_says():
    batch = small([1.0], [3], value_bt=[[0.5, -3.0, 8.0]])
    near(ValueLoss(lam=1.0).targets(batch), [[1.0, 1.0, 1.0]])


def test_value_loss_takes_the_larger_of_clipped_and_free():
    """Old values 0, returns 1: a value of 0.5 is clipped to 0.2 (error 0.64 > 0.25); -0.5 is worse free (2.25)."""
    batch = small([1.0], [3], value_bt=[[0.0, 0.0, 0.0]]).replace(return_bt=f64([[1.0, 1.0, 1.0]]))
    value_bt = f64([[0.5, -0.5, 0.1]]).requires_grad_()
    out = ValueLoss(clip=0.2, coef=2.0)(value_bt, batch)
    near(out.loss_bt.detach(), [[0.64, 2.25, 0.81]])
    (grad_bt,) = torch.autograd.grad(out.loss_bt.sum(), value_bt)
    near(grad_bt, [[0.0, 2 * -1.5, 2 * -0.9]])
    near(out.metrics["value_clip_fraction"], [[1.0, 0.0, 0.0]])


def test_value_loss_without_clip():
    batch = small([1.0], [1], value_bt=[[0.0]]).replace(return_bt=f64([[1.0]]))
    near(ValueLoss(clip=None)(f64([[0.5]]), batch).loss_bt, [[0.125]])


def cut(truncated: list[bool], final: list[float] | None) -> Batch:
    """Two rows of rewards 1, 2 and values 0.5, 0.25; the second has a single action."""
    return Batch(
        mask_bt=torch.tensor([[True, True], [True, False]]),
        group_b=torch.tensor([0, 0]),
        reward_b=torch.zeros(2, dtype=torch.float64),
        token_reward_bt=torch.tensor([[1.0, 2.0], [1.0, 0.0]], dtype=torch.float64),
        value_bt=torch.tensor([[0.5, 0.25], [0.5, 9.0]], dtype=torch.float64),
        truncated_b=torch.tensor(truncated),
        final_value_b=None if final is None else torch.tensor(final, dtype=torch.float64),
    )


def test_a_cut_episode_is_bootstrapped_with_the_value_of_its_final_observation() -> None:
    found = GAE(gamma=0.9, lam=0.5)(cut([True, True], [4.0, 8.0]))
    last = 2.0 + 0.9 * 4.0 - 0.25
    first = 1.0 + 0.9 * 0.25 - 0.5 + 0.45 * last
    assert torch.allclose(found, torch.tensor([[first, last], [1.0 + 0.9 * 8.0 - 0.5, 0.0]], dtype=torch.float64))
    targets = ValueLoss(gamma=0.9, lam=1.0).targets(cut([True, True], [4.0, 8.0]))
    assert targets[0, 0].item() == pytest.approx(1.0 + 0.9 * 2.0 + 0.81 * 4.0)  # the discounted return, then the value


def test_an_episode_that_ended_is_never_bootstrapped() -> None:
    plain = GAE(gamma=0.9, lam=0.5)(cut([False, False], None))
    assert torch.equal(GAE(gamma=0.9, lam=0.5)(cut([False, False], [4.0, 8.0])), plain)
    mixed = GAE(gamma=0.9, lam=0.5)(cut([True, False], [4.0, 8.0]))
    assert torch.equal(mixed[1], plain[1])
    assert not torch.equal(mixed[0], plain[0])
    # Without the value of a final observation (texts have none) a limit changes nothing.
    assert torch.equal(GAE(gamma=0.9, lam=0.5)(cut([True, True], None)), plain)


def test_a_final_value_needs_to_know_which_rows_were_cut() -> None:
    batch = cut([True, True], [4.0, 8.0]).replace(truncated_b=None)
    with pytest.raises(InputError, match="truncated_b"):
        GAE()(batch)
    with pytest.raises(InputError, match="final_value_b"):
        batch.replace(final_value_b=torch.zeros(3))
    assert batch.rows(torch.tensor([1])).final_value_b.tolist() == [8.0]  # type: ignore[union-attr]


def test_the_next_value_is_that_of_the_next_action_and_the_last_one_is_given():
    value_bt = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [1.0, 1.0, 1.0, 1.0]])
    mask_bt = torch.tensor([[True, False, False, True], [False, True, True, False], [False] * 4])
    found = next_value(value_bt, mask_bt, torch.tensor([0.5, 0.25, 0.125]))
    assert found.tolist() == [[4.0, 4.0, 4.0, 0.5], [6.0, 7.0, 0.25, 0.25], [0.125] * 4]
