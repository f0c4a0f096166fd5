"""Our `@verl` entries against verl's own functions: advantages, loss and gradient on random batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import grouprl
from batches import Case, random_case
from grouprl.algorithms.filter.mismatch_rejection import MismatchRejection

pytest.importorskip("verl", reason="verl is not installed: `make parity` runs this in an environment of its own")

from importlib.metadata import version

from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask
from verl.workers.config import ActorConfig, PolicyLossConfig

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
    "grpo@verl dual 1.5": Recipe(actor={"clip_ratio_c": 1.5}, ours={"clip_ratio_c": 1.5}),
    "dr_grpo@verl": Recipe(
        estimator_options={"norm_adv_by_std_in_grpo": False},
        actor={"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": WIDTH + 2},
    ),
    "gspo@verl": Recipe(loss="gspo"),
    "gspo@verl paper's clip": Recipe(
        loss="gspo",
        actor={"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4},
        ours={"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4},
    ),
    "cispo@verl": Recipe(loss="cispo"),
    "rloo@verl": Recipe(estimator="rloo"),
    "gpg@verl": Recipe(estimator="gpg", loss="gpg"),
}
ALL = {"clip_ratio_low": 0.3, "clip_ratio_high": 0.25, "use_kl_loss": True, "kl_loss_coef": 0.1, "entropy_coeff": 0.01}
"""Settings that mean the same by the same name in both libraries."""
TIMES = {"reinforce_plus_plus": {"config": AlgoConfig(gamma=1.0)}}
RECIPES |= {
    "sapo@verl": Recipe(loss="sapo", actor={"tau_pos": 2.0, "tau_neg": 1.5}, ours={"tau_pos": 2.0, "tau_neg": 1.5}),
    "gmpo@verl": Recipe(loss="geo_mean", tolerance=1e-5),
    "dppo@verl": Recipe(loss="dppo_tv"),
    "dppo@verl kl": Recipe(
        loss="dppo_kl",
        actor={"clip_ratio_low": 0.02, "clip_ratio_high": 0.05, "clip_ratio_c": 1.2},
        ours={"loss_mode": "dppo_kl", "clip_ratio_low": 0.02, "clip_ratio_high": 0.05, "clip_ratio_c": 1.2},
    ),
    "opo@verl": Recipe(estimator="opo"),
    "remax@verl": Recipe(estimator="remax"),
    "reinforce_pp@verl": Recipe(estimator="reinforce_plus_plus", estimator_options=TIMES["reinforce_plus_plus"]),
    "reinforce_pp_baseline@verl": Recipe(estimator="reinforce_plus_plus_baseline"),
    "clip_cov@verl": Recipe(
        loss="clip_cov",
        actor={"policy_loss": {"clip_cov_ratio": 0.9, "clip_cov_lb": 0.2}},
        ours={"clip_cov_ratio": 0.9, "clip_cov_lb": 0.2},
    ),
}
WHOLE = ("grpo@verl", "dr_grpo@verl", "gspo@verl", "cispo@verl", "sapo@verl", "gmpo@verl", "dppo@verl", "opo@verl")
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


def request(
    recipe: Recipe, case: Case, in_reward: str | None = None, weights_bt: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return verl's advantages [B,T], loss and dLoss/dlogp [B,T] of a case."""
    batch = case.batch
    mask_bt = batch.mask_bt.double()
    reward_bt = batch.last_token_bt().double() * batch.reward_b[:, None]
    if in_reward is not None:  # as apply_kl_penalty of verl's trainer
        reward_bt = reward_bt - 0.1 * mask_bt * core_algos.kl_penalty(batch.old_bt, batch.ref_bt, in_reward)
    estimate = core_algos.get_adv_estimator_fn(recipe.estimator)
    advantage_bt, _ = estimate(
        token_level_rewards=reward_bt.clone(),
        response_mask=mask_bt,
        index=np.array(batch.group_b.tolist()),
        **({"reward_baselines": batch.greedy_reward_b} if recipe.estimator == "remax" else {}),
        **recipe.estimator_options,
    )
    options = {**recipe.actor}
    if "policy_loss" in options:
        options["policy_loss"] = PolicyLossConfig(**options["policy_loss"])
    actor = ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1, **options)
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
        rollout_is_weights=weights_bt,
    )
    info = {"loss_agg_mode": actor.loss_agg_mode, **actor.global_batch_info}
    loss = loss - actor.entropy_coeff * core_algos.agg_loss(case.entropy_bt, mask_bt, **info)
    if actor.use_kl_loss:  # as ppo_loss of verl's workers/utils/losses.py
        kl_bt = core_algos.kl_penalty(leaf_bt, batch.ref_bt, actor.kl_loss_type)
        loss = loss + actor.kl_loss_coef * core_algos.agg_loss(kl_bt, mask_bt, **info)
    return advantage_bt, loss.detach(), torch.autograd.grad(loss, leaf_bt)[0]


