"""Old log-probs that the one optimiser step of a rollout computes itself are those of a pass of their own."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import grouprl
from batches import close, random_case
from grouprl.algorithms.token_weight.token_weight import OffPolicyMask
from grouprl.core.batch import Batch
from grouprl.core.outputs import ENTROPY, LANGUAGE_OUTPUTS, LOG_PROB, VALUE, has_output
from grouprl.methods import CATALOGUE
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.records.tokens import Tokens
from grouprl.training.logprobs import reads_old_early, with_scores
from updates import accumulate, gradient, make_policy


def left(name: str) -> bool:
    method = grouprl.method(name)
    spoken = all(has_output(LANGUAGE_OUTPUTS, each) for each in method.outputs)
    return method.critic is None and method.update is None and spoken and not reads_old_early(method)


LEFT = [name for name in sorted(CATALOGUE) if left(name)]


@cache
def sampled_case(budget: int) -> tuple[CausalPolicy, Batch]:
    """A policy, and rows of all kinds of lengths, sampled by another engine than the trainer's."""
    policy = make_policy(budget)
    batch = random_case(5, rewards="mixed").batch
    lengths = [max(1, int((row != 0).nonzero().max()) + 1) if row.any() else 1 for row in batch.mask_bt.int()]
    generator = torch.Generator().manual_seed(3)
    ids = [torch.randint(3, 13, (n,), generator=generator).tolist() for n in lengths]
    tokens = Tokens.of([[1, 3 + int(g)] for g in batch.group_b], ids)
    batch = batch.trim(tokens.width).replace(inputs=tokens, source_b=None)
    own_bt = policy.logp(tokens)
    noise_bt = 0.01 * torch.randn(own_bt.shape, generator=generator, dtype=torch.float64)
    behavior_bt = own_bt + torch.where(batch.mask_bt, noise_bt, 0)
    return policy, batch.replace(old_bt=own_bt, behavior_bt=behavior_bt)


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("budget", [16, 4096])
def test_a_step_with_its_own_old_log_probs_is_that_with_those_of_a_pass(name: str, budget: int) -> None:
    method, (policy, batch) = grouprl.method(name), sampled_case(budget)
    apart = accumulate(policy, method, step_of(method, batch))
    expected = gradient(policy)
    found = accumulate(policy, method, step_of(method, batch.replace(old_bt=None)), old_of_update=True)
    close(gradient(policy), expected, 1e-9, 1e-12, "gradient")
    assert found.keys() - apart.keys() == {"kl_behavior"}
    assert {key: found[key] for key in apart} == pytest.approx(apart, rel=1e-9, abs=1e-9)


def step_of(method: grouprl.Method, batch: Batch) -> Batch:
    return method.compute_loss_weights(method.compute_advantages(batch))


def test_most_of_the_catalogue_leaves_old_log_probs_to_the_update() -> None:
    assert {"grpo", "dapo", "gspo", "cispo", "reinforce", "rloo"} <= set(LEFT)


def test_what_reads_old_log_probs_before_the_loss_gets_them_from_a_pass_of_their_own() -> None:
    corrected = grouprl.method("grpo").with_parts(token_weight=(OffPolicyMask(),))
    assert reads_old_early(corrected)
    assert not reads_old_early(grouprl.method("grpo"))


@pytest.mark.parametrize("exact", [True, False])
def test_a_critic_is_asked_for_log_probs_only_if_the_sampler_has_none(exact: bool) -> None:
    _, batch = sampled_case(4096)
    asked: list[tuple[str, ...]] = []

    def evaluate(inputs: Tokens, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        asked.append(names)
        return {name: torch.full_like(batch.reward_b, -2.0)[:, None].expand(batch.size) for name in names}

    policy = SimpleNamespace(evaluate=evaluate, outputs=(LOG_PROB, ENTROPY, VALUE))
    config = SimpleNamespace(updates_per_rollout=2, model=SimpleNamespace(lora=None))
    session = SimpleNamespace(model=policy, policy=policy, method=grouprl.method("ppo"), config=config, references={})
    foreign_b = torch.zeros_like(batch.group_b, dtype=torch.bool)
    found = with_scores(cast("Any", session), batch, cast("Tokens", batch.inputs), foreign_b, exact=exact)
    assert asked == [(VALUE,) if exact else (LOG_PROB, VALUE)]
    assert torch.equal(found.need("old_bt", "the test"), batch.old_bt) == exact
    assert found.value_bt is not None
