"""Our `@trl` entries against TRL's own trainers: advantages, loss and gradient on random batches."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

import grouprl
from batches import Case, random_case

trl = pytest.importorskip("trl", reason="TRL is not installed: `make parity` runs this in an environment of its own")

from trl_oracle import Oracle  # noqa: E402

VERSION = "1.16.0"
WIDTH = 7
SHAPES = {"three groups": (4, 4, 4), "one group": (4,), "eight groups": (4,) * 8}
RECIPES = {
    "grpo@trl": ("grpo", {"loss_type": "grpo"}, {}),
    "dr_grpo@trl": ("grpo", {"loss_type": "dr_grpo"}, {}),
    "dr_grpo@trl without std": ("grpo", {"loss_type": "dr_grpo", "scale_rewards": "none"}, {"scale_rewards": "none"}),
    "dapo@trl": ("grpo", {}, {}),
    "dapo@trl clip-higher": ("grpo", {"loss_type": "dapo", "epsilon_high": 0.28}, {"epsilon_high": 0.28}),
    "gspo@trl": (
        "grpo",
        {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4},
        {},
    ),
    "gspo@trl wide": (
        "grpo",
        {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 0.2},
        {"epsilon": 0.2, "epsilon_high": None},
    ),
    "cispo@trl": ("grpo", {"loss_type": "cispo"}, {}),
    "cispo@trl cap 5": ("grpo", {"loss_type": "cispo", "epsilon_high": 5.0}, {"epsilon_high": 5.0}),
    "rloo@trl": ("rloo", {}, {}),
    "rloo@trl without KL": ("rloo", {"beta": 0.0}, {"beta": 0.0}),
}
LOSSES = ("grpo", "dr_grpo", "dapo", "cispo", "sapo", "bnpo", "luspo", "vespo")
SEQUENCE = {"importance_sampling_level": "sequence"}
SWITCHED: dict[str, dict] = {
    "KL": {"beta": 0.04},
    "KL without correction": {"beta": 0.04, "use_bias_correction_kl": False},
    "batch": {"scale_rewards": "batch"},
    "no scale, KL": {"scale_rewards": "none", "beta": 0.1},
    "sequence": SEQUENCE,
    "sequence, KL": {**SEQUENCE, "beta": 0.04},
    "delta": {"delta": 1.5, "epsilon": 0.1, "epsilon_high": 0.3},
    "delta within the clip": {"delta": 1.1, "epsilon": 0.1, "epsilon_high": 0.3},
    "entropy": {"entropy_coef": 0.01, "beta": 0.02},
    "top entropy": {"top_entropy_quantile": 0.3, "beta": 0.04},
    "top entropy alone": {"top_entropy_quantile": 0.0},
    "top entropy with its bonus": {"top_entropy_quantile": 0.5, "entropy_coef": 0.02},
    "off-policy mask": {"off_policy_mask_threshold": 0.1, "beta": 0.04},
    "off-policy mask and top entropy": {"off_policy_mask_threshold": 0.02, "top_entropy_quantile": 0.6, **SEQUENCE},
}
"""Settings that mean the same by the same name in both libraries."""
PAPERS_LUSPO = {**SEQUENCE, "epsilon": 2e-3, "epsilon_high": 2.5e-3}
RECIPES |= {f"{loss}@trl switched": ("grpo", {"loss_type": loss}, {}) for loss in ("sapo", "bnpo", "luspo", "vespo")}
RECIPES |= {
    "luspo@trl of the paper": ("grpo", {"loss_type": "luspo", **PAPERS_LUSPO}, PAPERS_LUSPO),
    "sapo@trl sharper": (
        "grpo",
        {"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0},
        {"sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0},
    ),
    "vespo@trl sharper": (
        "grpo",
        {"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_neg": 4.0},
        {"vespo_k_pos": 1.0, "vespo_lambda_neg": 4.0},
    ),
    "gmpo@trl": ("gmpo", {}, {}),
    "gmpo@trl with KL": ("gmpo", {"beta": 0.04, "epsilon": 0.2}, {"beta": 0.04, "epsilon": 0.2}),
    "rloo@trl normalised": (
        "rloo",
        {"normalize_advantages": True, "reward_clip_range": (-0.5, 1.0)},
        {"normalize_advantages": True, "reward_clip_range": (-0.5, 1.0)},
    ),
}
CORE = {
    "grpo with KL": (
        {"loss_type": "grpo", "beta": 0.04},
        {"kl_coef": 0.04, "kl_estimator": "weighted_k3", "eps": 1e-4},
    ),
    "grpo with the paper's KL": (
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
        {"kl_coef": 0.04, "kl_estimator": "k3", "eps": 1e-4},
    ),
    "sapo": ({"loss_type": "sapo"}, {"eps": 1e-4}),
    "lite_ppo": ({"loss_type": "dapo", "scale_rewards": "batch"}, {"eps": 1e-4}),
}
every_recipe = pytest.mark.parametrize("recipe", RECIPES)


@functools.cache
def oracle(recipe: str, rows: int) -> Oracle:
    trainer, options, _ = RECIPES[recipe]
    return Oracle(trainer, rows, WIDTH + 2, **options)


def agree(method: grouprl.Method, peer: Oracle, case: Case) -> None:
    """Assert that both give the same advantages, loss and gradient (TRL's rewards are float32)."""
    agreed(method, case, peer.request(case))


def agreed(method: grouprl.Method, case: Case, theirs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    """Assert that the method gives these advantages [B], this loss and this gradient [B,T]."""
    advantage_b, loss, grad_bt = theirs
    ready = method.prepare(case.batch)
    close = {"rtol": 2e-4, "atol": 2e-6, "check_dtype": False}
    torch.testing.assert_close(ready.advantage_bt, advantage_b[:, None] * case.batch.mask_bt, **close)
    logp_bt = case.logp_bt.clone().requires_grad_()
    value = method.loss(logp_bt, ready, case.entropy_bt).value
    torch.testing.assert_close(torch.autograd.grad(value, logp_bt)[0], grad_bt, **close)
    torch.testing.assert_close(value.detach(), loss, **close)


def test_the_version_the_cards_name():
    assert trl.__version__ == VERSION


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
def test_random_batches(recipe, shape, requested):
    sizes = SHAPES[shape]
    method = grouprl.method(recipe.split()[0], **RECIPES[recipe][2])
    for seed in range(3):
        case = random_case(seed, sizes, WIDTH, holes=False, **requested)
        agree(method, oracle(recipe, sum(sizes)), case)


@every_recipe
def test_edge_cases(recipe):
    method = grouprl.method(recipe.split()[0], **RECIPES[recipe][2])
    case = random_case(5, (4, 4, 4), WIDTH, rewards="mixed", holes=False)
    ones = torch.ones_like(case.batch.reward_b)
    solved = (case.batch.group_b == 1).double()
    for reward_b in (ones, 0 * ones, torch.maximum(solved, case.batch.reward_b), 100 * case.batch.reward_b):
        agree(method, oracle(recipe, 12), dataclasses.replace(case, batch=case.batch.replace(reward_b=reward_b)))


@pytest.mark.parametrize("recipe", [r for r in RECIPES if RECIPES[r][0] != "rloo"])
def test_tool_output_inside_an_answer(recipe):
    method = grouprl.method(recipe.split()[0], **RECIPES[recipe][2])
    case = random_case(6, (4, 4, 4), WIDTH)
    assert (case.batch.mask_bt[:, 1:] & ~case.batch.mask_bt[:, :-1]).any(), "the batch has holes"
    agree(method, oracle(recipe, 12), case)


@pytest.mark.parametrize("switched", SWITCHED)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_switches_of_every_loss(loss, switched):
    entry, options = grouprl.methods()[f"{loss}@trl"], SWITCHED[switched]
    if not set(options) <= set(entry.settings):
        pytest.skip(f"{loss} does not read {', '.join(set(options) - set(entry.settings))}")
    peer = Oracle("grpo", 12, WIDTH + 2, loss_type=loss, **options)
    for seed in range(3):
        agree(entry.build(**options), peer, as_trl_samples(random_case(seed, (4, 4, 4), WIDTH, holes=False)))


def as_trl_samples(case: Case) -> Case:
    """Sampled by the policy at the start of the update, as without vLLM; entropies that float32 holds exactly."""
    batch = case.batch.replace(behavior_bt=case.batch.old_bt)
    return dataclasses.replace(case, batch=batch, entropy_bt=case.entropy_bt.float().double())


@pytest.mark.parametrize("switched", ["plain", "KL", "entropy", "top entropy with its bonus"])
@pytest.mark.parametrize("loss", LOSSES)
def test_masked_truncated_completions(loss, switched):
    options = {**SWITCHED.get(switched, {}), "mask_truncated_completions": True}
    method = grouprl.method(f"{loss}@trl", **options)
    peer = Oracle("grpo", 12, WIDTH + 2, loss_type=loss, **options)
    for seed in range(3):
        case = as_trl_samples(random_case(seed, (4, 4, 4), WIDTH, holes=False))
        assert case.batch.truncated_b.any()
        agree(method, peer, case)


@pytest.mark.parametrize("options", [{}, {"beta": 0.04}], ids=["plain", "KL"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_gmpo_over_the_tokens_of_largest_entropy(share, options):
    settings = {"top_entropy_quantile": share, **options}
    peer, method = Oracle("gmpo", 12, WIDTH + 2, **settings), grouprl.method("gmpo@trl", **settings)
    for seed in range(3):
        agree(method, peer, as_trl_samples(random_case(seed, (4, 4, 4), WIDTH, holes=False, drift=0.4)))


@pytest.mark.parametrize("options", [{}, {"beta": 0.04}, {"top_entropy_quantile": 0.5}], ids=str)
def test_gmpo_with_masked_truncated_completions(options):
    """TRL adds -A of each truncated completion to the loss, a constant; advantages and gradients are the same."""
    settings = {"mask_truncated_completions": True, **options}
    peer, method = Oracle("gmpo", 12, WIDTH + 2, **settings), grouprl.method("gmpo@trl", **settings)
    for seed in range(3):
        case = as_trl_samples(random_case(seed, (4, 4, 4), WIDTH, holes=False))
        assert case.batch.truncated_b.any()
        advantage_b, loss, grad_bt = peer.request(case)
        constant = -(advantage_b * case.batch.truncated_b).mean()
        agreed(method, case, (advantage_b, loss - constant, grad_bt))


@pytest.mark.parametrize("weights", [None, {"accuracy": 1.0, "format": 0.25, "judge": 2.0}])
def test_gdpo_with_any_number_of_components(weights):
    names = ["accuracy", "format", "judge"]
    options = {} if weights is None else {"reward_weights": list(weights.values())}
    peer = Oracle("grpo", 12, WIDTH + 2, components=names, multi_objective_aggregation="normalize_then_sum", **options)
    method = grouprl.method("gdpo@trl", reward_weights=weights)
    for seed in range(3):
        case = random_case(seed, (4, 4, 4), WIDTH, holes=False)
        rewards = {name: case.batch.rewards[name] for name in names}
        agree(method, peer, dataclasses.replace(case, batch=case.batch.replace(rewards=rewards)))


@pytest.mark.parametrize("name", CORE)
def test_entries_that_are_no_dialects(name):
    options, settings = CORE[name]
    peer, method = Oracle("grpo", 12, WIDTH + 2, **options), grouprl.method(name.split()[0], **settings)
    for seed in range(3):
        agree(method, peer, random_case(seed, (4, 4, 4), WIDTH, holes=False))