def agree(
    method: grouprl.Method,
    recipe: Recipe,
    case: Case,
    in_reward: str | None = None,
    weights_bt: torch.Tensor | None = None,
) -> None:
    """Assert that both give the same advantages, loss and gradient."""
    advantage_bt, loss, grad_bt = request(recipe, case, in_reward, weights_bt)
    ready = method.prepare(case.batch)
    close = {"rtol": recipe.tolerance, "atol": recipe.tolerance, "check_dtype": False}
    torch.testing.assert_close(ready.advantage_bt, advantage_bt * case.batch.mask_bt, **close)
    logp_bt = case.logp_bt.clone().requires_grad_()
    value = method.loss(logp_bt, ready, case.entropy_bt).value
    torch.testing.assert_close(torch.autograd.grad(value, logp_bt)[0], grad_bt, **close)
    torch.testing.assert_close(value.detach(), loss, **close)


def test_the_version_the_cards_name():
    assert version("verl") == VERSION


@every_recipe
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "requested",
    [
        {"drift": 0.0, "on_policy": True},
        {"drift": 0.05},
        {"drift": 0.4, "rewards": "binary"},
        {"drift": 2.0, "rewards": "mixed"},
        {"equal_lengths": True},
    ],
    ids=str,
)
def test_random_batches(name, shape, requested):
    recipe = RECIPES[name]
    method = grouprl.method(name.split()[0], **recipe.ours)
    for seed in range(3):
        agree(method, recipe, random_case(seed, SHAPES[shape], WIDTH, **requested))


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


@pytest.mark.parametrize("kl", ["kl", "abs", "mse", "low_var_kl", "k1+", "abs+", "mse+", "k3+"])
@pytest.mark.parametrize(
    "mode", ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
)
@pytest.mark.parametrize("name", WHOLE)
def test_the_switches_of_every_loss(name, mode, kl):
    recipe, entry = RECIPES[name], grouprl.methods()[name]
    settings = {**recipe.ours, **ALL, "loss_agg_mode": mode, "kl_loss_type": kl, "loss_scale_factor": 11}
    settings = {key: value for key, value in settings.items() if key in entry.settings}
    actor = {**recipe.actor, **ALL, "loss_agg_mode": mode, "kl_loss_type": kl, "loss_scale_factor": 11}
    if name in ("sapo@verl", "gmpo@verl") and mode == "seq-mean-token-sum-norm":
        actor["loss_scale_factor"] = WIDTH + 2
    method = entry.build(**settings)
    for seed in range(2):
        case = random_case(seed, (4, 3, 5), WIDTH)
        agree(method, dataclasses.replace(recipe, actor=actor), case)


@pytest.mark.parametrize("kl", ["kl", "abs", "mse", "low_var_kl"])
@pytest.mark.parametrize("name", ["grpo@verl", "rloo@verl", "opo@verl", "reinforce_pp@verl", "sapo@verl"])
def test_kl_in_the_reward(name, kl):
    recipe = RECIPES[name]
    method = grouprl.method(name, **recipe.ours, use_kl_in_reward=True, kl_coef=0.1, kl_penalty=kl)
    for seed in range(3):
        agree(method, recipe, random_case(seed, (4, 3, 5), WIDTH), kl)


@pytest.mark.parametrize("weights", [None, [1.0, 0.25, 2.0]])
def test_gdpo_with_any_number_of_components(weights):
    names = ["accuracy", "format", "judge"]
    method = grouprl.method("gdpo@verl", gdpo_reward_keys=names, gdpo_reward_weights=weights)
    for seed in range(3):
        case = random_case(seed, (4, 3, 5), WIDTH, holes=False)
        length_b = case.batch.length_b
        prompts = torch.zeros(len(length_b), 2, dtype=torch.int64)
        attention_bt = torch.cat([prompts + 1, case.batch.mask_bt.long()], dim=1)
        options = {
            "config": AlgoConfig(gdpo_reward_keys=names, gdpo_reward_weights=weights),
            "non_tensor_batch": {name: case.batch.rewards[name].numpy() for name in names},
            "batch": {"prompts": prompts, "attention_mask": attention_bt},
        }
        agree(method, Recipe(estimator="gdpo", estimator_options=options, tolerance=2e-5), case)


@pytest.mark.parametrize("norm", [True, False])
def test_passk(norm):
    options = {"config": AlgoConfig(norm_adv_by_std_in_grpo=norm)}
    recipe = Recipe(estimator="grpo_passk", estimator_options=options)
    for seed in range(3):
        for rewards in ("real", "binary"):
            case = random_case(seed, (4, 3, 5, 2), WIDTH, rewards=rewards)
            agree(grouprl.method("passk@verl", norm_adv_by_std_in_grpo=norm), recipe, case)


