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
    "opo": Recipe(estimator="opo", actor={"clip_ratio_c": 1e9}),
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
    torch.testing.assert_close(ready.advantage_bt, advantage_bt, **close)
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
