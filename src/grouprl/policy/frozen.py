"""A policy as it was: the reference of KL terms."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import TYPE_CHECKING

from grouprl.policy.lora import is_adapted
from grouprl.protocols import PolicyOutput
from grouprl.records.tokens import Tokens

if TYPE_CHECKING:
    from grouprl.policy.causal_lm import CausalPolicy


class FrozenPolicy:
    """A policy that no longer learns.

    With LoRA it is the model with its adapters switched off and costs no memory; otherwise a copy of the weights.
    """

    def __init__(self, policy: CausalPolicy) -> None:
        self._adapted = is_adapted(policy.model)
        self._policy = policy if self._adapted else self._copy(policy)

    @staticmethod
    def _copy(policy: CausalPolicy) -> CausalPolicy:
        return type(policy)(
            copy.deepcopy(policy.model).requires_grad_(False),
            policy.tokenizer,
            temperature=policy.temperature,
            engine=policy.engine,
            passes=policy.pass_settings,
            token_budget=policy.token_budget,
            precision=policy.precision,
        )

    def logp(self, tokens: Tokens, *, entropy: bool = False) -> PolicyOutput:
        """Score the responses of `tokens`, without a graph."""
        with self._policy.model.disable_adapter() if self._adapted else nullcontext():
            return self._policy.logp(tokens, entropy=entropy)
