"""Second models: a copy of the policy that changes on its own (value model, preference model, renewed reference)."""

from __future__ import annotations

from typing import TypeVar, cast

from grouprl.protocols import Policy

P = TypeVar("P", bound=Policy)


def second_policy(policy: P, *, trainable: bool = True, value_head: bool = False) -> P:
    """Return a copy of `policy` as it is now, adapters included, with weights of its own.

    `trainable`: whether the copy can be trained if the policy can; `value_head`: whether it has a fresh value head. The
    copy shares nothing but the tokenizer. The copy of a team is a team of copies.
    """
    return cast(P, policy.copied(trainable=trainable, value_head=value_head))
