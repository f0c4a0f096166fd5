"""Second models: a copy of the policy that goes its own way (value model, preference model, renewed reference)."""

from __future__ import annotations

import copy
from typing import TypeVar, cast

from .causal_lm import CausalPolicy
from .team import Team

P = TypeVar("P", bound=CausalPolicy | Team)


def second_policy(policy: P, *, trainable: bool = True, value_head: bool = False) -> P:
    """Return a copy of `policy` as it is now, adapters included, with weights of its own.

    `trainable`: whether it can be trained, where the policy can; `value_head`: whether it has a fresh value head.
    The copy shares nothing but the tokenizer. That of a team is a team of copies.
    """
    if isinstance(policy, Team):
        return cast(P, Team({agent: _copy(x, trainable, value_head) for agent, x in policy.members.items()}))
    return cast(P, _copy(policy, trainable, value_head))


def _copy(policy: CausalPolicy, trainable: bool, value_head: bool) -> CausalPolicy:
    model = copy.deepcopy(policy.model)
    if not trainable:
        model.requires_grad_(False)
    return type(policy)(
        model,
        policy.tokenizer,
        temperature=policy.temperature,
        engine=policy.engine,
        passes=policy.pass_settings,
        value_head=value_head,
        token_budget=policy.token_budget,
    )