@pytest.mark.parametrize("tail", [True, False])
def test_the_optimal_token_baseline(tail):
    for seed in range(4):
        case = random_case(seed, (4, 3, 5, 1), WIDTH, holes=False)
        options = {
            "old_log_probs": case.batch.old_bt,
            "sum_pi_squared": case.batch.stats["collision"],
            "handle_zero_tail": tail,
        }
        recipe = Recipe(estimator="optimal_token_baseline", estimator_options=options)
        agree(grouprl.method("otb@verl", handle_zero_tail=tail), recipe, case)


def test_ppo_dialect():
    method = grouprl.method("ppo@verl")
    for seed in range(3):
        case = random_case(seed, width=WIDTH)
        options = {"values": case.batch.value_bt, "gamma": 1.0, "lam": 1.0}
        batch, mask_bt = case.batch, case.batch.mask_bt.double()
        reward_bt = batch.last_token_bt().double() * batch.reward_b[:, None]
        want_bt, return_bt = core_algos.compute_gae_advantage_return(
            reward_bt, options["values"], mask_bt, gamma=1.0, lam=1.0
        )
        ready, leaf_bt = method.prepare(batch), case.value_bt.clone().requires_grad_()
        torch.testing.assert_close(ready.advantage_bt, want_bt * mask_bt, rtol=1e-6, atol=1e-6)
        theirs, _ = core_algos.compute_value_loss(leaf_bt, return_bt, batch.value_bt, mask_bt, cliprange_value=0.5)
        torch.testing.assert_close(method.value_loss(leaf_bt, ready).value, theirs, rtol=1e-6, atol=1e-6)


def test_kl_cov_where_no_two_tokens_are_alike():
    """Of tokens with equal covariance each library takes others first, so rewards are real numbers here."""
    recipe = Recipe(loss="kl_cov", actor={"policy_loss": {"kl_cov_ratio": 0.2}})
    for seed in range(5):
        case = random_case(seed, (4, 3, 5), WIDTH, drift=0.4)
        agree(grouprl.method("kl_cov@verl", kl_cov_ratio=0.2), recipe, case)


OPTIONS = [
    *("token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
    *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"),
]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("threshold", [1.05, 1.5])
def test_rejection_of_what_the_sampler_sampled(option, threshold):
    over, _, statistic = option.rpartition("_")
    high = threshold if statistic == "k1" else (threshold - 1) / 4
    part = MismatchRejection(over=over.replace("seq", "sequence"), statistic=statistic, high=high)
    for seed in range(3):
        batch = random_case(seed, width=WIDTH).batch
        theirs_bt, _ = compute_rollout_rejection_mask(
            batch.old_bt - batch.behavior_bt, batch.mask_bt.double(), option, str(high)
        )
        ours_bt = part(batch).loss_mask_bt
        assert torch.equal(ours_bt, theirs_bt.bool() & batch.mask_bt)


@pytest.mark.parametrize("options", ["token_k1,seq_mean_k3", "seq_sum_k1, token_k2 ,seq_max_k3", "token_k3,token_k3"])
def test_several_rejections(options):
    for seed in range(4):
        batch = random_case(seed, width=WIDTH).batch
        theirs_bt, _ = compute_rollout_rejection_mask(
            batch.old_bt - batch.behavior_bt, batch.mask_bt.double(), options, "1.2"
        )
        for part in grouprl.method("grpo@verl", rollout_rs=options, rollout_rs_threshold="1.2").filter:
            batch = part(batch)
        assert torch.equal(batch.active_bt, theirs_bt.bool() & batch.mask_bt)


@pytest.mark.parametrize("threshold", [1.1, "0.8_1.2"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", ["grpo@verl", "gmpo@verl", "gspo@verl", "gpg@verl"])
def test_weights_of_the_samplers_ratio(name, level, threshold):
    if (name, level, threshold) == ("gmpo@verl", "token", "0.8_1.2"):
        pytest.skip("refused: verl takes the logarithm of 0")
    recipe = RECIPES[name]
    method = grouprl.method(name, **recipe.ours, rollout_is=level, rollout_is_threshold=threshold)
    for seed in range(3):
        case = random_case(seed, (4, 3, 5), WIDTH)
        weights_bt, _ = compute_rollout_correction_weights(
            case.batch.old_bt - case.batch.behavior_bt, case.batch.mask_bt.double(), level, threshold
        )
        assert weights_bt.unique().numel() > 2
        agree(method, recipe, case, weights_bt=weights_bt)


def test_gspo_beyond_its_largest_logarithm():
    recipe, method = RECIPES["gspo@verl"], grouprl.method("gspo@verl")
    for seed in range(3):
        case = random_case(seed, (4, 3, 5), WIDTH, drift=12.0)
        far_b = ((case.logp_bt - case.batch.old_bt) * case.batch.mask_bt).sum(1) / case.batch.mask_bt.sum(1)
        far = dataclasses.replace(case, logp_bt=case.logp_bt + (11 - far_b)[:, None] * (seed + 1) / 2)
        agree(method, recipe, far)


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
