"""A tiny policy, a ragged batch and a learner, for tests of optimiser steps."""

from __future__ import annotations

import torch

from grouprl import Batch
from grouprl.policy.language.causal_lm import CausalPolicy
from grouprl.policy.language.tiny import build_tiny
from grouprl.records.tokens import Tokens
from grouprl.training.update import Learner


def make_policy(token_budget: int = 4096, *, value_head: bool = False) -> CausalPolicy:
    model, tokenizer = build_tiny("0123456789", hidden=16, layers=1, heads=2, intermediate=32, seed=1)
    return CausalPolicy(model.double(), tokenizer, token_budget=token_budget, value_head=value_head)


def make_batch(policy: CausalPolicy, groups: int = 4, size: int = 4, seed: int = 0) -> Batch:
    """Ragged rows of random tokens; the first group is all right (dead), the others mixed; old differs from new."""
    generator = torch.Generator().manual_seed(seed)
    sample = lambda low, high: int(torch.randint(low, high, (1,), generator=generator))  # noqa: E731
    prompts = [[1] + [sample(3, 13) for _ in range(2 + g)] for g in range(groups) for _ in range(size)]
    completions = [[sample(3, 13) for _ in range(sample(1, 6))] for _ in prompts]
    tokens = Tokens.of(prompts, completions)
    group_b = torch.arange(groups).repeat_interleave(size)
    reward_b = torch.tensor([float(g == 0 or (i + g) % 3 == 0) for g in range(groups) for i in range(size)]).double()
    old_bt = policy.logp(tokens)
    noise_bt = 0.3 * torch.randn(old_bt.shape, generator=generator, dtype=torch.float64)
    mask_bt = tokens.present_bt()
    old_bt = torch.where(mask_bt, old_bt + noise_bt, 0)
    return Batch(mask_bt=mask_bt, group_b=group_b, reward_b=reward_b, old_bt=old_bt, behavior_bt=old_bt, inputs=tokens)


def gradient(policy: CausalPolicy) -> torch.Tensor:
    flat = torch.cat([p.grad.flatten() for p in policy.parameters()])
    for p in policy.parameters():
        p.grad = None
    return flat


def accumulate(policy, method, step: Batch, **options) -> dict[str, float]:
    """Add the gradient of a weighted step to `.grad`; return its metrics."""
    return Learner(policy, torch.optim.SGD(policy.parameters(), lr=0.0), method, **options).accumulate(step)


def learner_of(policy, chosen, **options) -> Learner:
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, fused=True)
    return Learner(policy, optimizer, chosen, **options)
