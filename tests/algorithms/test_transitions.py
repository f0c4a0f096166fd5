"""Optimiser steps on shuffled actions, and rewards scaled by the deviation of returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from grouprl import InputError, method
from grouprl.algorithms.augment.return_scale import ReturnScale, discounted_sums
from grouprl.algorithms.reward_transform.papers.scaled_rewards import ScaledRewards
from grouprl.algorithms.update.transitions import Transitions, actions_apart
from grouprl.core.batch import Batch
from grouprl.policy import ArrayInputs, Build, Mlp, Recurrent, Tokens
from grouprl.protocols import Box, Discrete, Spaces
from grouprl.training.update import Learner, update
from part_context import PartContext

SPACES = Spaces(observation=Box((3,)), action=Discrete(4))


def rollout(lengths: tuple[int, ...] = (4, 1, 3), seed: int = 0) -> tuple[Mlp, Batch]:
    luck = np.random.default_rng(seed)
    policy = Mlp(Build(SPACES, seed=1, values=True, dtype=torch.float64), hidden=(8,))
    inputs = ArrayInputs.of(
        [luck.normal(size=(n, 3)).astype(np.float32) for n in lengths],
        [luck.integers(0, 4, n) for n in lengths],
        final_b=[luck.normal(size=3).astype(np.float32) for _ in lengths],
        seed_b=list(range(0, 100 * len(lengths), 100)),
    )
    mask_bt = inputs.present_bt()
    found = policy.evaluate(inputs, ("log_prob", "value"))
    turn_bt = torch.where(mask_bt, torch.arange(mask_bt.shape[1]), -1)
    reward_bs = torch.from_numpy(luck.normal(size=mask_bt.shape)) * mask_bt
    batch = Batch(
        mask_bt=mask_bt,
        group_b=torch.arange(len(lengths)),
        reward_b=reward_bs.sum(1),
        old_bt=found["log_prob"] + 0.1 * torch.from_numpy(luck.normal(size=mask_bt.shape)) * mask_bt,
        value_bt=found["value"],
        final_value_b=torch.ones(len(lengths), dtype=torch.float64),
        truncated_b=torch.tensor([True] + [False] * (len(lengths) - 1)),
        turn_bt=turn_bt,
        turn_reward_bs=reward_bs,
        inputs=inputs,
    )
    return policy, batch


def grads(policy: Mlp) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in policy.parameters() if p.grad is not None])


@dataclass
class Recording:
    """A learner that keeps the steps it is given."""

    method: Any
    policy: Any = None
    epochs: int = 1
    seed: int = 7
    given: list[Batch] = field(default_factory=list)

    def take(self, step: Batch) -> dict[str, float]:
        self.given.append(step)
        return {"loss": 0.0}


def test_each_pass_takes_every_action_once_in_sets_of_about_the_size() -> None:
    policy, batch = rollout((4, 1, 3, 5))
    one = method("ppo_control", size=4)
    learner = Recording(one, epochs=2)
    list(Transitions(size=4)(learner, one.compute_advantages(batch)))  # type: ignore[arg-type]
    assert [step.size[0] for step in learner.given] == [5, 4, 4] * 2
    whole = torch.cat([batch.inputs.observation_bt[batch.mask_bt]])  # type: ignore[union-attr]
    for start in (0, 3):
        seen = torch.cat([step.inputs.observation_bt[:, 0] for step in learner.given[start : start + 3]])  # type: ignore[union-attr]
        assert sorted(seen.tolist()) == sorted(whole.tolist())
    first, second = (learner.given[i].inputs.observation_bt for i in (0, 3))  # type: ignore[union-attr]
    assert not torch.equal(first, second)  # each pass has an order of its own
    assert policy is not None


def test_one_step_on_all_actions_is_the_step_on_all_rows() -> None:
    """The mean over actions is the same whether they lie in rows or apart."""
    found = []
    for changes in ({"size": 100}, {}):
        policy, batch = rollout()
        entry = method("ppo_control", **changes) if changes else method("ppo_control").with_parts(update=None)
        prepared = entry.compute_advantages(batch)
        optimizer = torch.optim.SGD(policy.parameters(), 0.1)
        update(policy, optimizer, entry, prepared, grad_clip=0.0)
        found.append(torch.cat([p.detach().reshape(-1) for p in policy.parameters()]))
    assert torch.allclose(found[0], found[1], atol=1e-12)


def test_a_policy_that_remembers_is_refused() -> None:
    _, batch = rollout()
    one = method("ppo_control")
    learner = Recording(one, policy=Recurrent(Build(SPACES, values=True)))
    with pytest.raises(InputError, match="remembers"):
        list(Transitions()(learner, one.compute_advantages(batch)))  # type: ignore[arg-type]


def test_masks_and_seeds_go_with_their_actions() -> None:
    policy, batch = rollout()
    inputs: Any = batch.inputs
    active_bt = batch.mask_bt.clone()
    active_bt[0, 1] = False
    apart = actions_apart(batch.replace(loss_mask_bt=active_bt))
    assert apart.size == (7, 1)
    assert torch.equal(apart.old_bt[:, 0], batch.old_bt[active_bt])  # type: ignore[index]
    assert apart.inputs.seed_b.tolist() == [0, 2, 3, 100, 200, 201, 202]  # type: ignore[union-attr]
    logp_bt = policy.logp(inputs)
    assert torch.allclose(policy.logp(apart.inputs)[:, 0], logp_bt[active_bt])  # type: ignore[arg-type]


def test_what_compares_rows_or_reads_text_is_refused() -> None:
    _, batch = rollout()
    paired = method("dpo")
    with pytest.raises(InputError, match="sees a whole"):
        list(Transitions()(Recording(paired), batch))  # type: ignore[arg-type]
    tokens = Tokens(((1,),) * 3, ((1, 2, 3, 4), (1,), (1, 2, 3)))
    with pytest.raises(InputError, match="Only policies over arrays"):
        actions_apart(batch.replace(inputs=tokens))


def test_a_learner_has_what_the_update_reads() -> None:
    policy, _ = rollout()
    learner = Learner(policy, torch.optim.SGD(policy.parameters(), 0.1), method("ppo_control"), epochs=3, seed=5)
    assert (learner.epochs, learner.seed, learner.method.couples) == (3, 5, "sequence")


def test_discounted_sums_run_forward() -> None:
    # 1, 0.5·1 + 2 = 2.5, 0.5·2.5 + 4 = 5.25
    assert discounted_sums(np.array([[1.0, 2.0, 4.0]]), 0.5).tolist() == [[1.0, 2.5, 5.25]]


@dataclass
class Sampled:
    """The columns of sampled rows that the part reads."""

    extras: dict[str, np.ndarray]
    source_b: np.ndarray


def test_the_scale_is_the_deviation_over_all_steps() -> None:
    _, batch = rollout()
    part, memory, luck = ReturnScale(gamma=0.9), PartContext(), np.random.default_rng(0)
    returns = []
    for lengths in ((3, 2), (1, 3)):
        reward_bs = luck.normal(size=(2, 3)) * (np.arange(3) < np.array(lengths)[:, None])
        turn_bt = np.where(np.arange(3) < np.array(lengths)[:, None], np.arange(3), -1)
        rows: Any = Sampled({"turn_reward_bs": reward_bs, "turn_bt": turn_bt}, np.zeros(2, np.int64))
        returns += [x for row, n in zip(discounted_sums(reward_bs, 0.9), lengths, strict=True) for x in row[:n]]
        filled = part.fill(batch, rows, memory)  # type: ignore[arg-type]
    assert filled.past["return_std"].tolist() == pytest.approx([float(np.std(returns))] * 3)


def test_rewards_are_divided_by_the_scale_and_clipped() -> None:
    _, batch = rollout()
    reward_bs = torch.tensor([[2.0, 30.0, 0, 0], [1.0, 0, 0, 0], [0, 0, -4.0, 0]], dtype=torch.float64)
    std_b = torch.full((3,), 2.0, dtype=torch.float64)
    scaled = ScaledRewards(limit=10.0)(
        batch.replace(turn_reward_bs=reward_bs, reward_b=reward_bs.sum(1) + 1, past={"return_std": std_b})
    )
    assert scaled.turn_reward_bs.tolist() == [[1.0, 10.0, 0, 0], [0.5, 0, 0, 0], [0, 0, -2.0, 0]]  # type: ignore[union-attr]
    assert scaled.reward_b.tolist() == [11.5, 1.0, -1.5]
