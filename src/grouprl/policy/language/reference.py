"""A frozen policy: the reference of KL terms."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor

from grouprl.core.errors import InputError
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

    def whole(self) -> IntrospectablePolicy:
        """Return the policy with its own weights, for sampling.

        Raises:
            InputError: it shares its weights with the policy in training.
        """
        if self._adapted:
            raise no_initial_policy()
        return self._policy

    def logp(self, tokens: Tokens) -> Tensor:
        """Return the log-prob of every response token, [B,T], without a graph."""
        with self._policy.model.disable_adapter() if self._adapted else nullcontext():
            return self._policy.logp(tokens)


def no_initial_policy() -> InputError:
    """Return the error of a reference that cannot be sampled from: it shares its weights with the model in training."""
    return InputError(
        "completions of the initial policy are asked for, and the policy has adapters",
        "the initial policy is the model without them, which cannot be sampled from while they are trained",
        "Train all weights (model.lora: none), or leave out the part that samples from the initial policy",
    )


def no_teacher() -> InputError:
    """Return the error of a reference that cannot teach: it shares its weights with the model in training."""
    return InputError(
        "the KL to a teacher is asked for, and the reference is the model in training without its adapters",
        "whole distributions are compared with a model of its own",
        "Name the teacher: model.reference: FOLDER",
    )
