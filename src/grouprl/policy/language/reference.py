"""A frozen policy: the reference of KL terms."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor

from grouprl.policy.language.introspection import IntrospectablePolicy
from grouprl.policy.lora import is_adapted
from grouprl.records.tokens import Tokens


class FrozenPolicy:
    """A policy that no longer learns.

    With LoRA it is the model with its adapters switched off, which costs no memory; otherwise it is a copy of the
    weights.
    """

    def __init__(self, policy: IntrospectablePolicy) -> None:
        self._adapted = is_adapted(policy.model)
        self._policy = policy if self._adapted else policy.copied(trainable=False)

    def logp(self, tokens: Tokens) -> Tensor:
        """Return the log-prob of every response token, [B,T], without a graph."""
        with self._policy.model.disable_adapter() if self._adapted else nullcontext():
            return self._policy.logp(tokens)
