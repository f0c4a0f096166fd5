"""Second models: a copy of the policy that goes its own way (value model, preference model, renewed reference)."""

from __future__ import annotations

import copy

from .causal_lm import CausalPolicy


def second_policy(policy: CausalPolicy, *, trainable: bool = True, value_head: bool = False) -> CausalPolicy:
    """Return a copy of `policy` as it is now, adapters included, with weights of its own.

    `trainable`: whether it can be trained, where the policy can; `value_head`: whether it has a fresh value head.
    The copy shares nothing but the tokenizer.
    """
    model = copy.deepcopy(policy.model)
    if not trainable:
        model.requires_grad_(False)
    return type(policy)(
        model,
        policy.tokenizer,
        temperature=policy.temperature,
        engine=policy.engine,
        value_head=value_head,
        token_budget=policy.token_budget,
    )
