"""Our `@verl` entries against verl's own functions: advantages, loss and gradient on random batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from batches import Case, random_case

pytest.importorskip("verl", reason="verl is not installed: `make parity` runs this in an environment of its own")

from importlib.metadata import version

from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

VERSION = "0.9.1"
WIDTH = 7
SHAPES = {"ragged groups": (4, 3, 5, 2), "with groups of one": (4, 1, 3, 1), "one group": (6,), "many": (2,) * 12}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What verl is asked for: an advantage estimator, a loss, options of both; and our settings for the same."""

    estimator: str = "grpo"
    loss: str = "vanilla"
    estimator_options: dict[str, Any] = dataclasses.field(default_factory=dict)
    actor: dict[str, Any] = dataclasses.field(default_factory=dict)
    ours: dict[str, Any] = dataclasses.field(default_factory=dict)
    tolerance: float = 3e-6
    """verl divides the raw reward of a group of one by 1 + 1e-6; we do not."""


RECIPES = {
    "grpo@verl": Recipe(),
    "grpo@verl dual 1.5": Recipe(actor={"clip_ratio_c": 1.5}, ours={"dual": 1.5}),
    "dr_grpo@verl": Recipe(
        estimator_options={"norm_adv_by_std_in_grpo": False},
        actor={"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": WIDTH + 2},
    ),
    "gspo@verl": Recipe(loss="gspo"),
    "gspo@verl paper's clip": Recipe(
        loss="gspo",
        actor={"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4},
        ours={"clip_low": 3e-4, "clip_high": 4e-4},
    ),
    "cispo@verl": Recipe(loss="cispo"),
    "rloo@verl": Recipe(estimator="rloo"),
}
CORE = {
    "sapo": Recipe(loss="sapo", ours={"alone": "raw"}),
    "gmpo": Recipe(
        loss="geo_mean", actor={"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}, ours={"alone": "raw"}, tolerance=1e-5
    ),
    "opo": Recipe(estimator="opo", loss="gpg"),
    "remax": Recipe(estimator="remax", loss="gpg", ours={"limit": None}),
    "reinforce_pp": Recipe(
        estimator="reinforce_plus_plus",
        estimator_options={"config": AlgoConfig(gamma=1.0)},
        ours={"variance": "sample", "dual_clip": 3.0},
    ),
    "reinforce_pp_baseline": Recipe(
        estimator="reinforce_plus_plus_baseline", ours={"variance": "sample", "dual_clip": 3.0, "alone": "raw"}
    ),
}
every_recipe = pytest.mark.parametrize("name", RECIPES)


def ask(recipe: Recipe, case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return verl's advantages [B,T], loss and dLoss/dlogp [B,T] of a case."""
    batch = case.batch
    mask_bt = batch.mask_bt.double()
    reward_bt = batch.last_token_bt().double() * batch.reward_b[:, None]
    estimate = core_algos.get_adv_estimator_fn(recipe.estimator)
    advantage_bt, _ = estimate(
        token_level_rewards=reward_bt.clone(),
        response_mask=mask_bt,
        index=np.array(batch.group_b.tolist()),
        **({"reward_baselines": batch.greedy_reward_b} if recipe.estimator == "remax" else {}),
        **recipe.estimator_options,
    )
    actor = ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1, **recipe.actor)
    actor.global_batch_info.update(  # as verl's workers/utils/losses.py does before it calls the loss
        dp_size=1,
        batch_num_tokens=mask_bt.sum(),
        global_batch_size=len(mask_bt),
        loss_scale_factor=actor.loss_scale_factor,
    )
    leaf_bt = case.logp_bt.clone().requires_grad_()
    loss, _ = core_algos.get_policy_loss_fn(recipe.loss)(
        old_log_prob=batch.old_bt,
        log_prob=leaf_bt,
        advantages=advantage_bt,
        response_mask=mask_bt,
        loss_agg_mode=actor.loss_agg_mode,
        config=actor,
    )
    return advantage_bt, loss.detach(), torch.autograd.grad(loss, leaf_bt)[0]


def agree(method: grouprl.Method, recipe: Recipe, case: Case) -> None:
    """Assert that both give the same advantages, loss and gradient."""
    advantage_bt, loss, grad_bt = ask(recipe, case)
    ready = method.prepare(case.batch)
    close = {"rtol": recipe.tolerance, "atol": recipe.tolerance, "check_dtype": False}
    torch.testing.assert_close(ready.advantage_bt, advantage_bt * case.batch.mask_bt, **close)
    logp_bt = case.logp_bt.clone().requires_grad_()
    value = method.loss(logp_bt, ready).value
    torch.testing.assert_close(torch.autograd.grad(value, logp_bt)[0], grad_bt, **close)
    torch.testing.assert_close(value.detach(), loss, **close)


def test_the_version_the_cards_name():
    assert version("verl") == VERSION


@every_recipe
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "asked",
    [
        {"drift": 0.0, "on_policy": True},
        {"drift": 0.05},
        {"drift": 0.4, "rewards": "binary"},
        {"drift": 2.0, "rewards": "mixed"},
        {"equal_lengths": True},
    ],
    ids=str,
)
def test_random_batches(name, shape, asked):
    recipe = RECIPES[name]
    method = grouprl.method(name.split()[0], **recipe.ours)
    for seed in range(3):
        agree(method, recipe, random_case(seed, SHAPES[shape], WIDTH, **asked))


@every_recipe
def test_edge_cases(name):
    recipe = RECIPES[name]
    method = grouprl.method(name.split()[0], **recipe.ours)
    case = random_case(5, (4, 4, 4), WIDTH, rewards="mixed")
    ones = torch.ones_like(case.batch.reward_b)
    solved = (case.batch.group_b == 1).double()
    for reward_b in (ones, 0 * ones, torch.maximum(solved, case.batch.reward_b), 100 * case.batch.reward_b):
        agree(method, recipe, dataclasses.replace(case, batch=case.batch.replace(reward_b=reward_b)))


def test_rounding_of_groups_without_spread():
    """The one known difference: equal float32 rewards get an advantage in verl, exactly zero here."""
    case = random_case(1, (7,), WIDTH, dtype=torch.float32)
    batch = case.batch.replace(reward_b=torch.full((7,), 0.7))
    reward_bt = batch.last_token_bt().float() * batch.reward_b[:, None]
    theirs_bt, _ = core_algos.compute_grpo_outcome_advantage(reward_bt, batch.mask_bt.float(), np.zeros(7, dtype=int))
    assert theirs_bt.abs().max() == pytest.approx(0.056, abs=1e-3)
    assert not grouprl.method("grpo@verl").prepare(batch).advantage_bt.any()


def test_dapo_on_groups_that_dynamic_sampling_would_keep():
    """The punishment, filter and refill of the recipe are its data loop; loss and advantage are core_algos."""
    recipe = Recipe(actor={"clip_ratio_high": 0.28, "clip_ratio_c": 10.0})
    for seed in range(5):
        case = random_case(seed, (4, 3, 5), WIDTH, rewards="mixed", drift=1.5)
        assert not case.batch.replace(max_length=WIDTH + 2).length_b.max() > WIDTH
        agree(grouprl.method("dapo@verl"), recipe, case)


@pytest.mark.parametrize("name", CORE)
def test_entries_that_are_no_dialects(name):
    recipe = CORE[name]
    method = grouprl.method(name, **recipe.ours)
    for seed in range(3):
        agree(method, recipe, random_case(seed, (4, 3, 5, 2), WIDTH))


@pytest.mark.parametrize("lam", [1.0, 0.95, 0.5])
def test_ppo_with_its_critic(lam):
    method = grouprl.method("ppo", lam=lam, dual_clip=3.0)
    close = {"rtol": 1e-6, "atol": 1e-6}
    for seed in range(3):
        case = random_case(seed, width=WIDTH)
        batch, mask_bt, ready = case.batch, case.batch.mask_bt.double(), method.prepare(case.batch)
        reward_bt = batch.last_token_bt().double() * batch.reward_b[:, None]
        advantage_bt, return_bt = core_algos.compute_gae_advantage_return(
            reward_bt, batch.value_bt, mask_bt, gamma=1.0, lam=lam
        )
        torch.testing.assert_close(ready.advantage_bt, advantage_bt * mask_bt, **close)
        torch.testing.assert_close(ready.return_bt * mask_bt, return_bt * mask_bt, **close)
        ours_bt, theirs_bt = (case.value_bt.clone().requires_grad_() for _ in range(2))
        ours = method.value_loss(ours_bt, ready).value
        theirs, _ = core_algos.compute_value_loss(theirs_bt, return_bt, batch.value_bt, mask_bt, cliprange_value=0.2)
        torch.testing.assert_close(ours, theirs, **close)
        grads = torch.autograd.grad(ours, ours_bt) + torch.autograd.grad(theirs, theirs_bt)
        torch.testing.assert_close(*grads, **close)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs", "k1+", "k3+"])
def test_kl_estimators_in_the_loss(estimator):
    method = grouprl.method("grpo", kl_coef=0.1, kl_estimator=estimator)
    plain = grouprl.method("grpo")
    for seed in range(3):
        case = random_case(seed, width=WIDTH)
        mask_bt = case.batch.mask_bt.double()
        leaves = [case.logp_bt.clone().requires_grad_() for _ in range(3)]
        ours = method.loss(leaves[0], method.prepare(case.batch)).value
        without = plain.loss(leaves[1], plain.prepare(case.batch)).value
        kl_bt = core_algos.kl_penalty(leaves[2], case.batch.ref_bt, estimator)
        theirs = 0.1 * core_algos.agg_loss(kl_bt, mask_bt, "seq-mean-token-mean")
        torch.testing.assert_close(ours - without, theirs, rtol=1e-6, atol=1e-8)
        a, b, c = (torch.autograd.grad(x, leaf)[0] for x, leaf in zip((ours, without, theirs), leaves, strict=True))
        torch.testing.assert_close(a - b, c, rtol=1e-6, atol=1e-8)
